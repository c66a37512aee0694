"""From the arguments of the functions to recipes: what is the user's own, and what has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.labels import file_safe
from lpsgd.lab.recipe import OWN_DATA, make_recipe
from lpsgd.peers.grammar import is_import_path

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.own.problem import Problem

Optimizer = str | Callable[..., Any]
"""A name with its settings, a class, a partial of a class, or a function of the model."""


@dataclass(frozen=True)
class Own:
    """What a function was given of the user's own, as it was given."""

    model: Callable[[], nn.Module] | str | None = None
    train: Any = None
    test: Any = None
    val: Any = None
    loss: Callable[..., Any] | None = None
    metrics: Mapping[str, Any] | None = None
    step: Callable[..., Any] | None = None
    collate: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Training:
    """What is trained: the values of a recipe, and the objects that it can only name."""

    values: dict[str, Any]
    problem: Problem | None = None
    """None where every process finds model and data by their names."""


def read_training(
    own: Own,
    values: Mapping[str, Any],
    seed: int = 0,
    beside: Mapping[str, Any] | None = None,
) -> Training:
    """Check everything that was given, and try the user's own objects.

    ``values`` are fields of the recipe, ``beside`` those that files will add to them; ``seed`` is
    the one that the objects are tried with.
    """
    values = dict(values)
    if isinstance(own.model, str):
        values["model"] = own.model
    all_values = {**(beside or {}), **values}
    named = str(all_values.get("model", "")), str(all_values.get("dataset", ""))
    problem, sent = read_problem(own, values), True
    if problem is None and any(map(is_import_path, named)):
        from lpsgd.lab.own.given import imported

        problem, sent = imported(*named), False
    if problem is None:
        return Training(values)
    from lpsgd.lab.own.examine import batch_size, examine

    if problem.has_data:
        if sent:
            values["dataset"] = OWN_DATA
        decided = batch_size(problem, seed)
        if decided is not None and values.setdefault("batch_size", decided) != decided:
            raise UserError(
                f"batch_size={values['batch_size']}, and the loader that was given as train has "
                f"batches of {decided}; leave batch_size out"
            )
    if callable(own.model):
        values["model"] = _model_name(own.model)
    tried = make_recipe({**_plain_fields({**all_values, **values}), "seed": seed})
    values["problem"] = examine(problem, tried).model_dump()
    return Training(values, problem if sent else None)


def _plain_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in ("optimizer", "settings")}


def read_problem(own: Own, values: Mapping[str, Any]) -> Problem | None:
    """The objects as a problem; None if none was given."""
    given = {field.name: getattr(own, field.name) for field in fields(own)}
    given = {name: value for name, value in given.items() if value is not None}
    model = given.pop("model", None)
    if not given and not callable(model):
        return None
    if not callable(model):
        shown = " is missing" if model is None else f"={model!r} is the name of one of ours"
        raise UserError(
            f"model{shown}; with {', '.join(given)} of your own give a function without arguments "
            "that returns a new torch.nn.Module"
        )
    if not given.keys() & {"train"} and given:
        raise UserError(f"train is missing; {', '.join(given)} go with data of your own")
    if "train" in given and values.get("dataset") is not None:
        raise UserError(f"dataset={values['dataset']!r} and train are both given; give one of them")
    for name in ("loss", "step", "collate"):
        if name in given and not callable(given[name]):
            raise UserError(f"{name}={given[name]!r} is not a function")
    if "step" in given and "loss" in given:
        raise UserError("loss and step are both given; step returns the loss itself")
    if not isinstance(given.get("metrics", {}), Mapping):
        raise UserError(f"metrics={given['metrics']!r}; allowed: a dict of names and functions")
    from lpsgd.lab.own.problem import Problem

    problem = Problem(model=model, **given)
    problem.own_metrics()  # a mistake in it is told at once
    return problem


def _model_name(model: Callable[..., Any]) -> str:
    """What tables call the model."""
    found = getattr(model, "__qualname__", type(model).__qualname__).rpartition(".")[2]
    return file_safe(found) if found.isidentifier() else "model"


def read_optimizers(given: Optimizer | Sequence[Optimizer]) -> list[str]:
    """The optimizers as texts. A text may name several, as on the command line."""
    from lpsgd.lab.own.optimizers import optimizer_text
    from lpsgd.peers import registry
    from lpsgd.peers.grammar import split_list

    if isinstance(given, str):
        return split_list(given, registry.names())
    if callable(given):
        given = [given]
    return [optimizer_text(each) for each in given]


def read_optimizer(given: Optimizer) -> str:
    """The one optimizer of a run, as text."""
    texts = read_optimizers(given)
    if len(texts) != 1:
        raise UserError(f"optimizer={given!r} names {len(texts)} optimizers; give one")
    return texts[0]


def read_executor(executor: str | ExecutorChoice, jobs: int | None) -> ExecutorChoice:
    """Where the runs are trained."""
    if isinstance(executor, ExecutorChoice):
        return executor
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0):
        raise UserError(f"jobs={jobs!r}; allowed: 0 (in this process), 1, 2, ... runs at once")
    return ExecutorChoice(executor, jobs=jobs)


def read_seeds(seeds: int | Sequence[int]) -> list[int]:
    """The seeds: so many from 0 on, or those given."""
    found = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    wrong = [seed for seed in found if isinstance(seed, bool) or not isinstance(seed, int)]
    if not found or wrong or len(set(found)) < len(found):
        raise UserError(
            f"seeds={seeds!r}; allowed: how many, from 1 on, or a list of different ones"
        )
    return found


def read_folder(out: Path | str | None) -> Path | None:
    """The folder that was asked for."""
    return None if out is None else Path(out)
