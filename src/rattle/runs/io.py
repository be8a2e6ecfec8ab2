"""Files: atomic writes, lines of JSON, and dataclasses of arrays as .npz; nothing is pickled."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from rattle.errors import RattleError


def write_atomically(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """All of it under its name, or nothing: write beside, fsync, rename, fsync the folder; `keep` gets the old one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as reason:
        with suppress(OSError):
            beside.unlink()
        raise unwritable(path, reason) from reason


def sync_folder(path: Path) -> None:
    """Names are on disk too."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """One JSON object more in a file of one a line, on disk before we go on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        raise unwritable(path, reason) from reason


def unwritable(path: Path, reason: OSError) -> RattleError:
    return RattleError(f"cannot write {path}: {reason.strerror or reason}; what was saved earlier is intact")


def read_json(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is none, with a sentence in `notes` unless the file is absent."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        notes.append(f"{path.name} is damaged and was left out")
        return None
    if not isinstance(found, dict):
        notes.append(f"{path.name} does not hold an object and was left out")
        return None
    return found


T = TypeVar("T")


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every field by its dotted name, dataclasses inside dataclasses included."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        name = prefix + field.name
        found |= flat(item, name + ".") if is_dataclass(item) else {name: np.asarray(item)}
    return found


def save_arrays(value: Any, path: str | Path) -> Path:
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


def load_arrays(kind: type[T], path: str | Path) -> T:
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
