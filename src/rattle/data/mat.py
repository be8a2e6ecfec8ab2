"""Arrays of numbers out of a MATLAB 5 file, whose parser in scipy crashes the interpreter on some damaged files.

The format: MathWorks, "MAT-File Level 5 File Format". Structures, cells, texts and sparse arrays are passed over.
"""

import itertools
import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from rattle.data.files import MEMBER_LIMIT, check_size, readable

HEADER = 128  # bytes: text, version, and the order of bytes
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # by type of data
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
MATRIX, COMPRESSED, COMPLEX = 14, 15, 0x0800  # two types of data, and a flag of a matrix


def load_mat(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The real arrays of numbers of these names, as many as the file has; RattleError if it is damaged."""
    check_size(path.stat().st_size, str(path), 2 * MEMBER_LIMIT)
    found = {}
    with readable(path, ValueError, struct.error, zlib.error):
        content = path.read_bytes() if path.is_file() else b""
        if content[124:128] != b"\x00\x01IM":
            raise ValueError("not a MATLAB 5 file of little-endian numbers")
        for kind, data in elements(memoryview(content)[HEADER:]):
            kind, data = inflated(data, path) if kind == COMPRESSED else (kind, data)
            if kind == MATRIX and (array := matrix(data, names)) is not None:
                found[array[0]] = array[1]
    return found


def inflated(data: memoryview, path: Path) -> tuple[int, memoryview]:
    """The element inside a compressed one."""
    inflate = zlib.decompressobj()
    content = inflate.decompress(data, MEMBER_LIMIT)
    check_size(len(content) + bool(inflate.unconsumed_tail), str(path), MEMBER_LIMIT - 1)
    if not inflate.eof:
        raise ValueError("a compressed element is cut off")
    return next(elements(memoryview(content)), (0, memoryview(b"")))


def elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(type, content) of each element; all but compressed ones fill up to a multiple of eight bytes."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        small = kind >> 16  # up to four bytes of content, in the tag itself
        begin, size = (at + 4, small) if small else (at + 8, size)
        if begin + size > len(data) or small > 4:
            raise ValueError("an element is cut off")
        yield kind & 0xFFFF, data[begin : begin + size]
        at = at + 8 if small else begin + size + (-size % 8 if kind != COMPRESSED else 0)


def matrix(data: memoryview, names: Collection[str]) -> tuple[str, np.ndarray] | None:
    """Name and array of a matrix; None if it is none of these or does not hold real numbers."""
    parts = list(itertools.islice(elements(data), 4))  # flags, shape, name, numbers
    if len(parts) < 3:
        raise ValueError("a matrix is cut off")
    (flags,), name = struct.unpack_from("<I", parts[0][1]), bytes(parts[2][1]).decode("latin-1")
    kind = CLASSES.get(flags & 0xFF)
    if name not in names or kind is None or flags & COMPLEX or len(parts) < 4:
        return None
    shape, (stored, numbers) = np.frombuffer(parts[1][1], "<i4").tolist(), parts[3]
    if not 2 <= len(shape) <= 8 or min(shape) < 0 or stored not in STORED:
        raise ValueError("a matrix has no shape, or no numbers")
    if len(numbers) != math.prod(shape) * np.dtype(STORED[stored]).itemsize:
        raise ValueError("a matrix is not of the size it says")
    return name, np.frombuffer(numbers, f"<{STORED[stored]}").astype(kind).reshape(shape, order="F")
