"""Tar shards as WebDataset writes them, listed once: where each picture's bytes lie, so that picture i is one seek.

Members that belong together have one name up to the first dot: KEY.jpg, and KEY.cls with its class as a number; without
the latter the folder inside the archive is the class, CLASS/KEY.jpg. Nothing is unpacked, and links are not followed.
"""

import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from rattle.data.files import atomic_write, check_size, readable
from rattle.data.mmap_cache import cache_key
from rattle.data.records import MOST_BYTES, SUFFIXES, Records, make_records
from rattle.errors import RattleError

MOST_SHARDS = 1_000_000
MOST_DIGITS = 32  # bytes of a KEY.cls
BLOCK = 512
# What tarfile raises on a file that is damaged on purpose, besides its own errors.
PARSER = (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError, KeyError, MemoryError)


@dataclass(slots=True)
class Listing:
    """The pictures of some shards, and the class of each as text."""

    place: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def shard_records(shards: Sequence[Path], folder: Path) -> tuple[Records, np.ndarray]:
    """The pictures of the shards, and the class of each as text; `folder` keeps the listing for the next time."""
    check_numbers(shards)
    with readable(shards[0].parent):
        path = folder / f"{cache_key('shards', *shards)}.index.npz"  # another size or time of a shard is another key
    if not path.exists():
        write_listing(path, list_shards(shards))
    try:
        with np.load(path, allow_pickle=False) as stored:
            place, offset, size, names, ends, texts, codes = (stored[f"arr_{i}"] for i in range(7))
            return Records(tuple(shards), place, offset, size, names, ends), texts[codes]
    except (ValueError, OSError, EOFError, KeyError, IndexError) as error:
        raise RattleError(f"{path} is damaged: delete it, it is made again") from error


def write_listing(path: Path, found: Listing) -> None:
    """Store a listing as plain arrays."""
    records = make_records([], found.place, found.offset, found.size, found.names)
    texts, codes = np.unique(np.array(found.texts), return_inverse=True)
    columns = (records.place, records.offset, records.size, records.names, records.ends, texts, codes)
    try:
        with atomic_write(path) as part, part.open("wb") as file:
            np.savez(file, *columns)
    except OSError as error:
        raise RattleError(f"cannot write the index of the shards to {path}: {error.strerror or error}") from error


def list_shards(shards: Sequence[Path]) -> Listing:
    """Every picture of the shards, in their order; RattleError for a shard that is cut, or a picture without class."""
    found = Listing()
    for number, shard in enumerate(shards):
        with readable(shard, *PARSER):
            list_shard(shard, number, found)
    if not found.names:
        raise RattleError(f"{shards[0].parent}: the {len(shards)} shards hold no {', '.join(SUFFIXES)} member")
    return found


def list_shard(shard: Path, number: int, found: Listing) -> None:
    """Add the pictures of one shard to a listing."""
    pictures, classes = {}, {}
    with shard.open("rb") as file:
        for member in members(shard, file):
            path = PurePosixPath(member.name)
            key, _, suffix = path.name.partition(".")
            kind, key = f".{suffix.rpartition('.')[2].lower()}", str(path.parent / key)
            if kind not in (*SUFFIXES, ".cls"):
                continue
            check_member(shard, member, kind)
            if kind == ".cls":
                file.seek(member.offset_data)
                classes[key] = file.read(member.size).decode("ascii", "replace").strip()
            elif key in pictures:
                raise RattleError(f"{shard} holds two pictures of one key: {pictures[key].name} and {member.name}")
            else:
                pictures[key] = member
    for key, member in pictures.items():
        found.place.append(number)
        found.offset.append(member.offset_data)
        found.size.append(member.size)
        found.names.append(member.name)
        found.texts.append(class_of(shard, member.name, classes.get(key)))


def members(shard: Path, file: object) -> Iterator[tarfile.TarInfo]:
    """The headers of an archive that is whole: it ends with an empty block, and no member reaches back or beyond."""
    total, last = shard.stat().st_size, -1
    with tarfile.open(fileobj=file, mode="r:") as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            if member.offset_data <= last or member.size < 0:
                raise RattleError(f"{shard} is damaged: {member.name} begins before the member in front of it")
            if member.isreg() and member.offset_data + member.size > total:
                raise RattleError(f"{shard} is cut: {member.name} ends beyond its {total:,} bytes")
            last = member.offset_data
            archive.members = []  # or the headers of every member would stay in memory
            yield member
        with shard.open("rb") as again:  # tarfile takes anything that is no header for the end
            again.seek(archive.offset)
            end = again.read(BLOCK)
    if end != bytes(BLOCK):
        what = (
            "damaged: what follows is no header" if len(end) == BLOCK else "cut: the empty block at its end is missing"
        )
        raise RattleError(f"{shard} is {what}")


def check_member(shard: Path, member: tarfile.TarInfo, kind: str) -> None:
    """Refuse a picture or label that is a link or anything else than a plain file, too large, or oddly named."""
    if not member.name.isprintable():  # it is shown in messages, and folders name classes
        raise RattleError(f"{shard} holds a member whose name is no printable text: {member.name!a}")
    if not member.isreg() or member.issparse():
        what = "a link, and links are not followed" if member.issym() or member.islnk() else "no plain file"
        raise RattleError(f"{shard}: {member.name} is {what}")
    check_size(member.size, f"{shard}/{member.name}", MOST_DIGITS if kind == ".cls" else MOST_BYTES)


def class_of(shard: Path, name: str, number: str | None) -> str:
    """The class of a picture as text: the number in its KEY.cls, or the folder that it lies in."""
    if number is not None:
        if not re.fullmatch(r"\d{1,9}", number):
            raise RattleError(f"{shard}: the class of {name} should be a number, its .cls holds {number!r}")
        return str(int(number))
    folder = PurePosixPath(name).parent.name
    if not folder:
        raise RattleError(f"{shard}: {name} has no class, neither a .cls beside it nor a folder around it")
    return folder


def check_numbers(shards: Sequence[Path]) -> None:
    """Refuse a series of numbered shards, such as train-000000.tar or train-0-of-8.tar, in which some are missing."""
    series: dict[str, set[int]] = {}
    totals: dict[str, int] = {}
    for shard in shards:
        if parts := re.fullmatch(r"(.*?)(\d+)(?:(-of-)(\d+))?", shard.stem):
            series.setdefault(parts[1], set()).add(int(parts[2]))
            if parts[4]:
                totals[parts[1]] = int(parts[4])
    for name, numbers in series.items():
        first, last = min(numbers), max(numbers)
        if total := totals.get(name):  # counted from 0 or from 1
            first, last = (1, total) if total in numbers else (0, total - 1)
        missing = [number for number in range(first, min(last, first + MOST_SHARDS) + 1) if number not in numbers]
        if missing:
            which = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
            there = f"of the shards {name}{first} to {last} in {shards[0].parent}"
            raise RattleError(f"{there}, {len(missing)} {'is' if len(missing) == 1 else 'are'} missing: {which}")
