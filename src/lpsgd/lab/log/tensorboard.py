"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from lpsgd.lab.log.interface import LoggedRun

_LAST = "optimizer_seconds"  # of what is written of an epoch: where it is, the others are


class TensorBoardLogger:
    """Writes ``RUN/tensorboard``."""

    _writer: SummaryWriter

    def check(self) -> None:
        """It needs nothing but the folder."""

    def start(self, run: LoggedRun) -> Container[int]:
        """Add an event file to those of earlier sessions."""
        folder = run.folder / "tensorboard"
        there = _epochs(folder)
        self._writer = SummaryWriter(str(folder))
        return there

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write the scalars, and to disk: the writer would wait two minutes."""
        for name in sorted(values, key=lambda name: name == _LAST):
            if name != "step":
                self._writer.add_scalar(name, values[name], epoch)
        self._writer.flush()

    def finish(self, state: str) -> None:
        """Close the event file."""
        self._writer.close()


def _epochs(folder: Path) -> set[int]:
    """The epochs that event files in ``folder`` hold."""
    if not folder.is_dir():
        return set()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    if _LAST not in events.Tags()["scalars"]:
        return set()
    return {event.step for event in events.Scalars(_LAST)}


make = TensorBoardLogger
