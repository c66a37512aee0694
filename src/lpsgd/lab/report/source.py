"""Where a table or a figure comes from: the command and the versions, for the file itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import TYPE_CHECKING

import lpsgd
from lpsgd.lab.formatting import printable
from lpsgd.lab.store.command_line import command_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lpsgd.lab.analysis.comparison import Analysis
    from lpsgd.lab.store.run_record import RunRecord


@dataclass(frozen=True)
class Source:
    """What made the numbers: a command, if there was one, and versions."""

    command: str | None = None
    versions: str = ""

    def lines(self) -> list[str]:
        """Each in one line of printable characters, whatever was in the command."""
        found = (self.versions or _versions_here(), self.command or "")
        readable = (text.encode(errors="replace").decode() for text in found if text)
        return [" ".join(printable(text).split()) for text in readable]


def this_command() -> Source:
    """The command that is running."""
    return Source(command_line())


def comparison_source(analysis: Analysis) -> Source:
    """The command that trained the runs, with the versions that they were trained with."""
    return Source(analysis.command, trained_with(analysis.runs))


def trained_with(runs: Iterable[RunRecord]) -> str:
    """The versions that runs were trained with."""
    found = {_versions_of(run.environment) for run in runs if run.environment}
    return "; ".join(sorted(text for text in found if text))


def _versions_of(environment: object) -> str:
    values = environment if isinstance(environment, dict) else {}
    packages = values.get("packages")
    known = packages if isinstance(packages, dict) else {}
    parts = {name: known.get(name) for name in ("lpsgd", "torch")} | {
        "Python": values.get("python")
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def _versions_here() -> str:
    parts = [f"lpsgd {lpsgd.__version__}", f"Python {python_version()}"]
    with suppress(PackageNotFoundError):  # a torch of which only the files are there
        parts.insert(1, f"torch {version('torch')}")
    return ", ".join(parts)
