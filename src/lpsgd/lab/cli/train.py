"""``lpsgd train``: one run."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd.lab.cli.data import Root
from lpsgd.lab.cli.options import (
    AllowImport,
    AsJson,
    RecipeFile,
    SaveSeconds,
    TensorBoard,
    Workers,
    read_values,
    with_recipe_options,
)
from lpsgd.lab.errors import LabError
from lpsgd.lab.events import (
    CurvatureEvent,
    CurvatureProgressEvent,
    EpochEvent,
    RunEvent,
    RunListener,
    StartEvent,
    StepEvent,
    WarningEvent,
)
from lpsgd.lab.spectra.options import OPTIONS_HELP, parse_options
from lpsgd.lab.store.jsonio import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXAMPLE = """

**Example**: a small network on real digits, in seconds

    lpsgd train --model mlp --optimizer lpsgdm:lr=1e-3,p=6 --epochs 20

The same command goes on where it was stopped, to the same result.

**Example**: the same run, each batch shared by two processes (a GPU each, if there are any)

    torchrun --nproc-per-node 2 -m lpsgd train --model mlp --optimizer lpsgdm:lr=1e-3,p=6
"""


@with_recipe_options()
def train(
    given: dict[str, Any],
    *,
    optimizer: Annotated[
        str | None,
        typer.Option(help="NAME, NAME:setting=value,... or package.module:Name. [default: lpsgdm]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    recipe: RecipeFile = None,
    allow_import: AllowImport = False,
    root: Root = None,
    workers: Workers = 0,
    save_seconds: SaveSeconds = 60.0,
    tensorboard: TensorBoard = False,
    curvature: Annotated[
        str | None,
        typer.Option(
            metavar="every=5,...",
            help=f"Measure the Hessian's spectrum while training: {OPTIONS_HELP}",
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="ddp|fsdp2",
            help="Under torchrun: copy the network to every process, or cut it over them.",
        ),
    ] = "ddp",
    as_json: AsJson = False,
) -> int:
    """Train one network with one optimizer, exactly resumable."""
    from lpsgd.lab.plan import resolve, run_folder
    from lpsgd.lab.training.distributed import joined, launched
    from lpsgd.lab.training.loop import RunOptions, stop_on_signals
    from lpsgd.lab.training.loop import train as run_training

    if curvature is not None:
        parse_options(curvature)  # a mistake is told before anything is loaded
    source = f"--recipe {recipe}" if recipe else "recipe"
    options = RunOptions(root, workers, save_seconds, tensorboard, curvature, strategy=strategy)
    with stop_on_signals(patient=launched()) as stop, joined() as world:
        values = read_values(recipe, given)
        complete = resolve(values, optimizer, source=source, allow_import=allow_import)
        folder = out or run_folder(complete)
        with _show(complete.epochs) if world.main else nullcontext(lambda event: None) as listen:
            result = run_training(
                complete, folder, options=options, stop=stop, listen=listen, world=world
            )
        if as_json and world.main:
            print(json.dumps(encode({"folder": str(folder), **result})))
        if result["state"] == "diverged":
            raise LabError(f"diverged: {result['reason']}. The run is in {folder}")
        if not as_json and world.main:
            print(f"complete; the run is in {folder}")
    return 0


train.__doc__ = (train.__doc__ or "") + EXAMPLE


class _show:
    """Tell of a run on stderr: a progress bar on a terminal, a line for each epoch elsewhere."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._bar: Any = None
        self._measuring: Callable[[], None] = lambda: None

    def __enter__(self) -> RunListener:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, TimeRemainingColumn

            self._bar = Progress(
                *Progress.get_default_columns()[:-1],
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task("training", total=None)
        return self._listen

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _listen(self, event: RunEvent) -> None:
        match event:
            case StartEvent():
                self._update(total=event.total_steps, completed=event.step)
            case StepEvent():
                self._update(completed=event.step)
            case EpochEvent(metrics=row):
                self._say(_epoch_line(row, self._epochs))
                self._update(completed=row["step"])
            case WarningEvent():
                self._say(f"warning: {event.text}")
            case CurvatureEvent():
                self._say(event.text)
            case CurvatureProgressEvent():
                # the time left of a measurement: a second bar while it is made, or lines
                if event.done == 1:
                    self._measuring = self._begin_products(event.label, event.total)
                self._measuring()

    def _update(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **changes)

    def _begin_products(self, label: str, total: int) -> Callable[[], None]:
        if self._bar is None:
            from lpsgd.curvature.progress import PlainProgress

            return PlainProgress(label, total, sys.stderr)
        task = self._bar.add_task(label, total=total)

        def advance() -> None:
            self._bar.advance(task)
            if self._bar.tasks[-1].finished:
                self._bar.remove_task(task)

        return advance

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def _epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    p = "" if row["p"] is None else f"  p {row['p']:.3g}"
    return (
        f"epoch {row['epoch']}/{epochs}  train NLL {row['train_nll']:.4f}  "
        f"test NLL {row['test_nll']:.4f}  top-1 {row['test_top1']:.2f} %  "
        f"lr {row['lr']:.3g}{p}  {row['images_per_second']:.0f} images/s"
    )
