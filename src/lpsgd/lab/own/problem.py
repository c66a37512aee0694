"""What the user gave: a model, data, a loss, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from lpsgd.lab.errors import UserError

Direction = Literal["max", "min"]

# What the names of common metrics say about which values are good.
_HIGHER = ("acc", "top", "f1", "auc", "auroc", "r2", "bleu", "rouge", "iou", "dice", "precision",
           "recall", "score", "map", "psnr", "ssim", "correct")  # fmt: skip
_LOWER = ("loss", "nll", "err", "mse", "mae", "rmse", "ppl", "perplexity", "wer", "cer",
          "entropy", "distance")  # fmt: skip


@dataclass(frozen=True)
class OwnMetric:
    """A score of the user's: ``measure(output, target)``, or a value that ``step`` returns."""

    measure: Callable[[Any, Any], Tensor | float] | None
    direction: Direction


@dataclass(frozen=True)
class Problem:
    """The user's objects, unchanged. Without ``train``, the data are one of the laboratory's sets,
    and without ``model``, the network is one of its networks."""

    model: Callable[[], nn.Module] | None = None
    train: Any = None
    test: Any = None
    val: Any = None
    loss: Callable[[Any, Any], Tensor] | None = None
    metrics: Mapping[str, Any] | None = None
    step: Callable[[Any, Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None

    @property
    def has_data(self) -> bool:
        """Whether the data are the user's own."""
        return self.train is not None

    def make_model(self) -> nn.Module:
        """A new model with its first weights."""
        assert self.model is not None
        made = self.model()
        if not isinstance(made, nn.Module):
            raise UserError(
                f"model: {_name(self.model)}() returned a {type(made).__name__}; allowed: a new "
                "torch.nn.Module at each call"
            )
        if not any(p.requires_grad for p in made.parameters()):
            raise UserError(f"model: {_name(self.model)}() has no parameter that requires grad")
        return made

    def own_metrics(self) -> dict[str, OwnMetric]:
        """The metrics by name, the one that decides first; the loss is always among them."""
        found = {name: _metric(name, given) for name, given in (self.metrics or {}).items()}
        return {**found, "loss": OwnMetric(None, "min")} if "loss" not in found else found


def _metric(name: str, given: Any) -> OwnMetric:
    """A metric given as a function, as "max" or "min", or as a pair of both."""
    if not name.isidentifier():
        raise UserError(f"metrics: {name!r} is not a name; allowed: letters, digits and _")
    measure, direction = given if isinstance(given, tuple) else (given, None)
    if isinstance(measure, str):
        measure, direction = direction, measure
    if measure is not None and not callable(measure):
        raise UserError(
            f"metrics: {name}={given!r}; allowed: a function (output, target), "
            "'max' or 'min' for a value that step returns, or a pair of both"
        )
    if direction is None:
        direction = _guess(name)
    if direction not in ("max", "min"):
        raise UserError(
            f"metrics: whether high or low values of {name!r} are good is not known; "
            f"write {name}=(function, 'max') or (function, 'min')"
        )
    return OwnMetric(measure, direction)


def _guess(name: str) -> str | None:
    words = name.lower().replace("-", "_").split("_")
    if any(word.startswith(_LOWER) for word in words):
        return "min"
    return "max" if any(word.startswith(_HIGHER) for word in words) else None


def _name(given: object) -> str:
    return getattr(given, "__qualname__", None) or repr(given)
