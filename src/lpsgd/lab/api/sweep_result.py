"""What `lpsgd.lab.sweep` returns: the winners, every trial, and the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from lpsgd.lab.formatting import setting_argument
from lpsgd.lab.search.outcome import Outcome
from lpsgd.lab.search.report.page import write_report, write_winners
from lpsgd.lab.search.report.terminal import render_winners
from lpsgd.lab.store.disk.files import writing

_WIDTH = 100


@dataclass(frozen=True, repr=False)
class SweepResult:
    """A search and what it found.

    Attributes:
        outcome: everything, as data.
        page: the HTML page with the figures.
        recipes: the files of the winners, for `compare`.
    """

    outcome: Outcome
    page: Path
    recipes: tuple[Path, ...]

    @classmethod
    def write(cls, outcome: Outcome, command: str) -> SweepResult:
        """Write the winners' recipes and the page."""
        with writing(outcome.sweep.folder):
            recipes = write_winners(outcome, command)
            return cls(outcome, write_report(outcome, command), tuple(recipes))

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.outcome.sweep.folder

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The complete settings of each winner, by label."""
        return {winner.label: dict(winner.settings) for winner in self.outcome.winners}

    @property
    def optimizers(self) -> list[str]:
        """The winners as texts, for `compare`: labels, names and settings."""
        made = []
        for winner in self.outcome.winners:
            pairs = winner.settings.items()
            text = ",".join(f"{k}={setting_argument(v)}" for k, v in pairs)
            made.append(f"{winner.label}={winner.optimizer}:{text}")
        return made

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Every trial, as a row."""
        return [asdict(trial) for trial in self.outcome.trials]

    def __repr__(self) -> str:
        from rich.console import Console

        text = StringIO()
        console = Console(
            file=text, width=_WIDTH, highlight=False, color_system=None, force_jupyter=False
        )
        render_winners(self.outcome, console)
        return f"{text.getvalue().rstrip()}\nPage: {self.page}"
