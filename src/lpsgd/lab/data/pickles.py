"""Reading pickles of numpy arrays and plain values without giving them the power to run code."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


class ForbiddenPickle(pickle.UnpicklingError):
    """The pickle asks for something other than a numpy array or a plain value."""


def loads(data: bytes) -> Any:
    """Unpickle arrays, numbers, strings, lists, tuples and dicts; refuse everything else.

    A pickle is a program: loading one calls whatever functions it names. This reader resolves the
    few names that numpy arrays are made of and raises :class:`ForbiddenPickle` for any other
    before anything is called. Strings of Python 2 are read as bytes.
    """
    return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()


def _encode(text: str, encoding: str) -> bytes:
    # how Python 3 writes bytes in old protocols; the real function would import any codec
    if encoding not in ("latin1", "latin-1"):
        raise ForbiddenPickle(f"bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


def _array_functions() -> dict[tuple[str, str], Any]:
    from numpy._core.multiarray import _reconstruct
    from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]

    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }
    for package in ("numpy.core", "numpy._core"):  # the name before and after numpy 2
        allowed[f"{package}.multiarray", "_reconstruct"] = _reconstruct
        allowed[f"{package}.numeric", "_frombuffer"] = _frombuffer
    return allowed


_ALLOWED = _array_functions()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ForbiddenPickle(
                f"it asks for {module}.{name}; only numpy arrays and plain values are allowed"
            ) from None
