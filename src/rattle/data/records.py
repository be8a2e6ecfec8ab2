"""Where encoded pictures lie, by number: the files of class folders, or members of tar shards. Picture i is one seek.

Names are one block of bytes and places are arrays, since a million small Python objects would fill the memory.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rattle.data.files import check_size, readable
from rattle.errors import RattleError

MOST_BYTES = 2**26  # of one encoded picture; a photograph of 50 million pixels has 20 to 30 MB
SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Encoded pictures: each a file in a folder, or some bytes of a tar shard; nothing is ever unpacked to disk."""

    places: tuple[Path, ...]  # the folder, or the shards
    place: np.ndarray  # int64 [n], which of them
    offset: np.ndarray  # int64 [n], of its first byte in the shard; -1: the picture is a file of its own in the folder
    size: np.ndarray  # int64 [n], bytes in the shard
    names: np.ndarray  # uint8, all names in UTF-8, one after the other
    ends: np.ndarray  # int64 [n], where each name ends

    def __len__(self) -> int:
        return len(self.place)

    def name(self, i: int) -> str:
        """The name of picture i inside its folder or shard."""
        start = int(self.ends[i - 1]) if i else 0
        return os.fsdecode(self.names[start : int(self.ends[i])].tobytes())

    def where(self, i: int) -> str:
        """What a message calls picture i."""
        return f"{self.places[self.place[i]]}/{self.name(i)}"

    def read(self, i: int) -> bytes:
        """The bytes of picture i, all of them."""
        place, offset, size = self.places[self.place[i]], int(self.offset[i]), int(self.size[i])
        path = place / self.name(i) if offset < 0 else place
        with readable(path), path.open("rb", buffering=0) as file:  # opened each time: shards may outnumber open files
            if offset < 0:
                size = os.fstat(file.fileno()).st_size
                check_size(size, str(path), MOST_BYTES)
            found = os.pread(file.fileno(), size, max(offset, 0))
        if len(found) < size:
            raise RattleError(f"{path} is cut: {self.name(i)} should have {size:,} bytes there and has {len(found):,}")
        return found

    def digest(self) -> str:
        """A checksum of names, places and sizes, in this order: what processes that share the work must agree on."""
        found = hashlib.sha256("\0".join(place.name for place in self.places).encode(errors="surrogateescape"))
        for part in (self.place, self.offset, self.size, self.names, self.ends):
            found.update(np.ascontiguousarray(part).tobytes())
        return found.hexdigest()


def make_records(
    places: Sequence[Path], place: Iterable[int], offset: Iterable[int], size: Iterable[int], names: Sequence[str]
) -> Records:
    """Records from plain lists, one entry a picture; places: the folder, or the shards."""
    encoded = [os.fsencode(name) for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    first, second, third = (np.asarray(list(column), np.int64) for column in (place, offset, size))
    return Records(tuple(places), first, second, third, np.frombuffer(b"".join(encoded), np.uint8), ends)


def folder_records(path: Path, classes: Sequence[str]) -> tuple[Records, np.ndarray]:
    """The pictures in the class folders of a path, at any depth, and their labels int64; an empty class is refused."""
    names: list[str] = []
    counts = []
    for name in classes:
        found = pictures_below(path, name) if (path / name).is_dir() else []
        if not found and (path / name).is_dir():
            raise RattleError(f"{path / name} holds no {', '.join(SUFFIXES)} file")
        names += found
        counts.append(len(found))
    n = len(names)
    return make_records([path], [0] * n, [-1] * n, [-1] * n, names), np.repeat(np.arange(len(classes)), counts)


def pictures_below(path: Path, name: str) -> list[str]:
    """The picture files below path/name in order, as names inside path; hidden files and other kinds are left out."""
    found = []
    for folder, _, files in os.walk(path / name):
        inside = os.path.relpath(folder, path)
        found += [f"{inside}/{file}" for file in files if file.lower().endswith(SUFFIXES) and not file.startswith(".")]
    return sorted(found)
