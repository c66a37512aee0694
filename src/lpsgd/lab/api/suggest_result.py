"""What `lpsgd.lab.suggest` returns: a learning rate, and the test that it was read from."""

from __future__ import annotations

import html
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.formatting import setting_argument
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.training.range_test import RangeTest, Reading, smoothed
from lpsgd.peers import grammar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DECAY = "weight_decay"


@dataclass(frozen=True, repr=False)
class SuggestResult:
    """A learning rate to begin with. In a notebook it is displayed with its plot.

    Attributes:
        recipe: what was trained.
        given: the optimizer as it was given.
        test: the rates that were tried, and the losses.
        reading: where in them the suggestion comes from.
    """

    recipe: Recipe
    given: str
    test: RangeTest
    reading: Reading

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.reading.lr

    @property
    def settings(self) -> dict[str, Any]:
        """The complete settings of the optimizer, with this learning rate."""
        return {**self.recipe.settings, "lr": self.lr}

    @property
    def text(self) -> str:
        """The optimizer as `compare` takes it, such as ``"lpsgdm:lr=0.012,weight_decay=0.0"``."""
        name, asked = grammar.parse(self.given)
        shown = {**asked, "lr": self.lr}
        if _DECAY in self.settings:
            shown[_DECAY] = self.settings[_DECAY]
        return f"{name}:" + ",".join(f"{k}={setting_argument(v)}" for k, v in shown.items())

    @property
    def notes(self) -> list[str]:
        """What speaks against the suggestion."""
        found, tested = [], self.test
        if tested.complete and self.reading.lowest >= len(tested.lrs) - 2:
            found.append("the loss was still falling at the highest rate; give a higher `high`")
        if not self.reading.half:
            found.append("half of the fall came at the first rate; give a lower `low`")
        return found

    def figure(self) -> Figure:
        """The loss over the learning rate, drawn by matplotlib."""
        from lpsgd.lab.report.style import BLUE, MUTED, VERMILION, canvas, literal

        tested, place = self.test, self.reading
        average = smoothed(tested.losses)
        with canvas(4.5, 3.0) as figure:
            axes = figure.add_subplot()
            axes.plot(tested.lrs, tested.losses, color=MUTED, lw=0.6, alpha=0.6, label="each step")
            axes.plot(tested.lrs, average, color=BLUE, label="smoothed")
            for at, mark in ((place.half, "v"), (place.lowest, "^")):
                axes.plot(tested.lrs[at], average[at], mark, color=BLUE, ms=5)
            axes.axvline(self.lr, color=VERMILION, ls="--", label=f"suggested: {self.lr:g}")
            top, bottom = max(average[: place.lowest + 1]), average[place.lowest]
            axes.set_ylim(bottom - 0.1 * (top - bottom), top + 0.3 * (top - bottom))
            axes.set_xscale("log")
            axes.set_xlabel("learning rate")
            axes.set_ylabel("training loss")
            axes.set_title(literal(f"{self.recipe.optimizer}: {self.recipe.model}"))
            axes.legend()
        return figure

    def write(self, folder: Path) -> list[Path]:
        """Write the plot into ``folder``: suggest.svg and suggest.png."""
        from lpsgd.lab.report.style import save_figure

        with writing(folder):
            return save_figure(self.figure(), folder / "suggest")

    def __repr__(self) -> str:
        tested, place = self.test, self.reading
        decay = self.settings.get(_DECAY)
        lines = [
            f"learning rate {self.lr:g}, between {tested.lrs[place.half]:.2g}, where half of the "
            f"fall of the loss was reached, and {tested.lrs[place.lowest]:.2g}, where it was "
            "lowest",
            f"weight decay {decay:g}, which is not measured" if decay is not None else "",
            *(f"note: {note}" for note in self.notes),
            f"{len(tested.lrs)} steps from {tested.lrs[0]:.2g} to {tested.lrs[-1]:.2g}: a place to "
            "begin a search, no result of one",
            f"optimizer: {self.text}",
        ]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        drawn = StringIO()
        self.figure().savefig(drawn, format="svg", bbox_inches="tight")
        picture = drawn.getvalue()
        return f"<pre>{html.escape(repr(self))}</pre>{picture[picture.index('<svg') :]}"
