"""LPSGDM in Lightning, with automatic and with manual optimization, from a checkpoint too.

python examples/lightning_module.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from lpsgd import LPSGDM, CosineP, param_groups

EPOCHS, BATCH = 4, 16


class Automatic(lightning.LightningModule):
    """Lightning calls zero_grad, backward and step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
        self.losses: list[float] = []

    def configure_optimizers(self):
        steps = int(self.trainer.estimated_stepping_batches)  # of the whole training
        groups = param_groups(self, weight_decay=0.01)
        optimizer = LPSGDM(groups, lr=1e-2, p=CosineP(6, total_steps=steps))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        loss = (self.network(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss


class Manual(Automatic):
    """The same, with the three calls written out."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = super().training_step(batch, number)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        return loss


class EpochOrder(RandomSampler):
    """Shuffles by the number of the epoch, so that a resumed run sees the same order."""

    def set_epoch(self, epoch: int) -> None:  # Lightning calls it
        self.generator = torch.Generator().manual_seed(epoch)


class StopAfter(Callback):
    """Ends the training after an epoch, as a job's time limit would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer, module) -> None:
        trainer.should_stop = trainer.current_epoch + 1 >= self.epoch


def train(kind: type[Automatic], folder: Path, *, stop: int | None = None) -> list[float]:
    """Train from the folder's last checkpoint, if there is one; the losses."""
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, :1] - x[:, 1:2]).tanh())
    loader = DataLoader(data, BATCH, sampler=EpochOrder(data))
    checkpoint = ModelCheckpoint(dirpath=folder, save_last=True)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        callbacks=[checkpoint, *([StopAfter(stop)] if stop else [])],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = kind()
    last = folder / "last.ckpt"
    trainer.fit(module, loader, ckpt_path=last if last.exists() else None, weights_only=True)
    return module.losses


def main() -> None:
    for kind in (Automatic, Manual):
        with tempfile.TemporaryDirectory() as folder:
            whole = train(kind, Path(folder, "whole"))
            parts = train(kind, Path(folder, "parts"), stop=2) + train(kind, Path(folder, "parts"))
        print(f"{kind.__name__}: loss {whole[0]:.4f} -> {whole[-1]:.4f}", end="")
        print(f"; resumed after 2 epochs: the same losses: {parts == whole}")


if __name__ == "__main__":
    main()
