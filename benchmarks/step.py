"""What one optimizer step costs, as a ratio to torch's fused SGD with momentum.

    python benchmarks/step.py                # every table; a few minutes
    python benchmarks/step.py --quick        # ResNet-18 only, without compilation
    python benchmarks/step.py --all          # ResNet-18 only, every registered optimizer

Every optimizer of a table steps the same parameters in turn, many times over, and the best time of
each counts: what disturbs the machine disturbs all of them. On a machine that is busy with other
work `--processor-time --threads 1` counts processor time instead. With --all, what has a fused path
is measured on it, torch's optimizers as well as ours. The tables give

- ratio: the time over that of torch.optim.SGD(momentum=0.9, fused=True) in the same run,
- state, temporary: bytes kept for each parameter, and the most that a step allocates besides,
- touched: memory that a step reads or writes, to be compared with the cache.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpsgd import LPSGD, LPSGDM, fused
from lpsgd.peers import Lion, factory, registry

Shapes = list[tuple[int, ...]]
PEER = "torch SGD fused"
OURS = "LPSGDM fused"


# --- parameter lists --------------------------------------------------------------------------


def resnet18() -> Shapes:
    """ResNet-18 with 10 classes and a 3x3 stem, as the paper trains it: 11.2 M in 62 tensors."""
    shapes: Shapes = [(64, 3, 3, 3), (64,), (64,)]
    inputs = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, inputs, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if block == 0 and inputs != width:
                shapes += [(width, inputs, 1, 1), (width,), (width,)]
            inputs = width
    return [*shapes, (10, 512), (10,)]


def resnet50() -> Shapes:
    """ResNet-50 for ImageNet: 25.6 M in 161 tensors."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, inputs, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_small() -> Shapes:
    """GPT-2 small: 124.4 M in 148 tensors."""
    n = 768
    block: Shapes = [(n,), (n,), (3 * n, n), (3 * n,), (n, n), (n,)]
    block += [(n,), (n,), (4 * n, n), (4 * n,), (n, 4 * n), (n,)]
    return [(50257, n), (1024, n), *block * 12, (n,), (n,)]


def beyond_cache() -> Shapes:
    """Sixteen tensors whose parameters alone are more than twice the last-level cache."""
    return [(2 * cache_size() // 4 // 16 + 4096,)] * 16


LISTS: dict[str, Callable[[], Shapes]] = {
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
    "GPT-2 small": gpt2_small,
    "twice the cache": beyond_cache,
}


def cache_size() -> int:
    """Bytes of the last-level cache; 32 MiB where the system does not say."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(s.read_text().strip().rstrip("K")) << 10 for s in sizes), default=32 << 20)


# --- what is compared -------------------------------------------------------------------------


class NaiveForeach(torch.optim.Optimizer):
    """LPSGDM as one would write it at first with foreach operations."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 1e-3, "momentum": 0.9, "p": 6.0, "eps": 1e-8})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            m = [self.state[p]["momentum_buffer"] for p in params]
            torch._foreach_mul_(m, group["momentum"])
            torch._foreach_add_(m, grads, alpha=1 - group["momentum"])
            scale = torch._foreach_abs(m)
            torch._foreach_add_(scale, group["eps"])
            torch._foreach_pow_(scale, (group["p"] - 2) / (group["p"] - 1))
            u = torch._foreach_div(m, scale)
            torch._foreach_add_(params, u, alpha=-group["lr"])


class Copy(torch.optim.Optimizer):
    """No optimizer: each parameter is overwritten by its gradient, as fast as memory allows."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        params = self.param_groups[0]["params"]
        torch._foreach_copy_(params, [p.grad for p in params])


Make = Callable[[list[Tensor]], torch.optim.Optimizer]
CANDIDATES: dict[str, Make] = {
    "copy": Copy,
    PEER: lambda ps: torch.optim.SGD(ps, lr=1e-3, momentum=0.9, fused=True),
    OURS: lambda ps: LPSGDM(ps, p=6.0, fused=True),
    "LPSGDM fused, rms": lambda ps: LPSGDM(ps, p=6.0, fused=True, normalize="rms"),
    "LPSGDM fused, dual": lambda ps: LPSGDM(ps, p=6.0, fused=True, normalize="dual"),
    "LPSGD fused": lambda ps: LPSGD(ps, p=6.0, fused=True),
    "torch AdamW fused": lambda ps: torch.optim.AdamW(ps, fused=True),
    "torch SGD foreach": lambda ps: torch.optim.SGD(ps, lr=1e-3, momentum=0.9, foreach=True),
    "torch AdamW foreach": lambda ps: torch.optim.AdamW(ps, foreach=True),
    "Lion foreach": lambda ps: Lion(ps, foreach=True),
    "LPSGDM foreach": lambda ps: LPSGDM(ps, p=6.0, foreach=True),
    "LPSGDM compiled": lambda ps: LPSGDM(ps, p=6.0, foreach=True),
    "LPSGDM loop": lambda ps: LPSGDM(ps, p=6.0, foreach=False),
    "LPSGDM naive foreach": NaiveForeach,
}


FUSED_IN_TORCH = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
"""Which of torch's optimizers have a fused step on a CPU; ours take theirs by default."""


def registered(name: str) -> Make:
    """Makes the optimizer of that name with the settings of the registry, fused where it can be."""
    horizon = {"total_steps": 10**6, "steps_per_epoch": 10**3, "total_epochs": 10**3}

    def make(ps: list[Tensor]) -> torch.optim.Optimizer:
        optimizer = factory.build(name, torch.nn.ParameterList(ps), {}, **horizon)
        if isinstance(optimizer, FUSED_IN_TORCH):
            for group in optimizer.param_groups:
                group["fused"], group["foreach"] = True, False
        return optimizer

    return make


SCALING = ("copy", PEER, OURS, "LPSGD fused", "torch AdamW fused")


@dataclass
class Row:
    """One optimizer on one list of parameters."""

    list: str
    optimizer: str
    parameters: int
    seconds: float  # of the best step
    ratio: float  # to the peer's
    state: float  # bytes for each parameter
    temporary: float  # bytes for each parameter
    touched: float  # bytes in all

    @property
    def nanoseconds(self) -> float:
        return self.seconds * 1e9 / self.parameters


# --- measuring --------------------------------------------------------------------------------


def make_params(shapes: Shapes) -> list[Tensor]:
    """Parameters with gradients, on the device of :func:`torch.set_default_device`."""
    device = torch.get_default_device()
    generator = torch.Generator(device).manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(shape, generator=generator, device=device))
        for shape in shapes
    ]
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator, device=device) * 1e-3
    return list(params)


