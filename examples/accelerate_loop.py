"""LPSGDM in a loop of Hugging Face Accelerate, with accumulation, saved and resumed.

python examples/accelerate_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lpsgd import LPSGDM, CosineP

EPOCHS, BATCH, ACCUMULATION = 4, 16, 2


def train(folder: Path, epochs: int = EPOCHS) -> list[float]:
    """Train from what is saved in ``folder``, if anything, for ``epochs`` in all; the losses."""
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    x = torch.randn(128, 16)
    data = TensorDataset(x, (x[:, :1] - x[:, 1:2]).tanh())
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 1))
    steps = EPOCHS * len(data) // (BATCH * ACCUMULATION)  # p counts optimizer steps, not batches
    optimizer = LPSGDM(model.parameters(), lr=1e-2, p=CosineP(6, total_steps=steps))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loader = DataLoader(data, BATCH, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    done = 0
    if folder.exists():
        accelerator.load_state(str(folder))  # weights, momentum, count, rates, random numbers
        done = scheduler.scheduler.last_epoch * EPOCHS // steps
    losses = []
    for _ in range(done, epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = (model(inputs) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    accelerator.save_state(str(folder))
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder, "whole"))
        parts = train(Path(folder, "parts"), epochs=2) + train(Path(folder, "parts"))
    print(f"loss {whole[0]:.4f} -> {whole[-1]:.4f}")
    print(f"resumed after 2 epochs: the same losses: {parts == whole}")


if __name__ == "__main__":
    main()
