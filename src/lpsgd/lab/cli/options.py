"""Command-line options made from the recipe's fields, so that each is described in one place."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.formatting import setting_text
from lpsgd.lab.recipe import Recipe, make_recipe, read_recipe_file, refuse_imports
from lpsgd.peers.grammar import names_import_path, parse_pair, parse_value

# The panels of --help. What most users need stands outside of them, in the first one.
SEARCH = "Search"
DATA = "Data"
NETWORK = "Network and optimizer"
TRAINING = "Training"
DEVICE = "Precision and device"
RECORDS = "Files and output"
EXECUTION = "Where the runs are trained (changes no result)"
_PANELS = {
    DATA: ("data", "train_size", "val_size", "test_size", "augment"),
    NETWORK: ("width", "start", "decay", "closure", "create_graph"),
    TRAINING: (
        *("batch_size", "accumulate", "lr_schedule", "warmup_epochs", "lr_end"),
        *("label_smoothing", "clip_norm", "ema", "train_eval_every"),
    ),
    DEVICE: ("precision", "compile", "device", "threads"),
}
_ORDER = (None, SEARCH, TRAINING, DATA, NETWORK, DEVICE, EXECUTION, RECORDS)
_METAVARS = {int: "N", float: "X", str: "NAME"}


def flag(name: str, text: str, panel: str | None = None, **how: Any) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, rich_help_panel=panel, metavar="", **how)


# What several commands take.
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the data sets; default $LPSGD_DATA, else the cache folder.",
        rich_help_panel=DATA,
    ),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A recipe in TOML; options override it.",
        rich_help_panel=RECORDS,
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=1024,
        help="Processes that decode images.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
SaveSeconds = Annotated[
    float,
    typer.Option(
        metavar="X",
        min=0,
        help="Seconds between checkpoints. [default: 60]",
        rich_help_panel=RECORDS,
        show_default=False,
    ),
]
Log = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Also log to tensorboard, mlflow, wandb.",
        rich_help_panel=RECORDS,
        show_default=False,
    ),
]
TensorBoard = Annotated[bool, flag("--tensorboard", "The same as --log tensorboard.", hidden=True)]
AllowImport = Annotated[
    bool, flag("--allow-import", "Let files name import paths, which run code.", NETWORK)
]
Latex = Annotated[bool, flag("--latex", "Also write the tables for a paper.", RECORDS)]
Csv = Annotated[bool, flag("--csv", "Also write the tables as CSV.", RECORDS)]
Figure = Annotated[bool, flag("--figure", "Also draw the curves.", RECORDS)]
FigureWidth = Annotated[
    str | None,
    typer.Option(
        metavar="WIDTH",
        help="Of figures: icml, neurips, ... or inches.",
        rich_help_panel=RECORDS,
        show_default=False,
    ),
]
AsJson = Annotated[bool, flag("--json", "Print the result as JSON.", RECORDS)]

# The first two are written as one text, --optimizer lpsgdm:lr=1e-2,p=6; the last is found out
_NOT_OPTIONS = ("optimizer", "settings", "problem")


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
            find_modules_here(arguments)
            given = {name: arguments.pop(name) for name in fields}
            for name in fields:
                if arguments.pop(f"no_{name}", None):
                    given[name] = False
            values = {name: value for name, value in given.items() if value is not None}
            try:
                if pairs := values.pop("data", None):
                    values["data"] = {key: parse_value(v) for key, v in map(parse_pair, pairs)}
            except ValueError as error:
                raise UserError(f"--data: {error}") from None
            return command(values, **arguments)

        extra = [
            parameter
            for name, info in fields.items()
            for parameter in _parameters(name, info, (defaults or {}).get(name))
        ]
        return _with_parameters(wrapper, command, [*own, *extra])

    return decorate


def _place(parameter: inspect.Parameter) -> int:
    """Where the panel of an option stands in help; those of the first panel are in no other."""
    annotated = getattr(parameter.annotation, "__metadata__", (parameter.default,))
    panel = getattr(annotated[0], "rich_help_panel", None)
    return _ORDER.index(panel) if panel in _ORDER else 0


def find_modules_here(arguments: dict[str, Any]) -> None:
    """Let an import path that the user gives name a module in the current folder.

    Only then: libraries try to import packages that are not installed, and whatever bears such a
    name in this folder would be executed.
    """
    texts = [arguments.get(name) for name in ("optimizer", "optimizers", "model", "dataset")]
    named = any(names_import_path(text) for text in texts if text)
    if (named or arguments.get("allow_import")) and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def _option(
    panel: str | None, name: str, kind: Any, text: str, *words: str, **how: Any
) -> inspect.Parameter:
    default = how.pop("default", None)
    option = typer.Option(default, *words, help=text, rich_help_panel=panel, **how)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


_executor_option = partial(_option, EXECUTION)
_EXECUTOR_OPTIONS = (
    _executor_option(
        "executor",
        str,
        "This machine's processes, or a Ray cluster.",
        default="local",
        metavar="local|ray",
    ),
    _executor_option(
        "jobs",
        int | None,
        "local: runs at once; default cores / threads.",
        min=1,
        max=1024,
        metavar="N",
    ),
    _executor_option(
        "address",
        str | None,
        "ray: of the cluster, or auto; default: start one here.",
        metavar="URL",
    ),
    _executor_option(
        "cpus_per_run",
        float | None,
        "ray: cores of a run; default threads + workers.",
        min=0,
        metavar="X",
    ),
    _executor_option(
        "gpus_per_run",
        float | None,
        "ray: GPUs of a run; 0.5 lets two share one.",
        min=0,
        metavar="X",
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
    """Make ``wrapper`` look like ``command`` with other parameters, for typer, panel by panel."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in sorted(parameters, key=_place)]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__doc__ = command.__doc__
    wrapper.__name__ = command.__name__
    return wrapper


