"""A character-level GPT on the manual that ships with Python: AdamW against LPSGDM, with a plot.

    python examples/gpt.py [--steps 400] [--out gpt]

Same initial weights, same batches, same cosine learning rate and decay for all. The learning rates
were tried by factors of three on the validation part of the text; the curves are of the test part.
LPSGDM is shown twice: as in the paper, where annealing p also shrinks the step, and with
normalize="rms", where a learning rate means the same for every p. One seed and a short run:
see it as an example, not as a comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpsgd import LPSGDM, CosineP, param_groups
from lpsgd.lab.data import Data, load
from lpsgd.lab.models import create
from lpsgd.lab.report.style import canvas, legend_below, save_figure

CONTEXT, BATCH, WIDTH, EVALUATIONS = 32, 16, 32, 10
LEARNING_RATES = {"AdamW": 3e-3, "LPSGDM": 3e-3, "LPSGDM, rms": 1e-3}


def optimizer_for(name: str, model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    groups = param_groups(model, weight_decay=0.1)
    if name == "AdamW":
        return torch.optim.AdamW(groups, lr=lr)
    normalize = "rms" if name.endswith("rms") else None
    return LPSGDM(groups, lr=lr, p=CosineP(6, total_steps=steps), normalize=normalize)


def batches(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches without end."""
    epoch = 0
    while True:
        yield from data.train.epoch(epoch)
        epoch += 1


@torch.no_grad()
def evaluate(model: nn.Module, loader: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> float:
    """The mean loss, in nats for a character."""
    losses = [cross_entropy(model(text), following).item() for text, following in loader()]
    return sum(losses) / len(losses)


def train(
    name: str, lr: float, steps: int, data: Data, part: str = "test"
) -> list[tuple[int, float]]:
    """Train once; (step, loss on ``part``) at ten times along the way."""
    torch.manual_seed(0)
    model = create("gpt", input_shape=data.input_shape, classes=data.classes, width=WIDTH)
    optimizer = optimizer_for(name, model, lr, steps)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    held_out = getattr(data, part)
    curve = []
    for step, (text, following) in zip(range(1, steps + 1), batches(data), strict=False):
        loss = cross_entropy(model(text), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % max(1, steps // EVALUATIONS) == 0:
            curve.append((step, evaluate(model, lambda: held_out.epoch(0))))
            print(f"{name:12} step {step:5}   {part} loss {curve[-1][1]:.3f}", flush=True)
    return curve


def plot(curves: dict[str, list[tuple[int, float]]], out: Path) -> None:
    with canvas(5.5, 3.6) as figure:
        axes = figure.add_subplot()
        for name, curve in curves.items():
            axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=name)
        axes.set_xlabel("step")
        axes.set_ylabel("test loss (nats for a character)")
        legend_below(figure)
    for path in save_figure(figure, out.with_suffix("")):
        print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a character-level GPT: AdamW against LPSGDM")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps (default 400)")
    parser.add_argument("--out", type=Path, default=Path("gpt"), help="of gpt.svg and gpt.png")
    options = parser.parse_args(arguments)
    data = load("text", context=CONTEXT, batch_size=BATCH, val_size=64, test_size=64)
    plot(
        {name: train(name, lr, options.steps, data) for name, lr in LEARNING_RATES.items()},
        options.out,
    )


if __name__ == "__main__":
    main()
