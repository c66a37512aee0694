"""LPSGDM beside SGD and AdamW on real handwritten digits: one network, three seeds, one table.

    python examples/quickstart.py [--lr 3e-3]

scikit-learn's 1797 images of 8 x 8 pixels; 1437 to train on, 360 to test with. Each optimizer gets
the same initial weights and the same batches for a seed. LPSGDM starts at the advised rate of 1e-2
(then try 3e-3 and 3e-2, with --lr); those of SGD and AdamW were tried on a part of the training
set.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpsgd import LPSGDM, CosineP

EPOCHS, BATCH, SEEDS = 15, 64, (0, 1, 2)
LEARNING_RATES = {"SGD": 0.1, "AdamW": 3e-3, "LPSGDM": 1e-2}


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train and test images and labels; every fifth image is a test image."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def optimizer_for(name: str, model: nn.Module, steps: int) -> torch.optim.Optimizer:
    lr = LEARNING_RATES[name]
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    # p falls from 6 to 2 over the run: that is the method
    return LPSGDM(model.parameters(), lr=lr, p=CosineP(6, total_steps=steps), weight_decay=0.01)


def train(name: str, seed: int, on_epoch: Callable[[], None]) -> tuple[float, float, float]:
    """Train once; the final training loss, test accuracy in percent, and seconds."""
    images, labels, test_images, test_labels = data()
    torch.manual_seed(seed)
    model = network()
    batches = torch.Generator().manual_seed(seed)
    per_epoch = len(labels) // BATCH
    optimizer = optimizer_for(name, model, EPOCHS * per_epoch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * per_epoch)
    begin = time.perf_counter()
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels), generator=batches)[: per_epoch * BATCH]
        running = 0.0
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item() / per_epoch
        on_epoch()
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean()
    return running, 100 * right.item(), seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = LEARNING_RATES["LPSGDM"]
    parser.add_argument("--lr", type=float, default=default, help=f"of LPSGDM [{default:g}]")
    LEARNING_RATES["LPSGDM"] = parser.parse_args(arguments).lr
    console = Console()
    console.print(f"Handwritten digits: {EPOCHS} epochs, {len(SEEDS)} seeds for each optimizer\n")
    heads = ("optimizer", "train loss", "test accuracy", "seconds")
    table = Table(*heads, title="After the last epoch")
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bars = {name: progress.add_task(name, total=EPOCHS * len(SEEDS)) for name in LEARNING_RATES}
        for name, bar in bars.items():
            runs = [train(name, seed, lambda bar=bar: progress.advance(bar)) for seed in SEEDS]
            losses, accuracies, seconds = zip(*runs, strict=True)
            table.add_row(
                name,
                f"{statistics.mean(losses):.4f}",
                f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f} %",
                f"{statistics.mean(seconds):.1f}",
            )
    console.print(table)
    console.print(
        "± is the standard deviation over seeds. Three seeds tell little: "
        "differences of this size are mostly chance."
    )


if __name__ == "__main__":
    main()