def read_values(
    recipe_file: Path | None,
    given: dict[str, Any],
    *,
    allow_import: bool,
    optimizer: str | None = None,
) -> dict[str, Any]:
    """Return the recipe's values: those of the file, overridden by those of the command line.

    Import paths of the file need ``allow_import``, unless the command line replaces them: on it
    the user has typed them.
    """
    if recipe_file is None:
        return given
    source, found = f"--recipe {recipe_file}", read_recipe_file(recipe_file)
    values = {**found, **given}
    kept = {name: found[name] for name in found.keys() - given.keys()}
    kept |= {} if optimizer is None else {"optimizer": ""}
    refuse_imports(kept, source, allow_import=allow_import)
    make_recipe(values, source=source)
    return values


def _parameters(name: str, info: FieldInfo, default: str | None) -> Iterator[inspect.Parameter]:
    """The option of a field; of a switch two, of which help shows the one that does something."""
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    # `int | None` is an int, and of choices the recipe checks the value
    kind: Any = str if choices else next(iter(get_args(info.annotation)), info.annotation)
    panel = next((panel for panel, names in _PANELS.items() if name in names), None)
    text = info.description or ""
    if kind is bool:
        for value, field, shown in (
            (True, name, text),
            (False, f"no_{name}", f"Do not {text[:1].lower()}{text[1:]}"),
        ):
            word, hidden = f"--{field.replace('_', '-')}", value == info.default
            how = {"metavar": "", "hidden": hidden, "show_default": False}
            yield _option(panel, field, bool | None, shown, word, **how)
        return
    metavar = "|".join(choices) or _METAVARS.get(kind)
    if name == "data":
        kind, text, metavar = list[str], "Option of the data set; repeatable.", "KEY=VALUE"
    elif default or info.default:  # a default of 0 goes without saying
        text += f" [default: {default or setting_text(info.default)}]"
    yield _option(panel, name, kind | None, text, metavar=metavar, show_default=False)
