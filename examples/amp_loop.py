"""A plain loop with automatic mixed precision and GradScaler, stopped and resumed.

    python examples/amp_loop.py

GradScaler leaves out the step of a batch whose gradient overflowed. Such a step does not count: p
waits for it, and the optimizer's state is as if the batch had not been.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from lpsgd import LPSGDM, CosineP

STEPS = 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# float16 is what needs a scaler; a CPU computes in bfloat16, where the loop is the same
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Batch number ``step``: a pure function of the number, so that a resumed run sees the same."""
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step)).to(DEVICE)
    return x, (x[:, :1] - x[:, 1:2]).tanh()


def train(checkpoint: Path, stop: int = STEPS, overflow_at: int | None = None) -> list[float]:
    """Train from the checkpoint, if there is one, to step ``stop``; the losses of these steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1)).to(DEVICE)
    optimizer = LPSGDM(model.parameters(), lr=1e-2, p=CosineP(6, total_steps=STEPS))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        first = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    losses = []
    for step in range(first, stop):
        x, y = batch_of(step)
        if step == overflow_at:
            x = x * float("inf")
        with torch.autocast(DEVICE, DTYPE):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # the gradient's true size, for clipping
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())

    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"step": stop}, checkpoint)
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder, "whole.pt"))
        first = train(Path(folder, "parts.pt"), stop=12)
        second = train(Path(folder, "parts.pt"))
    print(f"loss {whole[0]:.4f} -> {whole[-1]:.4f}")
    print(f"resumed at step 12: the same losses: {first + second == whole}")


if __name__ == "__main__":
    main()
