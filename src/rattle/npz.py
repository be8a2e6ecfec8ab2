"""Frozen dataclasses of arrays, numbers and strings to an .npz file and back; nothing is pickled."""

from __future__ import annotations

import os
import zipfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

import numpy as np

from rattle.errors import RattleError

T = TypeVar("T")


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every field by its dotted name, dataclasses inside dataclasses included."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        name = prefix + field.name
        found |= flat(item, name + ".") if is_dataclass(item) else {name: np.asarray(item)}
    return found


def save(value: Any, path: str | Path) -> Path:
    """Write a dataclass; a file half written never stands under the final name."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        np.savez_compressed(file, kind=type(value).__name__, **flat(value))
    os.replace(part, path)
    return path


def rebuilt(kind: type[T], stored: dict[str, np.ndarray], prefix: str = "") -> T:
    values: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        hint, name = hints[field.name], prefix + field.name
        if is_dataclass(hint):
            values[field.name] = rebuilt(hint, stored, name + ".")  # type: ignore[arg-type]
        else:
            values[field.name] = stored[name].item() if hint in (int, float, str) else stored[name]
    return kind(**values)


def load(kind: type[T], path: str | Path) -> T:
    """Read back what `save` wrote; another kind of file is refused in words."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise RattleError(f"there is no file {path}") from None
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, TypeError):
        raise RattleError(f"{path} is not an .npz file of arrays") from None
    found = str(stored.get("kind", "something else"))
    if found != kind.__name__:
        raise RattleError(f"{path} holds {found}, not {kind.__name__}")
    try:
        return rebuilt(kind, stored)
    except KeyError as missing:
        raise RattleError(f"{path} lacks {missing}: it was written by another version") from None


class Saved:
    """A dataclass that saves itself to an .npz file and loads itself from one."""

    __slots__ = ()

    def save(self, path: str | Path) -> Path:
        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        return load(cls, path)
