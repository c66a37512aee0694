"""Loggers: a run's metrics in TensorBoard, MLflow and Weights & Biases, if asked for.

A logger is given the recipe once and a row of metrics after every epoch. metrics.jsonl stays what
everything else reads: a logger gets a copy, and a resumed run gives it the rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.log.interface import LoggedRun, Logger

__all__ = ["LOGGERS", "LoggedRun", "Logger", "check_loggers", "logger_names", "make_logger"]

LOGGERS = ("tensorboard", "mlflow", "wandb")
"""Each is the module of its name here, and the package of its name that it needs."""


def logger_names(names: str | Sequence[str], *, tensorboard: bool = False) -> tuple[str, ...]:
    """The loggers that ``--log`` names; ``--tensorboard`` is the short form of one.

    >>> logger_names("mlflow, wandb", tensorboard=True)
    ('tensorboard', 'mlflow', 'wandb')
    """
    texts = [names] if isinstance(names, str) else names
    asked = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in LOGGERS:
            raise UserError(f"--log: {unknown_name('logger', name, LOGGERS)}")
    return tuple(dict.fromkeys([*(["tensorboard"] if tensorboard else []), *asked]))


def make_logger(name: str) -> Logger:
    """A logger, with its package loaded; a UserError if that is not installed."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--log {name} needs the package {error.name!r}: pip install 'lpsgd[log]'"
        ) from None
    made: Logger = import_module(f"lpsgd.lab.log.{name}").make()
    return made


def check_loggers(names: Iterable[str]) -> None:
    """Raise, before anything is trained, if a logger's package or its server is missing."""
    for name in names:
        make_logger(name).check()
