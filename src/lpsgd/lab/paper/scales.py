"""The three sizes at which the paper's experiments can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.store.disk.tomlio import package_toml


@dataclass(frozen=True)
class StandIn:
    """What stands in for one of the paper's data sets, and for how long is trained on it."""

    dataset: str
    title: str
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int
    epochs: int
    data: Mapping[str, Any] = field(default_factory=dict)
    subset: bool = False


@dataclass(frozen=True)
class Scale:
    """A protocol's size."""

    name: str
    summary: str
    seeds: int
    stand_ins: Mapping[str, StandIn]
    widths: Mapping[str, int] = field(default_factory=dict)
    """Of the networks, where it is not the published one."""
    batch_size: int | None = None
    """Instead of the tables' 128."""
    horizons: tuple[int, ...] = (100, 316, 1000, 3162, 10_000, 31_623, 100_000)
    """The T of the theorems' check."""
    probes: int = 2
    """Lanczos runs behind each spectrum of Fig. 1."""
    lanczos: int = 64
    hessian_samples: int | None = None
    """At most so many images for Fig. 1's Hessian; None leaves it to the choice."""

    @property
    def comparable(self) -> bool:
        """Whether results may stand beside the paper's numbers."""
        return self.name == "paper"

    def title(self, text: str, datasets: tuple[str, ...] = ()) -> str:
        """A title that says at which scale its result was made, and on what."""
        if self.comparable:
            return text
        used = ", ".join(dict.fromkeys(self.stand_ins[dataset].title for dataset in datasets))
        return f"{text}, {self.name} scale" + (f" on {used}" if used else "")

    def note(self) -> str:
        """What every scaled result says about itself."""
        return (
            f"At {self.name} scale: {self.summary} These numbers are not comparable with "
            "the paper's."
        )


_TABLES = package_toml("lpsgd.lab.paper", "scales.toml")
SCALES = TypeAdapter(dict[str, Scale]).validate_python(
    {name: {"name": name, **table} for name, table in _TABLES.items()}
)


def get_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise UserError(unknown_name("scale", name, SCALES))
    return SCALES[name]


def model_names(text: str | None) -> tuple[str, ...]:
    """The paper's names of the models in a list like ``resnet18,vgg11``; all for None."""
    if text is None:
        return tuple(tables.MODELS)
    by_name = {lab: paper for paper, lab in tables.MODELS.items()}
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    for name in wanted:
        if name not in by_name:
            raise UserError(unknown_name("model", name, by_name))
    if not wanted:
        raise UserError("--models names no model")
    return tuple(paper for lab, paper in by_name.items() if lab in wanted)
