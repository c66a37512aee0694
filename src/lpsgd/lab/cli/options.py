"""Command-line options made from the recipe's fields, so that each is described in one place."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.recipe import Recipe, read_recipe_file
from lpsgd.peers.grammar import names_import_path, parse_pair, parse_value

# What several commands take.
Root = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets. [default: $LPSGD_DATA, else the cache folder]"),
]
RecipeFile = Annotated[
    Path | None, typer.Option(help="A TOML file with the recipe; flags override it.")
]
Workers = Annotated[int, typer.Option(min=0, max=1024, help="Processes that decode images.")]
SaveSeconds = Annotated[
    float, typer.Option(min=0, help="Time between checkpoints; 0 is after every step.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard's files.")]
AllowImport = Annotated[
    bool, typer.Option("--allow-import", help="Let files name import paths, which run code.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

# These are written as part of the optimizer's text, --optimizer lpsgdm:lr=1e-2,p=6
_NOT_OPTIONS = ("optimizer", "settings")


def with_recipe_options(
    *, without: tuple[str, ...] = (), defaults: dict[str, str] | None = None
) -> Callable[[Any], Any]:
    """Give a command an option for every field of `Recipe`.

    The command's first parameter then receives the values that were given, as a dict. An option
    that was not given is absent, so that a recipe file can decide it. ``defaults`` says in words
    what the command takes instead of the recipe's own default.
    """
    fields = {
        name: info
        for name, info in Recipe.model_fields.items()
        if name not in (*_NOT_OPTIONS, *without)
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[1:]

        def wrapper(**arguments: Any) -> Any:
            _find_modules_here(arguments)
            given = {name: arguments.pop(name) for name in fields}
            values = {name: value for name, value in given.items() if value is not None}
            try:
                if pairs := values.pop("data", None):
                    values["data"] = {key: parse_value(v) for key, v in map(parse_pair, pairs)}
            except ValueError as error:
                raise UserError(f"--data: {error}") from None
            return command(values, **arguments)

        extra = [
            _parameter(name, info, (defaults or {}).get(name)) for name, info in fields.items()
        ]
        return _with_parameters(wrapper, command, [*own, *extra])

    return decorate


def _find_modules_here(arguments: dict[str, Any]) -> None:
    """Let an import path that the user gives name a module in the current folder.

    Only then: libraries try to import packages that are not installed, and whatever bears such a
    name in this folder would be executed.
    """
    texts = arguments.get("optimizer"), arguments.get("optimizers")
    named = any(names_import_path(text) for text in texts if text)
    if (named or arguments.get("allow_import")) and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def _option(panel: str, name: str, kind: Any, text: str, **how: Any) -> inspect.Parameter:
    option = typer.Option(how.pop("default", None), help=text, rich_help_panel=panel, **how)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


_executor_option = partial(_option, "Where the runs are trained (changes no result)")
_EXECUTOR_OPTIONS = (
    _executor_option(
        "executor", str, "local: processes of this machine. ray: a Ray cluster.", default="local"
    ),
    _executor_option(
        "jobs", int | None, "local: runs at once. [default: cores / threads]", min=1, max=1024
    ),
    _executor_option(
        "address",
        str | None,
        "ray: address of the cluster, or auto for the one that this machine belongs to. "
        "[default: start Ray on this machine]",
    ),
    _executor_option(
        "cpus_per_run", float | None, "ray: cores of a run. [default: threads + workers]", min=0
    ),
    _executor_option(
        "gpus_per_run",
        float | None,
        "ray: GPUs of a run; 0.5 lets two share one. [default: 1 if the cluster has any]",
        min=0,
    ),
)


def with_executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where its runs are trained.

    The command's keyword-only parameter ``executor`` then receives them as an `ExecutorChoice`.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "executor"]

    def wrapper(*positional: Any, **arguments: Any) -> Any:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ:
            raise UserError(
                "torchrun starts the processes of one run: use it with lpsgd train. "
                f"lpsgd {command.__name__} starts many runs itself; see --jobs and --executor"
            )
        given = {option.name: arguments.pop(option.name) for option in _EXECUTOR_OPTIONS}
        choice = ExecutorChoice(given.pop("executor"), **given)
        return command(*positional, executor=choice, **arguments)

    return _with_parameters(wrapper, command, [*own, *_EXECUTOR_OPTIONS])


def _with_parameters(
    wrapper: Callable[..., Any], command: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """Make ``wrapper`` look like ``command`` with other parameters, for typer."""
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__doc__ = command.__doc__
    wrapper.__name__ = command.__name__
    return wrapper


def read_values(recipe_file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's values: those of the file, overridden by those of the command line."""
    return {**(read_recipe_file(recipe_file) if recipe_file else {}), **given}


def _parameter(name: str, info: FieldInfo, default: str | None) -> inspect.Parameter:
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    # `int | None` is an int, and of choices the recipe checks the value
    kind: Any = str if choices else next(iter(get_args(info.annotation)), info.annotation)
    text = info.description or ""
    if name == "data":
        kind, text = list[str], "Option of the data set as key=value; may be repeated."
    elif default is not None or info.default is not None:
        own = str(info.default).lower() if kind is bool else info.default
        text += f" [default: {default or own}]"
    metavar = "|".join(choices) or None
    return _option("The recipe", name, kind | None, text, metavar=metavar, show_default=False)
