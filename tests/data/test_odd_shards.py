"""Archives that are damaged at random or made to harm end in a sentence or in pictures, never in anything else."""

import random
import re
import tarfile
from pathlib import Path

import pytest

from rattle.data import Augment, Data
from rattle.errors import RattleError
from support.miniature import picture, write_tar

JPEG = picture(0, (0, 0), 20)


def outcome(content: bytes, folder: Path) -> str:
    """What becomes of a training shard: `fine`, or the sentence of its refusal."""
    write_tar(folder / "test.tar", {"a/1.jpg": JPEG, "b/2.jpg": JPEG})
    (folder / "train.tar").write_bytes(content)
    data = Data(name=str(folder), crop=8, workers=0, val_size=0, augment=Augment(pad=0), root=str(folder / "root"))
    try:
        data.load().train.cropped(0, 0.1, []).x[:]
    except RattleError as refusal:
        return str(refusal)
    return "fine"


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut or put in twice; headers get right checksums every other time."""
    found = bytearray(content)
    for _ in range(rng.choice([1, 2, 5, 40])):
        place, block = rng.randrange(len(found)), rng.randrange(max(1, len(found) // 512)) * 512
        match rng.randrange(5):
            case 0 | 1:
                found[place] = rng.randrange(256)
            case 2:
                found[min(block + rng.choice([0, 100, 124, 130, 156, 157, 345]), len(found) - 1)] = rng.choice(
                    b"\0\x80\xff07LSx1"
                )
            case 3:
                del found[max(1, place) :]
            case 4:
                found[block:block] = found[:512]
    if rng.random() < 0.5:
        for start in range(0, len(found) - 511, 512):
            if found[start + 257 : start + 262] == b"ustar":
                found[start + 148 : start + 156] = b" " * 8
                found[start + 148 : start + 156] = b"%06o\0 " % sum(found[start : start + 512])
    return bytes(found)


def test_shards_damaged_at_random_are_read_or_refused(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", {"a/1.jpg": JPEG, "b/2.jpg": JPEG}).read_bytes()
    found = []
    for seed in range(40):
        (tmp_path / str(seed)).mkdir()
        found.append(outcome(damaged(whole, random.Random(seed)), tmp_path / str(seed)))
    assert not [words for words in found if len(words.splitlines()) != 1]
    assert 5 < found.count("fine") < 35


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    """A block of 512 bytes in GNU's format, with any size, also a negative one."""
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = b"%011o\0" % size if size >= 0 else (2**96 + size).to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


GOOD = b"".join(header(f"{name}/0.jpg", len(JPEG)) + padded(JPEG) for name in "ab")
HARMFUL = {
    "a size below zero": (header("a/1.jpg", -1024), "begins before the member in front of it"),
    "names of names without end": ((header("././@LongLink", 5, b"L") + padded(b"abc")) * 3000, "truncated or damaged"),
    "a sparse file": (header("a/1.jpg", 0, b"S"), "a/1.jpg is no plain file|truncated or damaged"),
    "a device": (header("a/1.jpg", 0, b"3"), "a/1.jpg is no plain file"),
    "a hard link": (header("a/1.jpg", 0, b"1"), "is a link, and links are not followed"),
    "a name in colour": (header("a/\x1b[31m\n.jpg", 0), r"no printable text: 'a/\\x1b\[31m\\n.jpg'"),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_an_archive_made_to_harm_is_refused(what: str, tmp_path: Path) -> None:
    content, words = HARMFUL[what]
    said = outcome(GOOD + content + bytes(1024), tmp_path)
    assert re.search(words, said), said


def test_an_archive_in_that_format_is_read(tmp_path: Path) -> None:
    assert outcome(GOOD + bytes(1024), tmp_path) == "fine"
