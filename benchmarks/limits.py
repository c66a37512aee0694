"""What bounds a step of LPSGDM beside torch's fused SGD: arithmetic, memory, Python, operators.

    python benchmarks/limits.py              # every table; a minute
    python benchmarks/limits.py --json       # the same for scripts/speed_tables.py

Everything of a table is run in turn, many times over, and the best time of each counts.

- kernel: nanoseconds for each element on one thread, with no Python between tensors, by how much
  memory they take. What fits into the first-level cache (24 KiB) shows the arithmetic.
- Python: microseconds of `step()` on tensors of one element, where nothing else takes time.
- operators: nanoseconds for each element of the operators that the foreach path is made of, on all
  threads and in parts of the size that it takes.
- error: the largest relative error of the kernel's update against the formula in float64.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
from step import CANDIDATES, OURS, PEER, about, best_times, cache_size, make_params
from torch import Tensor

from lpsgd import fused
from lpsgd._bucket import _PART

Table = dict[str, dict[str, float]]
"""row -> column -> number"""

# parameter, gradient and momentum together, and each of them twice the last-level cache
LEVELS = {"24 KiB": 2**11, "768 KiB": 2**16, "beyond the cache": 2 * cache_size() // 4}
ROUND = 2**19  # elements that one call steps at least, so that calling it costs little
MODES = {OURS: 0, f"{OURS}, rms": 1, f"{OURS}, dual": 2}  # as fused.c numbers them


def kernel_call(tensors: list[list[Tensor]], normalize: int) -> Callable[[], Any]:
    """One call of the C function on lists of parameters, gradients and momenta, on one thread."""
    pointers = [array("Q", [t.data_ptr() for t in role]) for role in tensors]
    sizes = array("q", [t.numel() for t in tensors[0]])
    blocks = [*pointers, sizes]
    numbers = (0, 0, 0, 6.0, -1e-3, 1.0, 0.9, 1e-8, normalize, 1, 0)

    def call() -> None:
        assert fused._kernel is not None
        fused._kernel(len(tensors[0]), *[block.buffer_info()[0] for block in blocks], *numbers)

    return call


def sgd_call(tensors: list[list[Tensor]]) -> Callable[[], Any]:
    """The same of torch's fused SGD with momentum."""
    settings = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    return lambda: torch._fused_sgd_(*tensors, **settings, **flags)


@torch.no_grad()
def kernel_table(seconds: float) -> Table:
    """ns for each element on one thread. The same tensors are listed as often as ROUND wants."""
    found: Table = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for level, size in LEVELS.items():
        (param,) = make_params([(size,)])
        assert param.grad is not None
        own = [param.detach(), param.grad, param.grad.clone()]
        times = max(1, ROUND // size)
        tensors = [[tensor] * times for tensor in own]
        calls = {PEER: sgd_call(tensors)}
        calls |= {name: kernel_call(tensors, mode) for name, mode in MODES.items()}
        for name, best in best_times(calls, seconds, perf_counter).items():
            found.setdefault(name, {})[level] = best * 1e9 / (size * times)
    torch.set_num_threads(threads)
    return found


def python_table(seconds: float) -> Table:
    """µs of a step of tensors of one element: as many as ResNet-50 has, and one."""
    found: Table = {}
    for suffix in ("", ", after `torch.set_default_device`"):
        for count in (161, 1):
            with torch.device("cpu") if suffix else nullcontext():
                params = make_params([(1,)] * count)
                steps = {name: CANDIDATES[name](params).step for name in (PEER, OURS)}
                times = best_times(steps, seconds, perf_counter)
            row = f"{count} tensor{'s' * (count > 1)}{suffix}"
            found[row] = {name: best * 1e6 for name, best in times.items()}
    return found


@torch.no_grad()
def operator_table(seconds: float) -> Table:
    """ns for each element of what the foreach path does in turn, and of what it might instead."""
    grad = torch.randn(_PART) * 1e-3
    momentum, param, t = grad.clone(), torch.randn(_PART), torch.rand(_PART) + 0.5
    work = torch.empty_like(t)
    path = {
        "lerp_": lambda: momentum.lerp_(grad, 0.1),
        "abs": lambda: torch.abs(momentum, out=work),
        "add_": lambda: t.add_(1e-8),
        "log": lambda: torch.log(t, out=work),
        "mul_": lambda: work.mul_(1.0),
        "exp2": lambda: torch.exp2(t, out=work),
        "addcmul_": lambda: param.addcmul_(momentum, t, value=-1e-9),
    }
    others = {
        "exp": lambda: torch.exp(t, out=work),
        "pow": lambda: torch.pow(t, -0.8, out=work),
    }
    best = best_times(path | others, seconds, perf_counter)
    cost = {name: time * 1e9 / _PART for name, time in best.items()}
    total = {"these seven": sum(cost[name] for name in path)}
    rows = {name: cost[name] for name in path} | total | {name: cost[name] for name in others}
    return {name: {"ns per element": value} for name, value in rows.items()}


def error_table() -> Table:
    """max |u - formula| / |formula| over magnitudes and p; the kernel on float32 tensors."""
    found: Table = {}
    draws = torch.Generator().manual_seed(0)
    for low, high in ((-8, 3), (-30, 30)):
        eps = 10.0**low
        exponents = torch.rand(10**6, dtype=torch.float64, generator=draws) * (high - low) + low
        x = (10**exponents).float()
        worst = 0.0
        for p in (2.0, 2.0001, 2.5, 3.0, 6.0, 20.0, 1000.0, math.inf):
            u = torch.zeros_like(x)
            numbers = {"step": 1.0, "keep": 1.0, "momentum": 0.0, "normalize": None}
            fused.kernel_step([u], [x], None, p=p, eps=eps, **numbers)
            wide = x.double()
            formula = wide / (wide + eps) ** (1 - 1 / (p - 1))
            worst = max(worst, ((u.double() - formula) / formula).abs().max().item())
        found[f"|x| from 1e{low} to 1e{high}, eps = 1e{low}"] = {"largest relative error": worst}
    return found


def show(title: str, table: Table) -> None:
    width = max(map(len, table)) + 2
    print(f"\n{title}")
    for name, row in table.items():
        cells = "   ".join(f"{column}: {value:.3g}" for column, value in row.items())
        print(f"  {name:{width}}{cells}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--json", action="store_true", help="print numbers for a program to read")
    asked = parser.parse_args(argv)
    if (reason := fused.unavailable()) is not None:
        print(f"there is nothing to measure: {reason}", file=sys.stderr)
        return 1
    tables = {
        "kernel": kernel_table(asked.seconds),
        "python": python_table(asked.seconds),
        "operators": operator_table(asked.seconds),
        "error": error_table(),
    }
    if asked.json:
        print(json.dumps({"about": about(), **tables}, indent=1))
        return 0
    print("  ".join(f"{key}: {value}" for key, value in about().items()))
    show("The kernel, ns for each element on one thread", tables["kernel"])
    show("Python, µs of a step of tensors of one element", tables["python"])
    show("The foreach path's operators, all threads", tables["operators"])
    show("The kernel's error against float64", tables["error"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
