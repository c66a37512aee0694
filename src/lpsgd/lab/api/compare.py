"""`lpsgd.lab.compare`: several optimizers, several seeds, one honest table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd._suggest import unknown_name
from lpsgd.lab.api.arguments import (
    Optimizer,
    Own,
    read_executor,
    read_folder,
    read_optimizers,
    read_seeds,
    read_training,
)
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.api.comparison_result import ComparisonResult

DEFAULT_OPTIMIZERS = ("sgd", "adamw", "lion", "lpsgdm")


def compare(
    optimizers: Optimizer | Sequence[Optimizer] = DEFAULT_OPTIMIZERS,
    *,
    model: Callable[[], nn.Module] | str | None = None,
    train: Any = None,
    test: Any = None,
    val: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    step: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    seeds: int | Sequence[int] = 3,
    reference: str | None = None,
    out: Path | str | None = None,
    jobs: int | None = None,
    executor: str | ExecutorChoice = "local",
    root: Path | str | None = None,
    workers: int = 0,
    save_seconds: float = 60.0,
    log: str | Sequence[str] = (),
    recipes: Sequence[Path | str] | None = None,
    allow_import: bool = False,
    **recipe: Any,
) -> ComparisonResult:
    """Train with several optimizers and seeds, and test which differences are real.

    All optimizers see the same first weights and the same batches for each seed, so that they can
    be compared seed by seed. What is complete in the folder is not trained again: after a stop, or
    a crash, the same call resumes, bit for bit.

    Args:
        optimizers: names with settings as on the command line (``"adamw:lr=3e-3"``), classes,
            ``functools.partial`` of classes, or functions that make one for a model. The first is
            what the others are tested against. A class has its own defaults; ``LPSGD`` and
            ``LPSGDM`` have p annealed, as by name.
        model: a function without arguments that returns a new network at each call, and is seeded
            before; or the name of one of the laboratory's.
        train: a ``Dataset``, a ``DataLoader``, ``(inputs, targets)`` as tensors, or a function of
            the seed that returns one of them or ``(train, test)``. Without it, ``dataset`` names
            one of the laboratory's.
        test: what the optimizers are compared on, in the same forms.
        val: for a search; see `sweep`.
        loss: ``loss(output, target)``, one number. Without it, cross-entropy for classes, its
            binary form for truth values, the squared error for numbers, and for a batch that is a
            mapping what the model itself returns as ``loss``.
        metrics: by name ``metric(output, target)``, one number for a batch, of which the mean over
            all examples is taken. The first one decides. Whether high or low is good follows from
            a common name, else from ``(metric, "max")`` or ``(metric, "min")``.
        step: ``step(model, batch)`` for everything else: returns the loss, or a mapping with
            ``loss`` and other numbers, which ``metrics={"name": "max"}`` can take up.
        collate: makes a batch of examples; torch's ``default_collate`` if not given.
        seeds: how many runs of each optimizer, or which seeds; 5 or more for a verdict.
        reference: the label of the optimizer that the others are tested against.
        out: the comparison's folder.
        jobs: runs at once; 0 trains in this process. Default: as many as there are cores.
        executor: ``"local"``, or ``"ray"`` for model and data by import path.
        root: the folder of the laboratory's data sets.
        workers: processes that read examples.
        save_seconds: time between checkpoints.
        log: where else the metrics go: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, or several.
        recipes: instead of ``optimizers``: files, or folders of files, such as a sweep's winners.
        allow_import: let those files name import paths, which run code.
        recipe: what else decides the training, by the names of the command's options:
            ``epochs``, ``batch_size``, ``clip_norm``, ``precision``, ``dataset``, ...

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from lpsgd.lab import compare
        >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        >>> y = (x.sum(1) > 0).long()
        >>> result = compare(
        ...     ["sgd:lr=0.1", "adamw:lr=1e-2"],
        ...     model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        ...     train=(x[:192], y[:192]), test=(x[192:], y[192:]),
        ...     epochs=2, batch_size=32, seeds=2, jobs=0, out=tempfile.mkdtemp(),
        ... )
        >>> [(row["optimizer"], row["seeds"]) for row in result.rows]
        [('sgd', 2), ('adamw', 2)]
    """
    from lpsgd.lab.labels import labels
    from lpsgd.lab.log import check_loggers, logger_names
    from lpsgd.lab.plan import plan_comparison, plan_recipes, recipe_files
    from lpsgd.lab.recipe import read_recipe_file, refuse_imports

    loggers = logger_names(log)
    own = Own(model, train, test, val, loss, metrics, step, collate)
    where, numbers, choice = read_folder(out), read_seeds(seeds), read_executor(executor, jobs)
    if recipes:
        paths = [Path(path) for path in recipes]
        files = recipe_files(paths)
        reference = _reference(reference, list(files))
        path = next(iter(files.values()))
        first = read_recipe_file(path, option="--recipes")
        refuse_imports(first, f"--recipes {path}", allow_import=allow_import)
        training = read_training(own, recipe, numbers[0], beside=first)
        folder, tasks = plan_recipes(
            paths,
            training.values,
            numbers,
            where,
            allow_import=allow_import,
            problem=training.problem,
        )
    else:
        texts = read_optimizers(optimizers)
        names = labels(texts)
        reference = _reference(reference, names, texts)
        training = read_training(own, recipe, numbers[0])
        folder, tasks = plan_comparison(
            training.values, texts, numbers, where, problem=training.problem
        )
        _say_doubts(tasks)

    # what takes seconds to load, when every name has been checked
    from lpsgd.lab.api.comparison_result import ComparisonResult
    from lpsgd.lab.execution.run import run_tasks
    from lpsgd.lab.store.manifest import write_comparison
    from lpsgd.lab.training.options import RunOptions

    check_loggers(loggers)
    write_comparison(folder, tasks, list(dict.fromkeys(task.label for task in tasks)), reference)
    options = RunOptions(read_folder(root), workers, save_seconds, loggers)
    failures = run_tasks(tasks, choice, options, problem=training.problem)
    problem = "\n  ".join([f"{len(failures)} runs failed:", *failures]) if failures else None
    try:
        return ComparisonResult.read(folder, failed=problem)
    except LabError as error:
        raise LabError("\n".join(filter(None, [problem, str(error)]))) from error


def _say_doubts(tasks: Sequence[Any]) -> None:
    from lpsgd.lab.defaults import doubts

    if note := doubts(task.recipe for task in tasks):
        print(f"lpsgd: {note}", file=sys.stderr)


def _reference(asked: str | None, labels: Sequence[str], optimizers: Sequence[str] = ()) -> str:
    """The label that the others are tested against: the one asked for, else the first.

    It may be spelt as in the table or as in the list of optimizers.
    """
    if asked in optimizers:
        return labels[optimizers.index(asked)]
    if asked is not None and asked not in labels:
        raise UserError(f"--reference: {unknown_name('label', asked, labels)}")
    return asked or labels[0]
