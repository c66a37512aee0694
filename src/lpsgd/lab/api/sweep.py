"""`lpsgd.lab.sweep`: search every optimizer's settings with equal budgets, on validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lpsgd._suggest import unknown_name
from lpsgd.lab.api.arguments import Own, Training, read_executor, read_folder, read_training
from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import ExecutorChoice

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.api.sweep_result import SweepResult
    from lpsgd.lab.recipe import Recipe
    from lpsgd.lab.search.space import Competitor


def sweep(
    space: str | Path | Mapping[str, Any],
    *,
    model: Callable[[], nn.Module] | str | None = None,
    train: Any = None,
    test: Any = None,
    val: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    step: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    only: Sequence[str] | None = None,
    sampler: str = "grid",
    trials: int | None = None,
    pruner: str = "none",
    metric: str | None = None,
    round_size: int = 4,
    seed: int = 0,
    train_seed: int = 1000,
    seeds: int = 1,
    storage: str | None = None,
    out: Path | str | None = None,
    jobs: int | None = None,
    executor: str | ExecutorChoice = "local",
    root: Path | str | None = None,
    workers: int = 0,
    save_seconds: float = 60.0,
    allow_import: bool = False,
    **recipe: Any,
) -> SweepResult:
    """Search the settings of several optimizers, with the same number of trials for each.

    Trials are scored on ``val`` or on a part of the training set that is held out; the test set is
    not used. After a stop, the same call resumes.

    Args:
        space: by label the settings of an optimizer: a list of values, a range
            ``{"low": 1e-4, "high": 1e-1, "log": True, "points": 7}``, or one value that is fixed.
            ``"optimizer"`` in it names the optimizer, or is its class, if the label does not. Or
            the path of such tables in a TOML file, or ``"paper"``.
        model: as in `compare`.
        train: as in `compare`.
        test: as in `compare`; it is not used by a search.
        val: what trials are scored on. Without it ``val_size`` examples of the training data, by
            default a fifth.
        loss: as in `compare`.
        metrics: as in `compare`.
        step: as in `compare`.
        collate: as in `compare`.
        only: the labels of the space to search; default all.
        sampler: ``"grid"``, ``"tpe"`` or ``"random"``.
        trials: of each optimizer; default the smallest grid, else 20.
        pruner: ``"none"``, ``"median"`` or ``"halving"``: whether poor trials are stopped early.
        metric: the score to choose by; default accuracy, or the first of ``metrics``.
        round_size: trials between two decisions of sampler and pruner.
        seed: of the search.
        train_seed: of weights, batches and the part that is held out.
        seeds: runs of a trial, whose mean counts.
        storage: the address of a database by which several processes share the trials.
        out: the sweep's folder.
        jobs: runs at once; 0 trains in this process.
        executor: ``"local"``, or ``"ray"`` for model and data by import path.
        root: the folder of the laboratory's data sets.
        workers: processes that read examples.
        save_seconds: time between checkpoints.
        allow_import: let a file name import paths, which run code.
        recipe: what else decides the training, by the names of the command's options.

    Example:
        >>> import tempfile, torch
        >>> from lpsgd.lab import sweep
        >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
        >>> data = (x, x.sum(1))
        >>> found = sweep(
        ...     {"sgd": {"lr": [1e-5, 1e-1]}, "adamw": {"lr": [1e-5, 1e-1]}},
        ...     model=lambda: torch.nn.Linear(3, 1), train=data, test=data,
        ...     epochs=5, batch_size=16, jobs=0, out=tempfile.mkdtemp(),
        ... )
        >>> {label: settings["lr"] for label, settings in found.settings.items()}
        {'sgd': 0.1, 'adamw': 0.1}
    """
    from lpsgd.lab.plan import resolve
    from lpsgd.lab.search.method import PRUNERS, SAMPLERS, Search, count_trials
    from lpsgd.lab.search.space_file import parse_space, read_space
    from lpsgd.lab.store.command_line import command_line

    for name, value, allowed in (("sampler", sampler, SAMPLERS), ("pruner", pruner, PRUNERS)):
        if value not in allowed:
            raise UserError(unknown_name(f"--{name}", value, allowed))
    choice = read_executor(executor, jobs)
    own = Own(model, train, test, val, loss, metrics, step, collate)
    searched = ("optimizer", "settings")
    values = {k: v for k, v in recipe.items() if k not in searched} | {"seed": train_seed}
    training = read_training(own, values, train_seed)
    shared = resolve(training.values)
    chosen_by, direction = _metric(metric, shared)
    if isinstance(space, Mapping):
        competitors = parse_space(_tables(space), only=only, allow_import=True)
    else:
        competitors = read_space(str(space), only=only, allow_import=allow_import)
    count = count_trials(competitors, sampler, trials)

    # what takes seconds to load, when every name has been checked
    from lpsgd.lab.api.sweep_result import SweepResult
    from lpsgd.lab.search.definition import Sweep
    from lpsgd.lab.search.outcome import conclude
    from lpsgd.lab.search.run import run_search
    from lpsgd.lab.search.storage import StorageUrl
    from lpsgd.lab.training.options import RunOptions

    place = read_folder(root)
    values = dict(training.values)
    values["val_size"] = _validation_size(shared, values.get("val_size"), place, training)
    _try_out(competitors, training)
    how = Search(
        sampler,
        pruner,
        chosen_by,
        count,
        round_size,
        seed,
        shared.epochs,
        seeds,
        own_direction=direction,
    )
    plan, command = Sweep(values, competitors, how, read_folder(out)), command_line()
    url = StorageUrl(storage) if storage else StorageUrl.of_file(plan.folder / "trials.db")
    options = RunOptions(place, workers, save_seconds)
    ended = run_search(plan, url, choice, options, command=command, problem=training.problem)
    return SweepResult.write(conclude(plan, ended), command)


def _tables(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with optimizers that are objects replaced by their texts."""
    from lpsgd.lab.own.optimizers import optimizer_text

    made: dict[str, Any] = {}
    for label, table in space.items():
        made[label] = table
        if isinstance(table, Mapping) and callable(given := table.get("optimizer")):
            text = optimizer_text(given)
            made[label] = {**table, "optimizer": text}
    return made


