"""The rows of metrics.jsonl for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TensorBoard:
    """The same numbers for TensorBoard."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what was written of epochs that are now trained again is hidden
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_epoch)

    def add(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        self._writer.close()
