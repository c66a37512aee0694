"""From what the user asked for to the list of runs: nothing is executed or written here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.data.catalogue import check_options as check_data
from lpsgd.lab.defaults import default_settings
from lpsgd.lab.errors import UserError
from lpsgd.lab.labels import file_safe, labels
from lpsgd.lab.models import check_name as check_model
from lpsgd.lab.recipe import (
    OWN_DATA,
    Recipe,
    make_recipe,
    read_recipe_file,
    read_search_note,
    refuse_imports,
    to_json,
)
from lpsgd.lab.store.manifest import read_comparison, run_place
from lpsgd.lab.store.run_folder import check_folder, final_checkpoint, read_recipe
from lpsgd.peers import factory, grammar, registry

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem


@dataclass(frozen=True)
class Task:
    """One run to be done: what it is called, what to train, where."""

    label: str
    recipe: Recipe
    folder: Path
    search_note: str = ""
    """What a verdict has to mention of the search that chose the settings."""


def resolve(
    values: Mapping[str, Any],
    optimizer: str | None = None,
    *,
    source: str = "recipe",
) -> Recipe:
    """Return the complete recipe: the optimizer's text is read and its settings are filled in.

    ``optimizer`` as given on the command line replaces that of ``values``, settings included.
    """
    values = dict(values)
    try:
        if optimizer is not None:
            values["optimizer"], values["settings"] = grammar.parse(optimizer)
        recipe = make_recipe(values, source=source)
        if recipe.problem is None and recipe.dataset == OWN_DATA:
            raise UserError(
                f"{source}: dataset={OWN_DATA!r} was given as Python objects: call lpsgd.lab's "
                "functions with them again"
            )
        if recipe.problem is None or not recipe.problem.metrics:
            check_data(recipe.dataset, recipe.data)
        if recipe.problem is None:
            check_model(recipe.model)
        spec = registry.get(recipe.optimizer)
        found = default_settings(recipe.dataset, recipe.model, recipe.optimizer)
        settings = registry.complete_settings(recipe.optimizer, {**found, **recipe.settings})
    except ValueError as error:
        raise UserError(str(error)) from error
    imported = grammar.is_import_path(recipe.optimizer)
    return recipe.with_changes(
        settings=settings,
        start=None if recipe.start is None else str(final_checkpoint(Path(recipe.start))),
        # what a registered optimizer needs is known; the flags speak of imported ones
        closure=recipe.closure if imported else spec.needs_closure,
        create_graph=recipe.create_graph if imported else spec.create_graph,
    )


def plan_comparison(
    values: Mapping[str, Any],
    optimizers: Sequence[str],
    seeds: Iterable[int],
    out: Path | None,
    *,
    problem: Problem | None = None,
) -> tuple[Path, list[Task]]:
    """Return the folder and the runs of a comparison, ordered so that early results are paired.

    Of a ``problem`` of the user's own, each optimizer is made once for its model.
    """
    names = labels(optimizers)
    specs = [grammar.split_name(text)[1] for text in optimizers]
    recipes = [resolve(values, spec) for spec in specs]
    return _plan(dict(zip(names, recipes, strict=True)), seeds, out, problem=problem)


def plan_recipes(
    paths: Sequence[Path],
    given: Mapping[str, Any],
    seeds: Iterable[int],
    out: Path | None,
    *,
    allow_import: bool = False,
    problem: Problem | None = None,
) -> tuple[Path, list[Task]]:
    """Return the folder and the runs of a comparison of recipe files, labelled by their names.

    A folder stands for the TOML files in it. ``given`` overrides all of them alike; apart from the
    optimizer, its settings and the seed they must then agree.
    """
    recipes: dict[str, Recipe] = {}
    notes: dict[str, str] = {}
    for label, path in recipe_files(paths).items():
        notes[label] = read_search_note(path, option="--recipes")
        found, source = read_recipe_file(path, option="--recipes"), f"--recipes {path}"
        refuse_imports(found, source, allow_import=allow_import)
        recipes[label] = resolve({**found, **given}, source=source)
    first_label, first = next(iter(recipes.items()))
    for label, recipe in recipes.items():
        expected = to_json(first)
        for name, value in to_json(recipe).items():
            known = expected.get(name)
            if name not in _OWN and value != known:
                raise UserError(
                    f"--recipes: {name} is {known!r} in {first_label} and {value!r} "
                    f"in {label}; compare what differs in the optimizer alone, or give "
                    f"--{name.replace('_', '-')} for all"
                )
    return _plan(recipes, seeds, out, notes, problem)


_OWN = ("optimizer", "settings", "seed", "closure", "create_graph")  # what competitors differ in


def recipe_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the recipe files at ``paths`` by their labels; a folder stands for those in it."""
    found: dict[str, Path] = {}
    for path in _files(paths):
        label = file_safe(path.stem)
        if not label:
            raise UserError(f"--recipes {path}: its name makes no label; rename it")
        if label in found:
            raise UserError(f"--recipes: two files are named {label!r}; rename one")
        found[label] = path
    return found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not found:
            raise UserError(f"--recipes {path}: no .toml file in this folder")
        yield from found


def _plan(
    recipes: Mapping[str, Recipe],
    seeds: Iterable[int],
    out: Path | None,
    notes: Mapping[str, str] | None = None,
    problem: Problem | None = None,
) -> tuple[Path, list[Task]]:
    try:
        for recipe in recipes.values():
            model = None if problem is None else problem.make_model()
            factory.try_out(recipe.optimizer, recipe.settings, model)
    except ValueError as error:
        raise UserError(str(error)) from error
    first = next(iter(recipes.values()))
    name = file_safe(f"{first.dataset}-{first.model}")
    folder = out or Path("runs") / f"{name}-{first.digest(without=_OWN)}"
    tasks = [
        Task(
            name,
            recipe.with_changes(seed=seed),
            run_place(folder, name, seed),
            (notes or {}).get(name, ""),
        )
        for seed in seeds
        for name, recipe in recipes.items()
    ]
    _check_comparison(folder, first)
    for task in tasks:
        check_folder(task.folder, task.recipe)
    return folder, tasks


def _check_comparison(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds a comparison of something else, with whatever optimizers."""
    manifest = read_comparison(folder)
    for run in () if manifest is None else manifest.planned():
        if (folder / run.folder / "config.json").exists():
            own = {name: getattr(read_recipe(folder / run.folder), name) for name in _OWN}
            check_folder(folder / run.folder, recipe.with_changes(**own))
            return


def default_folder(recipe: Recipe) -> Path:
    """Return where `lpsgd train` puts a run for which no folder was given."""
    optimizer = recipe.optimizer.rpartition(":")[2]
    name = file_safe(f"{recipe.dataset}-{recipe.model}-{optimizer}")
    return Path("runs") / f"{name}-{recipe.digest()}"
