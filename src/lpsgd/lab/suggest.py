"""The error for a name that nobody knows, with the nearest one that somebody does."""

from __future__ import annotations

from collections.abc import Iterable

from lpsgd import _suggest as nearest
from lpsgd.lab.errors import UserError


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """``unknown model 'resnet19' (did you mean 'resnet18'?); there are: ...``"""
    return UserError(nearest.unknown(kind, name, known))
