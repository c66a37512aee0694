"""The error for a name that nobody knows, with the nearest one that somebody does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lpsgd.lab.errors import UserError


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """``unknown model 'resnet19' (did you mean 'resnet18'?); there are: ...``"""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"unknown {kind} {name!r}{hint}; there are: {', '.join(known)}")
