"""Pickled arrays without pickle's power: nothing named in the file is ever imported or called.

The few names that a pickled dict of arrays needs resolve to the inert stand-ins below, every other name is refused,
and even numpy's own constructors stay out of reach of the file.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from rattle.errors import RattleError

PLAIN_TYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}


class Refused(Exception):
    """The pickle asks for something that images and labels do not need."""


class PickledType:
    """Stands for numpy.dtype: remembers a plain type's code."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        code = code.decode() if isinstance(code, bytes) else code
        if code not in PLAIN_TYPES:
            raise Refused(f"an array of type {code!r}")
        self.dtype = np.dtype(PLAIN_TYPES[code])

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|", b"<", b"|"):
            raise Refused("an array of another byte order")


class PickledArray:
    """Stands for numpy.ndarray: keeps the bytes it is given as a fresh array."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.fill(raw, kind, shape, "F" if fortran else "C")

    def fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        if not (isinstance(raw, bytes | bytearray) and isinstance(kind, PickledType) and order in ("C", "F")):
            raise Refused("an array that is not plain bytes")
        self.array = np.frombuffer(raw, kind.dtype).reshape(shape, order=order)
        return self


def reconstruct(*_: Any) -> PickledArray:
    return PickledArray()


def from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    return PickledArray().fill(raw, kind, shape, order)


def encode(text: Any, encoding: Any) -> bytes:
    """Stands for _codecs.encode, how Python 3 writes bytes in an old pickle protocol."""
    if not (isinstance(text, str) and encoding in ("latin1", b"latin1")):
        raise Refused("an unusual text encoding")
    return text.encode("latin1")


INERT: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("numpy.core.multiarray", "_reconstruct"): reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): reconstruct,
    ("numpy.core.numeric", "_frombuffer"): from_buffer,
    ("numpy._core.numeric", "_frombuffer"): from_buffer,
    ("_codecs", "encode"): encode,
}


class InertUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in INERT:
            raise Refused(f"{module_name}.{global_name}")
        return INERT[module_name, global_name]


def load_pickle(raw: bytes, where: str) -> dict[str, Any]:
    """A pickled dict of arrays, lists and texts, its keys as str; anything else is refused in a sentence."""
    try:
        loaded = InertUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Refused as error:
        raise RattleError(
            f"{where} is refused: its pickle asks for {error}, which images do not need; nothing in it was run"
        ) from error
    except Exception as error:  # a broken pickle may raise anything
        raise RattleError(f"{where} is truncated or damaged: it is not a whole pickle") from error
    if not isinstance(loaded, dict):
        raise RattleError(f"{where} holds a {type(loaded).__name__}, not a dict of images and labels")
    return {as_text(key): plain(value) for key, value in loaded.items()}


def as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def plain(value: Any) -> Any:
    return getattr(value, "array", None) if isinstance(value, PickledArray) else value