def _metric(
    asked: str | None, shared: Recipe
) -> tuple[str, Literal["maximize", "minimize"] | None]:
    """The score to choose by and, of a metric of the user's own, which values are good."""
    from lpsgd.lab.search.method import DIRECTIONS

    own = shared.problem.metrics if shared.problem is not None else {}
    allowed = list(own or DIRECTIONS)
    chosen = allowed[0] if asked is None else asked
    if chosen not in allowed:
        raise UserError(unknown_name("--metric", chosen, allowed))
    return chosen, None if not own else "maximize" if own[chosen] == "max" else "minimize"


def _validation_size(
    shared: Recipe, asked: int | None, root: Path | None, training: Training
) -> int:
    """How many examples are held out of the training set; none if the user gave ``val``.

    As many as were asked for, or a fifth (of those that `train_size` asks for, else of all).
    """
    import torch

    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.training.build import load_data, make_model
    from lpsgd.lab.training.options import RunOptions
    from lpsgd.lab.training.parallel.world import ALONE

    problem = training.problem or problem_of(shared)
    if problem is not None and problem.has_data:
        from lpsgd.lab.own.sources import splits

        train, val, _ = splits(problem, shared.seed)
        if val is not None:
            return 0
        if not train.indexed:
            raise UserError(
                "val is missing: train is an iterable without an index, of which none can be held "
                "out"
            )
    if asked == 0:
        raise UserError("--val-size 0: trials are chosen on the validation split; give it images")
    val_size = shared.val_size or (max(1, shared.train_size // 5) if shared.train_size else 0)
    # load data and make the model once, so that a mistake is told before anything is written
    cpu, checked = torch.device("cpu"), shared.with_changes(val_size=val_size)
    data = load_data(checked, RunOptions(root), cpu, problem)
    make_model(shared, data, cpu, ALONE, sharded=False, problem=problem)
    return val_size or max(1, data.train.size // 5)


def _try_out(competitors: Sequence[Competitor], training: Training) -> None:
    """Make every optimizer once for the user's own model."""
    from lpsgd.lab.search.space_file import first_values
    from lpsgd.peers import factory

    if training.problem is None or training.problem.model is None:
        return
    for competitor in competitors:
        settings = {**competitor.fixed, **first_values(competitor)}
        try:
            factory.try_out(competitor.optimizer, settings, training.problem.make_model())
        except ValueError as error:
            raise UserError(f"space: [{competitor.label}]: {error}") from error
