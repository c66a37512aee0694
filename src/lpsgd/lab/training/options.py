"""How a run is executed, apart from what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe
    from lpsgd.lab.training.parallel.world import World

STRATEGIES = ("ddp", "fsdp2")


@dataclass(frozen=True)
class RunOptions:
    """How a run is executed; none of this changes how its weights move."""

    root: Path | None = None
    workers: int = 0
    save_seconds: float = 60.0
    log: tuple[str, ...] = ()  # of `lpsgd.lab.log.LOGGERS`
    curvature: str | None = None  # as `lpsgd.lab.spectra.options` reads it
    until_epoch: int | None = None  # save and pause after this epoch; later calls resume
    score_test: bool = True  # a search leaves the test set alone
    strategy: str = "ddp"  # how several processes share the network: ddp or fsdp2


def check_strategy(name: str) -> None:
    """Raise UserError, with the nearest name, for a strategy that there is not."""
    if name not in STRATEGIES:
        raise UserError(f"--strategy: {unknown_name('strategy', name, STRATEGIES)}")


def check_options(recipe: Recipe, options: RunOptions, world: World) -> None:
    """Refuse what does not go together, or not with so many processes."""
    sharded = options.strategy == "fsdp2"
    check_strategy(options.strategy)
    if sharded and not world.together:
        raise UserError(
            "--strategy fsdp2 shards the network over processes, and this one is alone: "
            "start them with torchrun --nproc-per-node N -m lpsgd train ..."
        )
    if world.together and recipe.problem is not None and recipe.problem.metrics:
        raise UserError(
            f"dataset={recipe.dataset} is your own, and torchrun's processes share the batches of "
            "the laboratory's data sets alone; train in one process, without torchrun"
        )
    if options.curvature is not None and world.size > 1:
        raise UserError(
            "--curvature is measured by one process; train without it, and measure the "
            "checkpoints with lpsgd spectrum"
        )
    if recipe.batch_size // recipe.accumulate < world.size:
        parts = f" in accumulate={recipe.accumulate} parts" if recipe.accumulate > 1 else ""
        raise UserError(
            f"batch_size={recipe.batch_size}{parts} has no row for each of {world.size} processes: "
            "it is the size of the whole batch, of which each takes its share"
        )
    if world.together and recipe.create_graph:
        raise UserError(
            f"{recipe.optimizer} needs second derivatives (create_graph), which torch's DDP "
            "and FSDP2 do not give; train in one process, without torchrun"
        )
    if sharded and recipe.precision == "fp16":
        raise UserError(
            "precision=fp16 does not work with --strategy fsdp2: its loss scaler looks at the "
            "part of a gradient that lies here alone; use bf16, or --strategy ddp"
        )
