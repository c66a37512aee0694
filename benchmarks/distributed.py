"""What LPSGDM costs on several processes beside AdamW and SGD: DDP and FSDP2, the step and a batch.

    python benchmarks/distributed.py                  # 2 processes on this CPU, with gloo
    python benchmarks/distributed.py --processes 3 --rounds 40

Each process has one thread. For each strategy the optimizers train copies of one network (a
perceptron of 2.6 million parameters) on the same batch in turn, many times over; the best time of
each counts, of the slowest process: what disturbs the machine disturbs all of them. "step" is
optimizer.step alone, "batch" is forward, backward with its messages, and the step. These are
times of a CPU; on GPUs neither the arithmetic nor the messages cost the same.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from lpsgd import LPSGDM
from lpsgd.lab.training.options import STRATEGIES
from lpsgd.lab.training.parallel import strategies
from lpsgd.lab.training.parallel import world as distributed

PEER = "AdamW"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    PEER: lambda p: torch.optim.AdamW(p, lr=1e-4),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "LPSGDM": lambda p: LPSGDM(p, lr=1e-4),
    "LPSGDM rms": lambda p: LPSGDM(p, lr=1e-4, normalize="rms"),
    "LPSGDM dual": lambda p: LPSGDM(p, lr=1e-4, normalize="dual"),
}
INPUTS, HIDDEN, CLASSES, ROWS = 512, 1024, 10, 32
CPU = torch.device("cpu")


class Job:
    """One network with one optimizer, on all processes."""

    def __init__(self, name: str, strategy: str) -> None:
        torch.manual_seed(0)
        sizes = [INPUTS, HIDDEN, HIDDEN, HIDDEN]
        layers = [
            layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        model = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))
        self.images, self.labels = torch.randn(ROWS, INPUTS), torch.randint(CLASSES, (ROWS,))
        if strategy == "fsdp2":
            strategies.shard(model, CPU)
        self.network: nn.Module = (
            model if strategy == "fsdp2" else strategies.replicate(model, CPU, self.images)
        )
        self.optimizer = OPTIMIZERS[name](model.parameters())
        self.best = {"step": float("inf"), "batch": float("inf")}

    def batch(self) -> None:
        """Train on one batch and keep the times if they are better."""
        dist.barrier()
        began = time.perf_counter()
        self.optimizer.zero_grad()
        cross_entropy(self.network(self.images), self.labels).backward()
        before_step = time.perf_counter()
        self.optimizer.step()
        ended = time.perf_counter()
        # the slowest process decides
        times = torch.tensor([ended - before_step, ended - began])
        dist.all_reduce(times, dist.ReduceOp.MAX)
        for name, seconds in zip(self.best, times.tolist(), strict=True):
            self.best[name] = min(self.best[name], seconds)


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """What each process does; the best times by strategy and optimizer."""
    torch.set_num_threads(1)
    found = {}
    for strategy in STRATEGIES:
        jobs = {name: Job(name, strategy) for name in OPTIMIZERS}
        for _ in range(rounds):
            for job in jobs.values():
                job.batch()
        found[strategy] = {name: job.best for name, job in jobs.items()}
    return found


def show(times: dict[str, dict[str, dict[str, float]]], size: int) -> None:
    """Print a table for each strategy."""
    for strategy, rows in times.items():
        print(f"\n{strategy} on {size} processes, gloo on a CPU, one thread each")
        print(f"{'':<14}{'step':>10}{'to ' + PEER:>10}{'batch':>10}{'to ' + PEER:>10}")
        for name, best in rows.items():
            cells = [
                f"{best[part] * 1e3:>7.2f} ms{best[part] / rows[PEER][part]:>10.2f}"
                for part in ("step", "batch")
            ]
            print(f"{name:<14}{''.join(cells)}")


def main(arguments: list[str] | None = None) -> None:
    """Start the processes and print what they found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args(arguments)
    if not distributed.launched():
        command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(given.processes), __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--rounds", str(given.rounds)], check=True, env=environment)
        return
    with distributed.joined() as world:
        times = measure(given.rounds)
        if world.main:
            show(times, world.size)


if __name__ == "__main__":
    main()
