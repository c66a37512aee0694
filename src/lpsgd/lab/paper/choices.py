"""What the paper does not say, or says twice differently: our choice, and a flag for the other.

``lpsgd reproduce TARGET --choose NAME=VALUE`` takes another one; docs/reproduction.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.peers.grammar import parse_pair

Kind = Literal["word", "number", "count", "numbers"]


@dataclass(frozen=True)
class OpenChoice:
    """One open question: its name on the command line, the default, what else there is."""

    name: str
    question: str
    paper: str
    default: str
    others: tuple[str, ...]
    """The other words, or for numbers a description of what is allowed."""
    kind: Kind = "word"

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        return ", ".join((self.default, *self.others)) if self.kind == "word" else self.others[0]

    def read(self, text: str) -> Any:
        """The value that ``text`` stands for."""
        try:
            if self.kind == "word" and text not in (self.default, *self.others):
                raise ValueError
            if self.kind == "numbers":
                return tuple(_number(part) for part in text.split(","))
            if self.kind == "count":
                return _count(text)
            return _number(text) if self.kind == "number" else text
        except ValueError:
            raise UserError(f"--choose {self.name}={text}: allowed: {self.allowed}") from None


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_AT_LEAST_0 = ("a number, 0 or more",)
_AT_LEAST_1 = ("a whole number, 1 or more",)

CHOICES = (
    OpenChoice(
        "warmup",
        "Epochs of learning-rate warm-up",
        '"warmup cosine decay", no length',
        "5",
        ("epochs of the full protocol, 0 or more; scaled runs take the same share",),
        "number",
    ),
    OpenChoice("augment", "Augmentation of training images", "silent", "on", ("off",)),
    OpenChoice(
        "imagenet-epochs",
        "ImageNet's total epochs, over which lr and p are annealed",
        "results at 20, 40 and 60; no total",
        "60",
        _AT_LEAST_1,
        "count",
    ),
    OpenChoice(
        "sgd-decay",
        "Weight decay of SGD w/ Momentum",
        "decoupled for LPSGDM, silent for SGD",
        "coupled",
        ("decoupled",),
    ),
    OpenChoice(
        "sgd-momentum",
        "Momentum of SGD: m <- b m + g or m <- b m + (1-b) g, a tenfold difference in lr",
        "averaged for LPSGDM, silent for SGD",
        "heavy-ball",
        ("averaged",),
    ),
    OpenChoice("nesterov", "Nesterov's momentum for SGD", "silent", "off", ("on",)),
    OpenChoice(
        "decayed", "Which parameters are decayed", "silent; theta as a whole", "all", ("matrices",)
    ),
    OpenChoice("vgg", "VGG-11 with or without batch norm", "silent", "batch-norm", ("plain",)),
    OpenChoice(
        "gpus",
        "A batch of 128 in all, or on each of so many GPUs",
        "batch size 128; GPUs not mentioned",
        "1",
        _AT_LEAST_1,
        "count",
    ),
    OpenChoice("lr-end", "Final learning rate / peak", "silent", "0", _AT_LEAST_0, "number"),
    OpenChoice(
        "p-cosine",
        "Whether p's cosine spans the warm-up",
        "p_1 = p_max and p_S = 2 over all S epochs",
        "whole",
        ("after-warmup",),
    ),
    OpenChoice(
        "fig4-p",
        "The p_max values of Fig. 4",
        "silent; the tables use 6 (CIFAR-10) and 9 (ImageNet-1K)",
        "2,4,6,9,16",
        ("numbers from 2 on, separated by commas",),
        "numbers",
    ),
    OpenChoice(
        "fig2-sgd-lr",
        "SGD's learning rate in Fig. 2 (no momentum, no decay)",
        "SGD and LPSGD have no row in the tables",
        "0.1",
        _AT_LEAST_0,
        "number",
    ),
    OpenChoice(
        "fig2-lpsgd-lr",
        "LPSGD's learning rate in Fig. 2 (no momentum, no decay; p_max of LPSGDM's row)",
        "SGD and LPSGD have no row in the tables",
        "0.001",
        _AT_LEAST_0,
        "number",
    ),
    OpenChoice(
        "fig1-optimizer",
        "The optimizer that trains the network of Fig. 1, with its row of the tables",
        "silent",
        "sgd",
        ("lpsgdm", "adamw", "lion"),
    ),
    OpenChoice(
        "fig1-samples",
        "Training images over which Fig. 1's Hessian is taken",
        "silent",
        "2048",
        _AT_LEAST_1,
        "count",
    ),
    OpenChoice(
        "fig1-batchnorm",
        "Batch norm while Fig. 1's Hessian is measured",
        "silent",
        "eval",
        ("batch",),
    ),
    OpenChoice(
        "train-nll",
        "Training NLL: mean over the epoch's batches, or the whole set in evaluation mode",
        "silent",
        "running",
        ("whole",),
    ),
    OpenChoice(
        "lion-beta2",
        "Lion's beta_2",
        "0.99 in the text, 0.999 in Tables 4 and 5, 0.99 in Table 6",
        "table",
        ("text",),
    ),
    OpenChoice(
        "grid-lr0",
        "The learning rate 0 in the grid of SGD and LPSGDM",
        "listed",
        "drop",
        ("keep",),
    ),
)
_BY_NAME = {choice.name: choice for choice in CHOICES}


def read_choices(texts: Sequence[str] = ()) -> Mapping[str, Any]:
    """All choices: the defaults, and those written as NAME=VALUE.

    >>> read_choices(["warmup=0"])["warmup"], read_choices()["fig4-p"]
    (0.0, (2.0, 4.0, 6.0, 9.0, 16.0))
    """
    chosen = {choice.name: choice.read(choice.default) for choice in CHOICES}
    for item in texts:
        try:
            name, value = parse_pair(item)
        except ValueError as error:
            raise UserError(f"--choose: {error}") from None
        if name not in _BY_NAME:
            raise UserError(unknown_name("choice", name, _BY_NAME))
        chosen[name] = _BY_NAME[name].read(value)
    return chosen
