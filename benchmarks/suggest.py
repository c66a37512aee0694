"""The learning rate that `suggest` names, as a ratio to the winner of a search.

    python benchmarks/suggest.py              # the table of docs/own-model.md; a few minutes
    python benchmarks/suggest.py --steps 400  # a range test of as many steps

The search: powers of 2 from 2^-10 to 1, each trained for 15 epochs with one seed; the lowest loss
on the test set wins. The tasks: scikit-learn's digits by an MLP and a regression on 1,000 points.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd.lab import suggest, train

GRID = tuple(2.0**exponent for exponent in range(-10, 1))
OPTIMIZERS = ("sgd", "adamw", "lpsgd", "lpsgdm", "lpmuon")


def regression() -> tuple[Tensor, Tensor]:
    """What a random network makes of random points, with noise."""
    draws = torch.Generator().manual_seed(5)
    x = torch.randn(1200, 16, generator=draws)
    into, out = torch.randn(16, 32, generator=draws) / 2, torch.randn(32, generator=draws) / 2
    return x, torch.tanh(x @ into) @ out + 0.1 * torch.randn(1200, generator=draws)


def network() -> nn.Module:
    hidden = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def task(name: str) -> dict[str, Any]:
    """What `train` and `suggest` are given."""
    if name == "digits":
        return {"model": "mlp", "dataset": "digits", "epochs": 15}
    x, y = regression()
    data = {"train": (x[:1000], y[:1000]), "test": (x[1000:], y[1000:])}
    return {"model": network, **data, "batch_size": 32, "epochs": 15}


TASKS = {"digits, MLP": "digits", "regression, 1,000 points": "regression"}


def search(name: str, optimizer: str, folder: Path) -> float:
    """The rate of the grid that ends with the lowest test loss."""
    losses = {}
    for lr in GRID:
        run = train(f"{optimizer}:lr={lr}", **task(name), out=folder / f"{name}-{optimizer}-{lr}")
        if run.state == "complete":
            last = run.history[-1]
            losses[lr] = last.get("test_loss", last.get("test_nll"))
    return min(losses, key=losses.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--optimizers", nargs="*", default=OPTIMIZERS)
    parser.add_argument("--steps", type=int, default=100, help="of the range test (default 100)")
    asked = parser.parse_args()
    print(f"| | {' | '.join(asked.optimizers)} |")
    print(f"|---|{'---:|' * len(asked.optimizers)}")
    with tempfile.TemporaryDirectory() as folder:
        for title, name in TASKS.items():
            cells = []
            for optimizer in asked.optimizers:
                with redirect_stdout(sys.stderr):  # the epochs; the table alone is printed
                    winner = search(name, optimizer, Path(folder))
                suggested = suggest(optimizer, **task(name), steps=asked.steps).lr
                edge = ", at the end of the grid" if winner in (GRID[0], GRID[-1]) else ""
                cells.append(f"{suggested / winner:.2g} ({suggested:.2g} / {winner:.2g}{edge})")
            print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