def best_times(
    steps: dict[str, Callable[[], Any]], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """The best time of each, all run in turn until ``seconds`` are over, ten times at least."""
    best = dict.fromkeys(steps, float("inf"))
    waits = torch.get_default_device().type == "cuda"  # a CPU has done what it was given
    for step in steps.values():
        step()  # makes the state, compiles
        step()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 10 or time.perf_counter() < end:
        for name, step in steps.items():
            if waits:
                torch.cuda.synchronize()
            start = clock()
            step()
            if waits:
                torch.cuda.synchronize()
            best[name] = min(best[name], clock() - start)
        rounds += 1
    return best


def peak_temporary(step: Callable[[], Any]) -> int:
    """The most bytes that torch holds during a step beyond what it held before."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    tensors = {id(t): t for state in optimizer.state.values() for t in state.values()}
    return sum(t.nbytes for t in tensors.values() if isinstance(t, Tensor))


SQUARES: Shapes = [(1000, 1000)] * 5


def memory_of(name: str, shapes: Shapes = SQUARES) -> tuple[float, float]:
    """Bytes of state and of temporaries for each parameter."""
    params = make_params(shapes)
    count = sum(param.numel() for param in params)
    optimizer = CANDIDATES[name](params)
    step = torch.compile(optimizer.step) if "compiled" in name else optimizer.step
    step()
    step()
    return state_bytes(optimizer) / count, peak_temporary(step) / count


def measure(
    label: str,
    shapes: Shapes,
    names: Iterable[str],
    seconds: float,
    memory: dict[str, Any],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    params = make_params(shapes)
    count = sum(param.numel() for param in params)
    optimizers = {name: CANDIDATES[name](params) for name in names}
    steps: dict[str, Callable[[], Any]] = {
        name: torch.compile(o.step) if "compiled" in name else o.step
        for name, o in optimizers.items()
    }
    times = best_times(steps, seconds, clock)
    rows = []
    for name, best in times.items():
        state, temporary = memory[name]
        touched = count * (8 + state + temporary)
        ratio = best / times[PEER]
        rows.append(Row(label, name, count, best, ratio, state, temporary, touched))
    return rows


# --- showing ----------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    print(f"\n{rows[0].list}: {rows[0].parameters / 1e6:.1f} M parameters")
    print(f"  {'':22}{'ms':>9}{'ns/el':>8}{'ratio':>8}{'state':>8}{'temp.':>8}{'touched':>10}")
    for row in rows:
        print(
            f"  {row.optimizer:22}{row.seconds * 1e3:9.2f}{row.nanoseconds:8.3f}{row.ratio:8.2f}"
            f"{row.state:7.1f}B{row.temporary:7.1f}B{row.touched / 2**20:7.0f} MB"
        )


def show_scaling(table: list[list[Row]]) -> None:
    print(f"\nns for each element as the number of parameters grows (one tensor)\n  {'':9}", end="")
    print("".join(f"{name:>20}" for name in SCALING) + f"{'ratio':>8}")
    for rows in table:
        times = {row.optimizer: row for row in rows}
        line = "".join(f"{times[name].nanoseconds:20.3f}" for name in SCALING)
        print(f"  {rows[0].parameters:9.0e}{line}{times[OURS].ratio:8.2f}")


def targets(rows: list[Row]) -> list[tuple[str, float, float]]:
    """What we aim at: (what, reached, at most)."""
    best = {(row.list, row.optimizer): row for row in rows}
    found = []

    def add(label: str, name: str, other: str, bound: float) -> None:
        if (label, name) in best and (label, other) in best:
            reached = best[label, name].seconds / best[label, other].seconds
            found.append((f"{name} / {other}, {label}", reached, bound))

    for label in ("ResNet-50", "GPT-2 small"):
        add(label, OURS, PEER, 1.05)
        add(label, OURS, "torch AdamW fused", 0.75)
        add(label, f"{OURS}, rms", PEER, 1.4)
        add(label, f"{OURS}, dual", PEER, 1.4)
    for label in LISTS:
        add(label, "LPSGDM foreach", "torch SGD foreach", 2.5)
        add(label, "LPSGDM compiled", "LPSGDM foreach", 1.0)
    for row in rows:
        if row.list == "scaling" and row.optimizer == OURS:
            found.append((f"{OURS} / {PEER}, {row.parameters:.0e}", row.ratio, 1.3))
    return found


def about() -> dict[str, Any]:
    device = torch.get_default_device()
    return {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "last-level cache": f"{cache_size() >> 20} MiB",
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lists", nargs="*", default=list(LISTS), choices=list(LISTS))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each table")
    parser.add_argument(
        "--largest", type=float, default=2e8, help="where the scaling ends; 0: none"
    )
    parser.add_argument("--threads", type=int, help="instead of torch's choice")
    parser.add_argument("--device", default="cpu", help="such as cuda, where we have not measured")
    parser.add_argument(
        "--processor-time", action="store_true", help="instead of time: for a busy machine"
    )
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), help="these optimizers")
    parser.add_argument("--quick", action="store_true", help="ResNet-18 only, nothing compiled")
    parser.add_argument("--json", action="store_true", help="print numbers for a program to read")
    parser.add_argument("--all", action="store_true", help="ResNet-18 only, all of the registry")
    args = parser.parse_args(argv)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which measures memory, chats
    if args.device == "cpu" and fused.unavailable() is not None and not args.all:
        print(f"there is nothing to measure: {fused.unavailable()}", file=sys.stderr)
        return 1
    try:
        torch.empty(1, device=args.device)
    except (AssertionError, RuntimeError) as error:
        print(f"--device {args.device} cannot be used here: {error}", file=sys.stderr)
        return 2
    if args.device != "cpu":
        # not for a CPU, the default: what is set sends every question to a tensor through Python,
        # which costs ours milliseconds and torch's C++ little
        torch.set_default_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)

    names = [n for n in CANDIDATES if not args.only or n in args.only or n == PEER]
    if args.quick:
        args.lists, args.largest = ["ResNet-18"], 0
        names.remove("LPSGDM compiled")
    if args.all:
        args.lists, args.largest = ["ResNet-18"], 0
        CANDIDATES.update({name: registered(name) for name in registry.names()})
        names = ["copy", PEER, *registry.names()]
    scaling = SCALING if args.largest else ()
    # some rules keep bases of each matrix: what that takes depends on the shapes
    shapes = LISTS["ResNet-18"]() if args.all else SQUARES
    memory = {name: memory_of(name, shapes) for name in dict.fromkeys([*names, *scaling])}
    if not args.json:
        print("  ".join(f"{key}: {value}" for key, value in about().items()))

    clock = time.process_time if args.processor_time else time.perf_counter
    rows: list[Row] = []
    for label in args.lists:
        rows += measure(label, LISTS[label](), names, args.seconds, memory, clock)
        gc.collect()
        if not args.json:
            show([row for row in rows if row.list == label])
    sizes = [s for e in range(5, 9) for s in (10**e, 2 * 10**e, 5 * 10**e) if s <= args.largest]
    table = []
    for size in sizes:
        table.append(measure("scaling", [(size,)], SCALING, args.seconds / 4, memory, clock))
        gc.collect()
    rows += [row for part in table for row in part]
    reached = targets(rows)
    if args.json:
        results = [asdict(row) for row in rows]
        print(json.dumps({"about": about(), "rows": results, "targets": reached}, indent=1))
        return 0
    if table:
        show_scaling(table)
    print("\ntargets")
    for what, value, bound in reached:
        print(
            f"  {'reached' if value <= bound else 'MISSED':8}{value:6.2f} (at most {bound}) {what}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
