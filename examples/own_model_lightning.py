"""Compare optimizers on a Lightning module, through its own training step.

    python examples/own_model_lightning.py [FOLDER]

`step` calls the module's method; its `configure_optimizers` is not used, and no Trainer is needed.
"""

from __future__ import annotations

import sys

import lightning
import torch
from torch import Tensor, nn

from lpsgd.lab import compare


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Tensor]:
        x, y = batch
        error = self.network(x).squeeze(1) - y
        return {"loss": error.square().mean(), "mae": error.abs().mean()}


def step(module: Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return module.training_step(batch, 0)


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return x, torch.sin(x[:, 0]) + x[:, 1] * x[:, 2]


if __name__ == "__main__":
    result = compare(
        ["sgd:lr=0.03", "adamw:lr=3e-3", "lpsgdm:lr=1e-2"],
        model=Module,
        train=data(512, seed=1),
        test=data(256, seed=2),
        step=step,
        metrics={"mae": "min"},  # what step returns beside the loss
        batch_size=32,
        epochs=3,
        seeds=2,
        out=sys.argv[1] if len(sys.argv) > 1 else "runs/lightning",
    )
    print(result)
