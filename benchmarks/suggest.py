"""The learning rate that `suggest` names, as a ratio to the winner of a search.

    python benchmarks/suggest.py    # the tables of docs/own-model.md; a few minutes

The search: powers of 2 from 2^-10 to 1, each trained for 15 epochs with one seed; the lowest loss
on the test set wins. The tasks: scikit-learn's digits by an MLP and a regression on 1,000 points.
A second table has what four times as many steps of the range test suggest, over the suggestion.
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


def beside_the_search(name: str, optimizer: str) -> str:
    """The suggestion over the winner, and both."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):  # the epochs
        winner = search(name, optimizer, Path(folder))
    suggested = suggest(optimizer, **task(name)).lr
    edge = ", at the end of the grid" if winner in (GRID[0], GRID[-1]) else ""
    return f"{suggested / winner:.2g} ({suggested:.2g} / {winner:.2g}{edge})"


def with_more_steps(name: str, optimizer: str) -> str:
    """What 400 steps suggest, over what 100 do."""
    more, usual = (suggest(optimizer, **task(name), steps=steps).lr for steps in (400, 100))
    return f"{more / usual:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--optimizers", nargs="*", default=OPTIMIZERS)
    asked = parser.parse_args()
    for title, cell in {"over the search": beside_the_search, "400 steps": with_more_steps}.items():
        print(f"| {title} | {' | '.join(asked.optimizers)} |")
        print(f"|---|{'---:|' * len(asked.optimizers)}")
        for row, name in TASKS.items():
            cells = [cell(name, optimizer) for optimizer in asked.optimizers]
            print(f"| {row} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
