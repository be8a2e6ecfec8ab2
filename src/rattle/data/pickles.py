"""A restricted unpickler for arrays: nothing that a pickle names is ever imported or called.

The few names that a pickled dict of arrays needs are mapped to the harmless stand-ins below and every other name is
refused; not even numpy's own constructors can be called from the file.
"""

import io
import pickle
from typing import Any

import numpy as np

from rattle.errors import RattleError
from rattle.settings import Plain


class Refused(Exception):
    """The pickle names something that images and labels do not need."""


class PickledType:
    """Stands in for numpy.dtype; accepts bytes only, which images are."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise Refused(f"an array of type {code!r}")

    def __setstate__(self, state: Any) -> None:
        """Bytes have no byte order, fields or subtypes: there is nothing to set."""


class PickledArray:
    """Stands in for numpy.ndarray; builds a new array from the pickled bytes."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not (isinstance(raw, bytes) and isinstance(kind, PickledType)):
            raise Refused("an array that is not plain bytes")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


ALLOWED = {
    "numpy.ndarray": PickledArray,
    "numpy.dtype": PickledType,
    "numpy.core.multiarray._reconstruct": PickledArray,
    "numpy._core.multiarray._reconstruct": PickledArray,
}


class RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name not in ALLOWED:
            raise Refused(name)
        return ALLOWED[name]


def load_pickle(raw: bytes, where: str) -> Plain:
    """A pickled dict of arrays, lists and texts, with its keys as str; RattleError for anything else.

    raw: the pickle. where: the file, for error messages.
    """
    try:
        loaded = RestrictedUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Refused as error:
        raise RattleError(
            f"{where} is refused: its pickle asks for {error}, which images do not need; nothing in it was run"
        ) from error
    except Exception as error:  # a broken pickle can raise any exception
        raise RattleError(f"{where} is truncated or damaged: it is not a whole pickle") from error
    if not isinstance(loaded, dict):
        raise RattleError(f"{where} holds a {type(loaded).__name__}, not a dict of images and labels")
    return {as_text(k): v.array if isinstance(v, PickledArray) else v for k, v in loaded.items()}


def as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
