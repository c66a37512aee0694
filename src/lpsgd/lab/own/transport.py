"""The user's objects on their way to a worker process: a file that only this user can read."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle  # functions of a script or a notebook, which plain pickle only names

from lpsgd.lab.errors import UserError
from lpsgd.lab.own import optimizers
from lpsgd.lab.own.problem import Problem


class NotSendable(Exception):
    """Something that the user gave cannot be pickled; the message says what, and why."""


@contextmanager
def sent(problem: Problem) -> Iterator[Path]:
    """Inside, a file from which `received` reads the problem in another process."""
    with tempfile.TemporaryDirectory(prefix="lpsgd-") as folder:
        path = Path(folder) / "problem.pickle"
        with path.open("wb") as file:
            # first of all, where modules are found that the objects come from
            pickle.dump([entry or str(Path.cwd()) for entry in sys.path], file)
            try:
                cloudpickle.dump((problem, optimizers.remembered()), file)
            except OSError:
                raise  # the disk has no room
            except Exception as error:  # an object's own code may raise anything
                raise NotSendable(f"{_culprit(problem)} ({error})") from error
        yield path


@lru_cache(maxsize=1)
def received(path: Path) -> Problem:
    """What `sent` wrote; each process reads it once."""
    with path.open("rb") as file:
        folders = pickle.load(file)
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        try:
            problem, known = cloudpickle.load(file)
        except Exception as error:  # an object's own code may raise anything
            raise UserError(
                f"the model or the data cannot be made in another process ({error}); "
                "jobs=0 trains in this one"
            ) from error
    optimizers.remember(known)
    assert isinstance(problem, Problem)
    return problem


def _culprit(problem: Problem) -> str:
    """Which argument cannot be pickled."""
    given: dict[str, Any] = {field.name: getattr(problem, field.name) for field in fields(problem)}
    given["optimizers"] = optimizers.remembered()
    for name, value in given.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return name
    return "the model or the data"
