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
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd import LPMuon, param_groups
from lpsgd._schatten import FLOOR, by_eigenvalues, by_products, lp_matrix_direction
from lpsgd.lab import models

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


def resnet() -> tuple[nn.Module, Tensor, Tensor]:
    """ResNet-18 with batches of 128 images of 32 x 32."""
    model = models.create("resnet18", input_shape=(3, 32, 32), classes=10, width=64)
    return model, torch.randn(128, 3, 32, 32), torch.randint(10, (128,))


def gpt() -> tuple[nn.Module, Tensor, Tensor]:
    """A GPT of 0.9 M parameters with batches of 16 x 64 sub-words."""
    model = models.create("gpt", input_shape=(64,), classes=1024, width=128)
    return model, torch.randint(1024, (16, 64)), torch.randint(1024, (16 * 64,))


def wide_mlp() -> tuple[nn.Module, Tensor, Tensor]:
    """Layers of 512 units with batches of 128: the worst case."""
    model = models.create("mlp", input_shape=(1, 32, 32), classes=10, width=128)
    return model, torch.randn(128, 1, 32, 32), torch.randint(10, (128,))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "ResNet-18, width 64, batch 128": resnet,
    "GPT of 0.9 M, batch 16 x 64": gpt,
    "MLP of 512 units, batch 128": wide_mlp,
}


def shares(network: str, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Seconds of an optimizer's step and of forward and backward of one network."""
    torch.manual_seed(0)
    model, x, y = NETWORKS[network]()

    def gradients() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    gradients()
    calls: dict[str, Callable[[], Any]] = {
        "LPMuon": LPMuon(param_groups(model, muon=True)).step,
        "LPMuon, products": LPMuon(param_groups(model, muon=True), exact=False).step,
        "AdamW fused": torch.optim.AdamW(model.parameters(), fused=True).step,
        "forward and backward": gradients,
    }
    clock = time.process_time if threads == 1 else time.perf_counter
    times = best_times(calls, rounds, clock)
    rest = times.pop("forward and backward")
    return {name: {"step": t, "rest": rest, "share": t / (t + rest)} for name, t in times.items()}


# ------------------------------------------------------------------ accuracy for each product

# Amsel et al. (2025), for singular values from 1e-3 to 1
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
MUON = ((3.4445, -4.7750, 2.0315),) * 5


def polynomials(s: Tensor, chain: Sequence[tuple[float, float, float]]) -> tuple[Tensor, int]:
    """Composed odd polynomials of singular values, and the products: three for each stage."""
    for a, b, c in chain:
        s = s * (a + b * s**2 + c * s**4)
    return s, 3 * len(chain)


def coupled_newton(s: Tensor, root: int, steps: int) -> tuple[Tensor, int]:
    """s times the inverse ``root`` of s^2 + FLOOR^2, by the coupled iteration of Guo and Higham.

    M <- A^r M and Y <- A Y for A = ((r+1) - M)/r, from M = G, Y = 1: two sequences, as powers that
    are not 0 need. Its products: those of A^r and two more, the Gram matrix and the last one.
    """
    gram = s**2 + FLOOR**2
    scale = (root + 1) / 2 / gram.max()
    m, y = gram * scale, torch.ones_like(s) * scale ** (1 / root)
    for _ in range(steps):
        a = ((root + 1) - m) / root
        m, y = a**root * m, a * y
    power = {2: 1, 3: 2, 4: 2}[root]
    return s * y, steps * (power + 2) + 2


def accuracy() -> list[tuple[str, float, int, float]]:
    """(way, alpha, matrix products, rms of the relative error) over [FLOOR, 1], evenly in log."""
    s = torch.logspace(math.log10(FLOOR), 0, 1001, dtype=torch.float64)
    found = []
    for alpha, root in ((0.0, 2), (1 / 3, 3), (0.5, 4)):
        target = s * (s**2 + FLOOR**2) ** ((alpha - 1) / 2)
        ours = by_products((s**2).diag(), alpha).diagonal() * s
        ways = [("composed polynomials, combined (ours)", target, ours, 19)]
        if alpha == 0:  # these have no floor: they aim at 1
            ways.append(("Newton-Schulz (Muon)", s**0, *polynomials(s, MUON)))
            ways.append(("Polar Express", s**0, *polynomials(s, POLAR_EXPRESS)))
        for n in (5, 10, 15):
            ways.append((f"coupled Newton, {n} steps", target, *coupled_newton(s, root, n)))
        for way, wanted, made, products in ways:
            # a scale common to all singular values is the learning rate's business
            ratio = made / wanted
            error = ratio * ratio.mean() / ratio.square().mean() - 1
            found.append((way, alpha, products, float(error.square().mean().sqrt())))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--threads", type=int, default=1, help="of the training step")
    parser.add_argument("--json", action="store_true", help="print numbers for a program to read")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    layer, small = directions(asked.rounds), steps(asked.rounds)
    torch.set_num_threads(asked.threads)
    training = {n: shares(n, max(2, asked.rounds // 2), asked.threads) for n in NETWORKS}
    total = {way: sum(times[way] for times in layer.values()) for way in WAYS}
    ratio = total["exact, p = inf"] / total["Newton-Schulz"]
    share = training["ResNet-18, width 64, batch 128"]["LPMuon"]["share"]
    if asked.json:
        tables = {"layer": layer, "ratio": ratio, "small": small, "training": training}
        tables["accuracy"] = accuracy()
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
    for network, rows in training.items():
        print(f"\n{network}, threads: {asked.threads}")
        for name, row in rows.items():
            print(
                f"  {name:22}{row['step'] * 1e3:9.1f} ms beside {row['rest'] * 1e3:.0f} ms: "
                f"{100 * row['share']:.1f} % of a training step"
            )
    print("\npowers of singular values from 1/256 to 1: matrix products, rms of the relative error")
    for way, alpha, products, error in accuracy():
        print(f"  alpha = {alpha:.2f}  {way:40}{products:5}{100 * error:9.2f} %")
    print("\ntargets")
    for what, value, bound in (
        ("exact direction over Newton-Schulz, GPT-2's shapes", ratio, TARGET_DIRECTION),
        ("share of a ResNet-18 training step", share, TARGET_SHARE),
    ):
        print(
            f"  {'reached' if value <= bound else 'MISSED':8}{value:6.2f} (at most {bound}) {what}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
