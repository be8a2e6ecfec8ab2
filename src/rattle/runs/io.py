"""Reading and writing files: atomic writes, lines of JSON, dataclasses of arrays as .npz. Nothing is pickled."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from rattle.data.files import open_arrays
from rattle.errors import RattleError
from rattle.recipes.reading import LARGEST_JSON, parse_json
from rattle.runs.paths import Run
from rattle.settings import Plain as Plain

T = TypeVar("T")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file that is about to be written; raises RattleError if it cannot be written."""
    try:
        refuse_links(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as reason:
        why = "it is a link, which is not followed" if reason.errno == errno.ELOOP else reason.strerror or reason
        raise RattleError(f"cannot write {path}: {why}; what was saved earlier is intact") from reason


def refuse_links(path: Path) -> None:
    """Refuse to write into a folder of a run that is a link to somewhere else: a run is untrusted."""
    for folder in list(path.parents)[:2]:
        if (
            folder.is_symlink()
            and Run(folder.parent).exists()
            and not folder.resolve().is_relative_to(folder.parent.resolve())
        ):
            raise RattleError(f"{folder} is a link that leads out of its run: put a folder in its place")


def no_link(path: str, flags: int) -> int:
    """An `opener` that follows no link, waits for no pipe, and makes no file that everybody may write."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)  # Windows has none of them
    return os.open(path, flags, 0o664)


@contextmanager
def atomic_file(path: Path, *, backup: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write into that gets its name only when it is complete and on disk.

    It is written beside `path`, synced and renamed; after an error the old file is untouched. The file that is
    replaced is renamed to `backup` if one is given.
    """
    part = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            part.unlink(missing_ok=True)  # left by a killed process, or a planted link
            with open(part, "xb", opener=no_link) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if backup is not None and path.exists():
                os.replace(path, backup)
            os.replace(part, path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or nothing, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, plain: Any, **how: Any) -> None:
    """Write plain data as one JSON file, whole or not at all; `how` as of json.dumps."""
    write_atomically(path, json.dumps(plain, **how).encode())


def sync_folder(path: Path) -> None:
    """fsync the directory entry, so that a renamed file survives a power failure; Windows opens no folders."""
    if os.name == "nt":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: Plain) -> None:
    """Append one JSON object to a file of one object a line, and fsync it."""
    with writing(path), open(path, "a", encoding="utf-8", opener=no_link) as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path, notes: list[str]) -> Plain | None:
    """The JSON object in a file; None if there is none, with a sentence in `notes` unless the file is absent."""
    try:
        if (path.exists() and not path.is_file()) or path.stat().st_size > LARGEST_JSON:
            raise ValueError(path)
        found = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        notes.append(f"{path.name} does not hold an object and was left out")
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        notes.append(f"{path.name} is damaged and was left out")
    return None


def read_jsonl(path: Path, notes: list[str], *, key: str = "epoch") -> list[Plain]:
    """The objects of a file of one object a line by their entry `key`, a whole number; of a repeated one the last.

    Damaged lines are left out, with a sentence in `notes`; an absent file is empty.
    """
    try:
        lines = path.read_bytes().splitlines() if path.is_file() and path.stat().st_size <= LARGEST_JSON else []
    except OSError:
        return []
    found = {}
    broken = []
    for number, line in enumerate(lines, start=1):
        entry = None
        with suppress(ValueError):
            entry = parse_json(line)
        if isinstance(entry, dict) and type(entry.get(key)) is int:
            found[entry[key]] = entry
        elif line.strip():
            broken.append(str(number))
    if broken:
        notes.append(f"{path.name}: broken lines are left out ({', '.join(broken[:5])})")
    return [found[number] for number in sorted(found)]


def save_arrays(value: Any, path: Path) -> Path:
    """Write a dataclass of numbers, strings and arrays as a compressed .npz file."""
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    with atomic_file(path) as file:
        np.savez_compressed(file, kind=type(value).__name__, **values)  # type: ignore[arg-type]
    return path


def load_arrays(kind: type[T], path: Path) -> T:
    """Read what `save_arrays` wrote; raises RattleError if the file does not hold this dataclass."""
    stored = read_arrays(path)
    found = str(stored.get("kind", "something else"))
    if found != kind.__name__:
        raise RattleError(f"{path} holds {found}, not {kind.__name__}")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in stored:
            array = stored[field.name]
            values[field.name] = array.item() if array.ndim == 0 else array
    try:
        return kind(**values)
    except TypeError as reason:
        raise RattleError(f"{path} was written by another version: {reason}") from reason


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file; raises RattleError if it is something else. Nothing in it can run."""
    if not path.exists():
        raise RattleError(f"there is no file {path}")
    with open_arrays(path) as arrays:
        found = dict(arrays)
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise RattleError(f"{path} has members that are no arrays")
    return found


def new_file(path: str, overwrite: bool) -> Path:
    """The path of a file to write that is not there yet, or that `overwrite` says may be replaced.

    Called before the work whose result goes there, so that none is done in vain.
    """
    if Path(path).exists() and not overwrite:
        raise RattleError(f"{path} exists already: --overwrite replaces it, or choose another name")
    return Path(path)
