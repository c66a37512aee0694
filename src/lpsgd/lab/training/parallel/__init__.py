"""One run on several processes: who they are, how they share the network, how they save it."""

from __future__ import annotations

import os

_MEMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether torchrun, or something that does as it does, started this process."""
    return all(name in os.environ for name in _MEMBERS)
