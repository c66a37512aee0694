"""The laboratory: recipe -> plan -> execute -> record -> analyse -> show.

`compare`, `sweep`, `train`, `suggest` and `spectrum` are its functions, on the networks and data
sets that it brings or on the user's own; the commands of the same names call them.

Its stages speak through files: a run is a folder, and everything after training reads only those
folders. Nothing here is imported by ``import lpsgd``.
"""

from typing import TYPE_CHECKING

from lpsgd._lazy import lazily

if TYPE_CHECKING:
    from lpsgd.lab.api.compare import compare
    from lpsgd.lab.api.spectrum import spectrum
    from lpsgd.lab.api.suggest import suggest
    from lpsgd.lab.api.sweep import sweep
    from lpsgd.lab.api.train import train

__all__ = ["compare", "spectrum", "suggest", "sweep", "train"]

__getattr__, __dir__ = lazily(__name__, {name: f"api.{name}" for name in __all__})
