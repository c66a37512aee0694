"""How a run is executed, apart from what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; none of this changes how its weights move."""

    root: Path | None = None
    workers: int = 0
    save_seconds: float = 60.0
    tensorboard: bool = False
    curvature: str | None = None  # as `lpsgd.lab.spectra.options` reads it
    until_epoch: int | None = None  # save and pause after this epoch; later calls go on
    score_test: bool = True  # a search leaves the test set alone
    strategy: str = "ddp"  # how several processes share the network: ddp or fsdp2
