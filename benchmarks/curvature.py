"""Curvature measurements beside curvlinops and a plain double-backward loop.

    python benchmarks/curvature.py [--quick] [--only eigenvalue|trace|growth|resnet]

Every row is a ratio to curvlinops at the same accuracy, measured in one run: the contestants take
turns, and the best of several turns counts. Times are CPU seconds of one thread, which a busy
machine disturbs less than the clock on the wall. Peak memory is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from curvlinops import (
    HessianLinearOperator,
    hutchpp_trace,
    xtrace,
)
from curvlinops.papyan2020traces.spectrum import fast_lanczos
from scipy.sparse.linalg import eigsh
from sklearn.datasets import load_digits
from torch import Tensor, nn

from lpsgd.curvature import hessian_operator, spectral_density, top_eigenvalues, trace
from lpsgd.lab.models import create

CE = nn.CrossEntropyLoss()
TARGET = 0.8  # at most this share of curvlinops' time


class PlainOperator:
    """What one writes by hand: forward, backward and double backward for each product."""

    def __init__(self, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
        self.model, self.data = model, data
        self.parameters = list(model.parameters())
        size = sum(parameter.numel() for parameter in self.parameters)
        self.shape, self.dtype = (size, size), self.parameters[0].dtype
        self.device = self.parameters[0].device

    def __matmul__(self, vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        samples = sum(len(y) for _, y in self.data)
        for x, y in self.data:
            gradient = torch.autograd.grad(CE(self.model(x), y), self.parameters, create_graph=True)
            flat = torch.cat([part.flatten() for part in gradient])
            product = torch.autograd.grad(flat @ vector, self.parameters)
            total += torch.cat([part.flatten() for part in product]) * (len(y) / samples)
        return total


def digits_net(epochs: int = 3, hidden: int = 96) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A net of about 10,000 parameters (in float64), a little trained on real digits."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels) / 16, torch.tensor(labels)
    model = nn.Sequential(
        nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 32), nn.Tanh(), nn.Linear(32, 10)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            CE(model(x[part]), y[part]).backward()
            optimizer.step()
    return model, [(x[:512], y[:512])]


def theirs(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> HessianLinearOperator:
    parameters = list(model.parameters())
    return HessianLinearOperator(model, CE, parameters, data, check_deterministic=False)


def interleaved(contestants: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Best CPU time of each, taking turns."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(turns):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def show(title: str, seconds: dict[str, float], notes: dict[str, str]) -> None:
    print(f"\n{title}")
    reference = seconds["curvlinops"]
    for name, value in seconds.items():
        print(f"  {name:<22} {value * 1e3:10.1f} ms   {value / reference:5.2f}   {notes[name]}")
    verdict = "met" if seconds["lpsgd"] <= TARGET * reference else "MISSED"
    print(f"  target {TARGET} of curvlinops: {verdict}")


def largest_eigenvalue(turns: int) -> None:
    model, data = digits_net()
    reference = theirs(model, data)
    (exact,) = eigsh(reference.to_scipy(dtype=np.float64), 1, which="LA", tol=0, ncv=40)[0]
    size = reference.shape[0]

    def ours(seed: int) -> float:
        return float(
            top_eigenvalues(hessian_operator(model, CE, data), tol=1e-3, seed=seed).values[0]
        )

    def by_eigsh(ncv: int, tol: float, seed: int) -> float:
        start = np.random.default_rng(seed).standard_normal(size)
        operator = theirs(model, data).to_scipy(dtype=np.float64)
        return float(eigsh(operator, 1, which="LA", tol=tol, ncv=ncv, v0=start)[0][0])

    def by_power(seed: int) -> float:
        operator = PlainOperator(model, data)
        vector = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
        value = 0.0
        for _ in range(500):
            vector = vector / vector.norm()
            image = operator @ vector
            previous, value = value, float(vector @ image)
            if abs(value - previous) <= 1e-4 * abs(value):
                break
            vector = image
        return value

    seeds = range(5)

    def worst(method: Callable[[int], float]) -> float:
        return max(abs(method(seed) / exact - 1) for seed in seeds)

    # ARPACK's own choice is ncv = 20; the fastest that is accurate enough stands for curvlinops.
    choices = {
        (ncv, tol): partial(by_eigsh, ncv, tol)
        for ncv in (4, 6, 8, 12, 20)
        for tol in (1e-3, 1e-2, 1e-1)
    }
    good = {choice: run for choice, run in choices.items() if worst(run) <= 1e-3}
    times = {choice: interleaved({"x": partial(run, 0)}, 2)["x"] for choice, run in good.items()}
    ncv, tol = min(times, key=times.__getitem__)
    methods = {
        "lpsgd": ours,
        "curvlinops": good[ncv, tol],
        "plain power iteration": by_power,
    }

    def all_seeds(method: Callable[[int], float]) -> None:
        for seed in seeds:
            method(seed)

    seconds = interleaved({name: partial(all_seeds, run) for name, run in methods.items()}, turns)
    notes = {name: f"worst error {worst(run):.1e}" for name, run in methods.items()}
    notes["curvlinops"] += f" (eigsh, ncv={ncv}, tol={tol})"
    title = f"lambda_max to 1e-3, {size:,} parameters, {len(seeds)} seeds"
    show(title, seconds, notes)


def trace_to_one_percent(turns: int) -> None:
    model, data = digits_net()
    operator = hessian_operator(model, CE, data)
    size = operator.shape[0]
    eye = torch.zeros(size, dtype=torch.float64)
    exact = 0.0
    for index in range(size):  # every diagonal entry
        eye[index] = 1
        exact += float((operator @ eye)[index])
        eye[index] = 0
    seeds = range(16)

    def error(method: Callable[[int], float]) -> float:
        return sqrt(np.mean([(method(seed) / exact - 1) ** 2 for seed in seeds]))

    def seeded(method: Callable[..., Tensor], count: int, seed: int) -> float:
        torch.manual_seed(seed)
        return float(method(theirs(model, data), count))

    def ours(count: int, seed: int) -> float:
        operator = hessian_operator(model, CE, data)
        return trace(operator, count - count // 4, deflate=count // 4, seed=seed).value

    def plain(count: int, seed: int) -> float:
        return trace(
            PlainOperator(model, data), count - count // 4, deflate=count // 4, seed=seed
        ).value

    def cheapest(make: Callable[[int], Callable[[int], float]]) -> tuple[int, Callable, float]:
        """The fewest products that reach 1e-2 as the root mean square error over the seeds."""
        for count in (48, 96, 120, 150, 192, 240, 300, 372):
            method = make(count)
            reached = error(method)
            if reached <= 1e-2:
                break
        return count, method, reached

    candidates = {
        "lpsgd": [cheapest(lambda n: partial(ours, n))],
        "curvlinops": [
            cheapest(lambda n, m=m: partial(seeded, m, n)) for m in (hutchpp_trace, xtrace)
        ],
    }
    # The same estimator on the plain loop: only the products differ.
    count, _, reached = candidates["lpsgd"][0]
    candidates["plain loop"] = [(count, partial(plain, count), reached)]
    chosen = {}
    for name, options in candidates.items():
        valid = [option for option in options if option[2] <= 1e-2] or options
        times = [interleaved({"x": partial(run, 0)}, 2)["x"] for _, run, _ in valid]
        chosen[name] = valid[int(np.argmin(times))]
    seconds = interleaved({name: partial(run, 0) for name, (_, run, _) in chosen.items()}, turns)
    notes = {
        name: f"{count} products, error {reached:.1e}{'' if reached <= 1e-2 else ' (NOT reached)'}"
        for name, (count, _, reached) in chosen.items()
    }
    show(f"trace to 1e-2 (root mean square over {len(seeds)} seeds)", seconds, notes)


def lanczos_probe(method: str, samples: int, steps: int) -> None:
    """One probe on ResNet-18 at width 16."""
    torch.manual_seed(0)
    model = create("resnet18", input_shape=(3, 32, 32), classes=10, width=16).eval()
    data = [(torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,)))]
    if method.startswith("lpsgd"):
        cache_gb = 0.0 if "kept" in method else 8.0
        operator = hessian_operator(model, CE, data, cache_gb=cache_gb)
        spectral_density(operator, 1, steps)
    elif method == "curvlinops":
        fast_lanczos(theirs(model, data), steps)
    else:
        spectral_density(PlainOperator(model, data), 1, steps)


METHODS = ("lpsgd", "lpsgd, nothing kept", "curvlinops", "plain double backward")


def resnet(turns: int, samples: int) -> None:
    runs = {name: partial(lanczos_probe, name, samples, 32) for name in METHODS}
    seconds = interleaved(runs, turns)
    notes = {name: f"peak memory {peak_memory(name, samples):5.0f} MB" for name in METHODS}
    show(f"ResNet-18 of width 16, {samples} samples, one probe of 32 steps", seconds, notes)


def peak_memory(method: str, samples: int) -> float:
    """Megabytes above an idle interpreter, in a process of its own."""
    command = [sys.executable, __file__, "--probe", json.dumps([method, samples, 4])]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(result.stdout.split()[-1])


def resident(field: str) -> float:
    """Megabytes of this process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def growth() -> None:
    """How the cost of a probe grows with parameters, samples and Lanczos steps."""
    print("\nhow the cost of one probe grows (CPU ms)")

    def probe(hidden: int, samples: int, steps: int) -> float:
        model, ((x, y),) = digits_net(0, hidden)
        data = [
            (
                x.repeat(samples // len(x) + 1, 1)[:samples],
                y.repeat(samples // len(y) + 1)[:samples],
            )
        ]
        size = sum(parameter.numel() for parameter in model.parameters())
        run = {"x": lambda: spectral_density(hessian_operator(model, CE, data), 1, steps)}
        seconds = interleaved(run, 3)["x"]
        print(f"  {size:9,} parameters {samples:6,} samples {steps:4} steps {seconds * 1e3:9.1f}")
        return seconds

    for hidden in (48, 192, 768, 3072):
        probe(hidden, 512, 32)
    for samples in (128, 512, 2048, 8192):
        probe(96, samples, 32)
    for steps in (8, 32, 128, 256):
        probe(96, 512, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns and samples")
    parser.add_argument("--only", choices=("eigenvalue", "trace", "growth", "resnet"))
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.probe:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        lanczos_probe(*json.loads(options.probe))
        print(resident("VmHWM") - before)
        return
    turns, samples = (2, 16) if options.quick else (4, 64)
    parts = {
        "eigenvalue": partial(largest_eigenvalue, turns),
        "trace": partial(trace_to_one_percent, turns),
        "growth": growth,
        "resnet": partial(resnet, turns, samples),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
