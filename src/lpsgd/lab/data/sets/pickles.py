"""Reading pickles of numpy arrays and plain values without giving them the power to run code."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np


class ForbiddenPickle(pickle.UnpicklingError):
    """The pickle asks for something other than a numpy array or a plain value."""


def loads(data: bytes) -> Any:
    """Unpickle arrays, numbers, strings, lists, tuples and dicts; refuse everything else.

    A pickle is a program: loading one calls whatever functions it names. This reader resolves the
    few names that numpy arrays are made of and raises :class:`ForbiddenPickle` for any other
    before anything is called. Strings of Python 2 are read as bytes.

    Numpy's own functions are not safe either: ``ndarray(shape, object, buffer)`` and the state of
    a dtype make arrays whose bytes are taken for addresses of objects. So the names stand for the
    functions below, which make arrays of numbers and nothing else.
    """
    return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()


class _Dtype:
    """A type of numbers; of the state that numpy would take, only the byte order is looked at."""

    __slots__ = ("numpy",)

    def __init__(self, numpy: np.dtype[Any]) -> None:
        self.numpy = numpy

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1]) if isinstance(state, tuple) and len(state) > 1 else ""
        if order not in ("<", ">", "|", "="):
            raise ForbiddenPickle(f"a dtype in the state {state!r:.60}")
        self.numpy = self.numpy.newbyteorder(order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    """An array that takes numbers alone as its content."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ForbiddenPickle("an array in an unknown state")
        version, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise ForbiddenPickle("an array of something other than numbers")
        plain: Any = (version, shape, dtype.numpy, fortran, content)
        super().__setstate__(plain)


def _encode(text: str, encoding: str) -> bytes:
    # how Python 3 writes bytes in old protocols; the real function would import any codec
    if encoding not in ("latin1", "latin-1"):
        raise ForbiddenPickle(f"bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


def _ndarray(*_: Any) -> Any:
    # a pickle gives this name to _reconstruct; calling it is not how arrays are written
    raise ForbiddenPickle("an array made of raw memory")


def _dtype(code: Any, *_: Any) -> _Dtype:
    if not re.fullmatch(r"[<>|=]?([iuf][1248]|b1|c8|c16)", text := _text(code)):
        raise ForbiddenPickle(f"an array of {code!r:.60}, not of numbers")
    return _Dtype(np.dtype(text))


def _reconstruct(*_: Any) -> _Array:
    return np.empty(0, np.uint8).view(_Array)  # its content comes with its state


def _frombuffer(content: Any, dtype: Any, shape: Any, order: Any) -> Any:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
        raise ForbiddenPickle("an array of something other than numbers")
    return np.frombuffer(content, dtype.numpy).reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


_ALLOWED = {
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
for _package in ("numpy.core", "numpy._core"):  # the name before and after numpy 2
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = _frombuffer


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ForbiddenPickle(
                f"it asks for {module}.{name}; only numpy arrays and plain values are allowed"
            ) from None
