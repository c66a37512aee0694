"""The data of a run, and the processes that decode its images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from lpsgd.lab import data as datasets
from lpsgd.lab.errors import LabError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.options import RunOptions

if TYPE_CHECKING:
    from lpsgd.lab.data import Data


def load_data(recipe: Recipe, options: RunOptions, device: torch.device) -> Data:
    """Load the data of a recipe."""
    return datasets.load(
        recipe.dataset,
        options.root,
        seed=recipe.seed,
        train_size=recipe.train_size,
        val_size=recipe.val_size,
        test_size=recipe.test_size,
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        device=str(device),
        workers=options.workers,
        **recipe.data,
    )


@contextmanager
def image_workers_watched() -> Iterator[None]:
    """An error of our own for a DataLoader worker that was killed, mostly for want of memory.

    Torch raises it in a signal handler: wherever the main thread happens to be.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        if not text.startswith("DataLoader worker"):
            raise
        raise LabError(
            f"a process that decodes images was lost: {text} What was saved before is kept."
        ) from error
