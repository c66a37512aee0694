"""The three sizes at which the paper's experiments can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.tables import published as tables


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
    """A protocol's size; ``width`` is None for the published networks."""

    name: str
    summary: str
    seeds: int
    stand_ins: Mapping[str, StandIn]
    widths: Mapping[str, int | None]
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
            f"{self.name.capitalize()} scale: {self.summary} These numbers are not comparable with "
            "the paper's and do not stand beside them."
        )


def _even(width: int | None) -> dict[str, int | None]:
    return dict.fromkeys(tables.MODELS, width)


PAPER_SCALE = Scale(
    name="paper",
    summary="The published protocol: full networks and data, the 28 rows of settings to the digit.",
    seeds=3,
    stand_ins={
        "cifar10": StandIn("cifar10", "CIFAR-10", (3, 32, 32), 10, 50_000, 10_000, 200),
        "cifar100": StandIn("cifar100", "CIFAR-100", (3, 32, 32), 100, 50_000, 10_000, 200),
        "imagenet1k": StandIn(
            "imagefolder", "ImageNet-1K", (3, 224, 224), 1000, 1_281_167, 50_000, 60
        ),
    },
    widths=_even(None),
)

CPU_SCALE = Scale(
    name="cpu",
    summary="the same networks, optimizers and schedules with a quarter of the width (ResNet-50 an "
    "eighth), a tenth of CIFAR's training images and 20 epochs; of ImageNet 4000 images at 64 x 64 "
    "and 12 epochs. At most three hours for a table on two cores.",
    seeds=3,
    stand_ins={
        "cifar10": StandIn(
            "cifar10", "5000 images of CIFAR-10", (3, 32, 32), 10, 5000, 2000, 20, subset=True
        ),
        "cifar100": StandIn(
            "cifar100", "5000 images of CIFAR-100", (3, 32, 32), 100, 5000, 2000, 20, subset=True
        ),
        "imagenet1k": StandIn(
            "imagefolder",
            "4000 images of ImageNet-1K",
            (3, 64, 64),
            1000,
            4000,
            2000,
            12,
            {"size": 64},
            subset=True,
        ),
    },
    widths={"VGG-11": 16, "ResNet-18": 16, "ResNet-50": 8},
    probes=1,
    lanczos=32,
    hessian_samples=256,
)

_DIGITS = StandIn("digits", "96 handwritten digits", (1, 32, 32), 10, 96, 64, 4, subset=True)

SMOKE_SCALE = Scale(
    name="smoke",
    summary="a try of the machinery within a minute: tiny networks, four epochs of three batches, "
    "the digits that come with scikit-learn in the place of CIFAR, generated noise in the place of "
    "ImageNet.",
    seeds=2,
    stand_ins={
        "cifar10": _DIGITS,
        "cifar100": _DIGITS,
        "imagenet1k": StandIn(
            "synthetic",
            "generated noise",
            (3, 32, 32),
            10,
            96,
            64,
            4,
            {"shape": [3, 32, 32], "classes": 10},
            subset=True,
        ),
    },
    widths=_even(8),  # below 8 the CPU's channels_last convolutions are not to be trusted
    batch_size=32,
    horizons=(5, 16, 50, 158, 500, 1581, 5000),
    probes=1,
    lanczos=6,
    hessian_samples=32,
)

SCALES = {scale.name: scale for scale in (PAPER_SCALE, CPU_SCALE, SMOKE_SCALE)}


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
