"""The networks of the laboratory, by name.

>>> from lpsgd.lab.models import create
>>> model = create("resnet18", input_shape=(3, 32, 32), classes=10)
>>> sum(parameter.numel() for parameter in model.parameters())
11173962
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_name", "create", "names"]

PUBLISHED_WIDTH = 64

# name -> (module, what its inputs are); torch is imported only when a model is made
_MODELS = {
    "vgg11": ("vgg", "image"),
    "vgg11_plain": ("vgg", "image"),
    "resnet18": ("resnet", "image"),
    "resnet50": ("resnet", "image"),
    "mlp": ("mlp", "image"),
    "convnet": ("convnet", "image"),
    "gpt": ("gpt", "text"),
}


def names() -> list[str]:
    """The names that :func:`create` knows."""
    return list(_MODELS)


def check_name(name: str) -> None:
    """Raise UserError, with the nearest name, unless :func:`create` knows ``name``."""
    if name not in _MODELS:
        raise UserError(unknown_name("model", name, _MODELS))


def create(
    name: str, *, input_shape: Sequence[int], classes: int, width: int | None = None
) -> nn.Module:
    """A freshly initialised network, drawn from torch's global generator.

    Args:
        name: one of :func:`names`.
        input_shape: (channels, height, width) of the images, which also decides between the form
            for small images (up to 64 x 64) and the published form for large ones; for ``gpt``
            (context,).
        classes: number of classes; for ``gpt`` the size of the vocabulary.
        width: channels of the first stage, all other channels follow in proportion. Default 64,
            which is the published width of the convolutional networks.
    """
    check_name(name)
    module, task = _MODELS[name]
    shape = tuple(input_shape)
    if len(shape) != (3 if task == "image" else 1) or min(shape) < 1:
        wanted = (
            "(channels, height, width) of images" if task == "image" else "(context,) of a text"
        )
        raise UserError(f"model {name!r} takes {wanted}; input_shape is {shape}")
    if classes < 1:
        raise UserError(f"classes is {classes}; allowed: 1 or more")
    width = PUBLISHED_WIDTH if width is None else width
    if width < 1:
        raise UserError(f"width is {width}; allowed: 1 or more (default {PUBLISHED_WIDTH})")
    factory = cast(
        "Callable[[tuple[int, ...], int, int], nn.Module]",
        getattr(import_module(f"lpsgd.lab.models.{module}"), name),
    )
    return factory(shape, classes, width)
