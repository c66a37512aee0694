"""What the paper does not say, or says twice differently: our choice, and a flag for the other.

``lpsgd reproduce TARGET --choose NAME=VALUE`` takes another one; docs/reproduction.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.tables import published as tables
from lpsgd.peers.grammar import parse_pair

_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_KINDS: dict[str, TypeAdapter[Any]] = {
    "word": TypeAdapter(str),
    "number": TypeAdapter(_Number),
    "count": TypeAdapter(PositiveInt),
    "numbers": TypeAdapter(tuple[_Number, ...]),
}


@dataclass(frozen=True)
class OpenChoice:
    """One open question: its name on the command line, the default, what else there is."""

    name: str
    question: str
    paper: str
    default: str
    others: Annotated[tuple[str, ...], BeforeValidator(lambda text: text.split("|"))]
    """The other words, or for numbers a description of what is allowed."""
    kind: Literal["word", "number", "count", "numbers"] = "word"

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        return ", ".join((self.default, *self.others)) if self.kind == "word" else self.others[0]

    def read(self, text: str) -> Any:
        """The value that ``text`` stands for."""
        try:
            if self.kind == "word" and text not in (self.default, *self.others):
                raise ValueError
            parts = text.split(",") if self.kind == "numbers" else text
            return _KINDS[self.kind].validate_python(parts)
        except ValueError:
            raise UserError(f"--choose {self.name}={text}: allowed: {self.allowed}") from None


CHOICES = tables.read_rows("choices.csv", OpenChoice)
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
