"""What LPMuon costs: against Newton-Schulz, torch's Muon, and as a share of a training step.

    python benchmarks/muon.py                    # all tables; some minutes
    python benchmarks/muon.py --rounds 2         # coarser

Everything is timed by the processor's clock, which other work on the machine moves little: each in
turn, several times over, and the best of each counts. On one thread, because threads that wait for
each other on a busy machine spin, and the clock would count that; ``--threads 2`` is for the share
of a training step on a machine that is idle, and goes by the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd import LPMuon, param_groups
from lpsgd._schatten import by_eigenvalues, by_products, lp_matrix_direction

SHAPES = {  # of one layer of GPT-2 small
    "attention in": (2304, 768),
    "attention out": (768, 768),
    "feed-forward in": (3072, 768),
    "feed-forward out": (768, 3072),
}
SMALL = (384, 128)  # for torch's Muon, whose bfloat16 products are slow on a CPU
TARGET_DIRECTION, TARGET_SHARE = 0.6, 0.10


def newton_schulz(x: Tensor) -> Tensor:
    """Muon's five steps in x's dtype (Jordan et al., 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.mT if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "Newton-Schulz": newton_schulz,
    "exact, p = inf": partial(lp_matrix_direction, alpha=0.0, power=by_eigenvalues),
    "exact, p = 5": partial(lp_matrix_direction, alpha=0.25, power=by_eigenvalues),
    "products, p = inf": partial(lp_matrix_direction, alpha=0.0, power=by_products),
}


def best_times(
    calls: dict[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Seconds, the best of each; all are run in turn."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best


def directions(rounds: int) -> dict[str, dict[str, float]]:
    """Seconds for each of GPT-2's shapes and each way."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for label, shape in SHAPES.items():
        x = torch.randn(shape, generator=draw)
        found[label] = best_times({way: partial(f, x) for way, f in WAYS.items()}, rounds)
    return found


def steps(rounds: int) -> dict[str, float]:
    """Seconds of one optimizer step of one small matrix."""
    w = torch.randn(SMALL, generator=torch.Generator().manual_seed(0)).requires_grad_()
    w.grad = torch.randn(SMALL, generator=torch.Generator().manual_seed(1))
    optimizers: dict[str, torch.optim.Optimizer] = {
        "LPMuon": LPMuon([w]),
        "LPMuon, no additions": LPMuon([w], cautious=False, normalize_rows=False),
        "LPMuon, products": LPMuon([w], exact=False),
        "AdamW fused": torch.optim.AdamW([w], fused=True),
    }
    if hasattr(torch.optim, "Muon"):
        optimizers["torch Muon"] = torch.optim.Muon([w])
    return best_times({name: optimizer.step for name, optimizer in optimizers.items()}, rounds)


def shares(rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Seconds of an optimizer's step and of forward and backward: ResNet-18, batches of 128."""
    from lpsgd.lab import models

    torch.manual_seed(0)
    model = models.create("resnet18", input_shape=(3, 32, 32), classes=10, width=64)
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))

    def gradients() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    gradients()
    calls: dict[str, Callable[[], Any]] = {
        "LPMuon": LPMuon(param_groups(model, muon=True)).step,
        "AdamW fused": torch.optim.AdamW(model.parameters(), fused=True).step,
        "forward and backward": gradients,
    }
    clock = time.process_time if threads == 1 else time.perf_counter
    times = best_times(calls, rounds, clock)
    rest = times.pop("forward and backward")
    return {name: {"step": t, "rest": rest, "share": t / (t + rest)} for name, t in times.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--threads", type=int, default=1, help="of the training step")
    parser.add_argument("--json", action="store_true", help="print numbers for a program to read")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    layer, small = directions(asked.rounds), steps(asked.rounds)
    torch.set_num_threads(asked.threads)
    training = shares(max(2, asked.rounds // 2), asked.threads)
    total = {way: sum(times[way] for times in layer.values()) for way in WAYS}
    ratio = total["exact, p = inf"] / total["Newton-Schulz"]
    if asked.json:
        tables = {"layer": layer, "ratio": ratio, "small": small, "training": training}
        print(json.dumps(tables, indent=1))
        return 0
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    print(f"torch: {torch.__version__}  load: {load}")
    print(f"\none layer of GPT-2 small, float32, one thread\n  {'':22}", end="")
    print("".join(f"{way:>20}" for way in WAYS))
    for label, times in {**layer, "all four": total}.items():
        cells = (f"{t * 1e3:9.0f} ms{t / times['Newton-Schulz']:7.2f}x" for t in times.values())
        print(f"  {label:22}" + "".join(f"{cell:>20}" for cell in cells))
    print(f"\na step of one matrix of {SMALL[0]} x {SMALL[1]}, one thread")
    for name, t in small.items():
        print(f"  {name:22}{t * 1e3:9.2f} ms{t / small['LPMuon']:8.2f}x")
    print(f"\nResNet-18, width 64, batches of 128 images of 32 x 32, threads: {asked.threads}")
    for name, row in training.items():
        print(
            f"  {name:22}{row['step'] * 1e3:9.0f} ms beside {row['rest'] * 1e3:.0f} ms: "
            f"{100 * row['share']:.1f} % of a training step"
        )
    print("\ntargets")
    for what, value, bound in (
        ("exact direction over Newton-Schulz, GPT-2's shapes", ratio, TARGET_DIRECTION),
        ("share of a ResNet-18 training step", training["LPMuon"]["share"], TARGET_SHARE),
    ):
        print(
            f"  {'reached' if value <= bound else 'MISSED':8}{value:6.2f} (at most {bound}) {what}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
