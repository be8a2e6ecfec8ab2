"""Data files on disk: where they are looked for, checksums, size limits, atomic writes, errors for damaged files."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from rattle.data.sources import URLS
from rattle.errors import RattleError, first_line

ARRAY_LIMIT = 64 * 2**30  # bytes of one unpacked array
DENSEST = 100  # bytes that a byte of a larger array may unpack to; photographs come to 2, grey drawings to 10
LARGEST_READ = 2**28  # bytes; a larger array of bytes that is not compressed is mapped: every rank would hold a copy
MEMBER_LIMIT = 2**30  # bytes of one unpacked file of a known dataset; the largest, CIFAR-100's train, has 155 MB


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds datasets: `root` if given, else the environment variable RATTLE_DATA, else ./data."""
    return Path(root or os.environ.get("RATTLE_DATA") or "data").expanduser()


def find_folder(name: str, root: Path, files: Sequence[str], folders: Sequence[str] = ()) -> Path:
    """The first existing path among `files` of dataset `name`; a file that has the name of an official one must be it.

    files: alternative names. folders: where to look under root; root/name and root by default.
    """
    searched = [root / folder for folder in folders or (name, ".")]
    for path in (folder / file for folder in searched for file in files):
        if not path.exists():
            continue
        official = [remote.md5 for remote in URLS.get(name, ()) if remote.file == path.name]
        if official:
            found = md5(path) if path.is_file() else "none"  # to read a pipe would wait for ever
            if found not in official:
                raise RattleError(
                    f"{path} is not the official file, or damaged: its MD5 is {found}, not {official[0]}; delete it "
                    f"and run `rattle data get {name}`, or save your own images as .npz"
                )
        return path
    download = f"download it with `rattle data get {name} --root {root}`, or " if name in URLS else ""
    raise RattleError(
        f"{name}: found no {' or '.join(files)} in {', '.join(map(str, searched))}; {download}"
        "name the folder that holds it with --data.root or RATTLE_DATA"
    )


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what parsers raise on a damaged file, which is every kind of exception, into a RattleError that names it.

    A pipe or a device, on which reading could wait for ever, is refused.
    """
    if path.exists() and not path.is_file():
        raise RattleError(f"{path} is not a file: nothing was loaded")
    try:
        yield
    except RattleError:
        raise
    except Exception as error:
        reason = first_line(error).rstrip(".")
        raise RattleError(f"{path} is truncated or damaged ({reason}); nothing was loaded") from error


@contextmanager
def open_arrays(path: Path) -> Iterator[NpzFile]:
    """The arrays of a file, to be read while it is open; arrays of Python objects, which need pickle, are refused."""
    with readable(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        for info in arrays.zip.infolist():
            limit = min(ARRAY_LIMIT, max(LARGEST_READ, DENSEST * info.compress_size))
            if info.file_size > limit:
                name = info.filename.removesuffix(".npy")
                raise RattleError(f"{path}: {name} would unpack to {info.file_size:,} bytes, over {limit:,}: not read")
        yield arrays


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces `path` if the body succeeds, else it is deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")  # unique: several ranks may write the same file
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
