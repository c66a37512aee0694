"""What to say about an option that a command does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from lpsgd.peers import registry

# How a command takes the settings of optimizers, which are no options of their own.
_WRITTEN = {
    "train": "--optimizer lpsgdm:{}=VALUE",
    "suggest": "--optimizer lpsgdm:{}=VALUE",
    "compare": "--optimizers sgd,lpsgdm:{}=VALUE",
    "sweep": "in a file of --space",
}


def unknown_option(error: Any) -> str:
    """Name the nearest option, or how to write it if it is a setting of the optimizer.

    ``error`` is click's NoSuchOption.
    """
    context, given = error.ctx, error.option_name
    name = given.lstrip("-").replace("-", "_").lower()
    options = {
        text.lstrip("-").replace("-", "_"): text
        for parameter in context.command.params
        for text in parameter.opts
        if text.startswith("--")
    }
    command = _command(context)
    told = f"{command}: unknown option {given!r}".lstrip(": ")
    written = _WRITTEN.get(command)
    settings = dict.fromkeys(s for n in registry.names() for s in registry.get(n).settings)
    if written and (setting := _same(name, settings)):
        return f"{told}: {setting} is a setting of the optimizer, written {written.format(setting)}"
    begun = [other for other in options if other.startswith(name) and len(name) > 1]
    same = [found] if (found := _same(name, options)) else begun[:3]
    close = same or get_close_matches(name, options, n=2, cutoff=0.6)
    if close:
        return f"{told} (did you mean {' or '.join(options[match] for match in close)}?)"
    return f"{told}; see `{' '.join(f'lpsgd {command}'.split())} --help`"


def _command(context: Any) -> str:
    """The command as the user wrote it, without the program's name."""
    if context.parent is None:
        return ""
    return f"{_command(context.parent)} {context.info_name}".strip()


def _same(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is, or whose initials it has (lr, learning_rate)."""
    for other in known:
        if name == other or _initials(name) == other or (name == _initials(other) != other[:1]):
            return other
    return None


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))
