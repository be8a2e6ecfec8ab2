"""Where data lives on disk, and the sentences for what is missing, damaged or absurdly large."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rattle.data.urls import URLS
from rattle.errors import RattleError

MEMBER_LIMIT = 2**30  # bytes of one file of a known dataset, unpacked; the largest, CIFAR-100's train, has 155 MB
FOLDERS = {  # where else, under the root, other tools put them; MNIST's two share file names, so never the root itself
    "cifar10": ("cifar10", "."),
    "cifar100": ("cifar100", "."),
    "svhn": ("svhn", "."),
    "mnist": ("mnist", "MNIST/raw", "MNIST"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
}


def data_root(root: str | Path | None = None) -> Path:
    """What was asked for, else RATTLE_DATA, else ./data."""
    return Path(root or os.environ.get("RATTLE_DATA") or "data").expanduser()


def find(name: str, root: Path, files: Sequence[str]) -> Path:
    """The first of the files (any will do) that exists for a known dataset, checked if it is the official one."""
    places = [root / folder for folder in FOLDERS[name]]
    for place in places:
        for file in files:
            if (place / file).exists():
                check_md5(name, place / file)
                return place / file
    raise RattleError(
        f"{name}: found no {' or '.join(files)} in {', '.join(map(str, places))}; get it with "
        f"`rattle data get {name} --root {root}`, or say where it is with --data.root or RATTLE_DATA"
    )


def check_md5(name: str, path: Path) -> None:
    """A file with the name and size of the official one has to be the official one."""
    for remote in URLS[name]:
        if (
            path.is_file()
            and (path.name, path.stat().st_size) == (remote.file, remote.size)
            and md5(path) != remote.md5
        ):
            raise RattleError(
                f"{path} is damaged: its MD5 is {md5(path)}, not {remote.md5}; delete it and run "
                f"`rattle data get {name}` again"
            )


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_size(size: int, what: str, limit: int = MEMBER_LIMIT) -> None:
    """Before a byte of it is read."""
    if size > limit:
        raise RattleError(f"{what} would unpack to {size:,} bytes, more than the {limit:,} allowed; it is not read")


@contextmanager
def readable(path: Path, *damages: type[Exception]) -> Iterator[None]:
    """Turns what a parser raises on a broken file into a sentence."""
    try:
        yield
    except RattleError:
        raise
    except (EOFError, OSError, *damages) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RattleError(f"{path} is truncated or damaged ({reason.rstrip('.')}); nothing was loaded") from error
