"""What to say about a name that nobody knows: the nearest ones that somebody does."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the text of an error about an unknown ``name``.

    >>> unknown_name("setting", "momentun", ["lr", "momentum"])
    "unknown setting 'momentun' (did you mean 'momentum'?); there are: lr, momentum"
    """
    names = list(known)
    spelt = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), spelt, n=3, cutoff=0.5)
    hint = f" (did you mean {' or '.join(repr(spelt[m]) for m in close)}?)" if close else ""
    return f"unknown {kind} {name!r}{hint}; there are: {', '.join(names) or 'none'}"
