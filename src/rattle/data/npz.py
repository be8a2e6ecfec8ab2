"""A user's .npz file: x_train, y_train, x_test, y_test; or x_test, y_test alone; or x, y, which are split by seed."""

import math
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.files import MEMBER_LIMIT, check_size, readable
from rattle.errors import RattleError

ARRAY_LIMIT = 64 * 2**30  # bytes of one unpacked array of images
MOST_CLASSES = 100_000  # more are a mistake, and would take much memory
IN_MEMORY = 2**28  # bytes; a larger array of bytes that is not compressed is mapped: every rank would hold a copy
BLOCK = 4096  # images that are converted at a time
AS_NUMBERS = "number them from 0 with `classes, y = np.unique(y, return_inverse=True)` and save `classes` too"


@dataclass(frozen=True, slots=True)
class Member:
    """One array of the archive: its header is read, its values are not."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    where: str  # file and array, for error messages
    shape: tuple[int, ...]
    fortran: bool  # stored in column-major order
    dtype: np.dtype
    start: int  # bytes of the header

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def npz(path: Path, seed: int) -> Dataset:
    """Images uint8 [n, H, W, C], [n, C, H, W] or [n, H, W]; labels [n]; optional `classes`, their names as text."""
    with members_of(path) as members:
        parts = [part for part in ("_train", "_test", "") if f"x{part}" in members and f"y{part}" in members]
        if "_test" not in parts and parts != [""]:
            raise RattleError(
                f"{path} holds {', '.join(members) or 'nothing'}; it should hold x_train, y_train, x_test and y_test, "
                "or x_test and y_test, or x and y"
            )
        y = {part: read_labels(members[f"y{part}"]) for part in parts}
        highest = max(int(labels.max()) for labels in y.values())
        classes = read_classes(members.get("classes"), highest, path)
        images = {part: load_images(members[f"x{part}"], y[part], path) for part in parts}
    if "_test" not in images:
        return train_test_split(path.stem, images[""], classes, seed)
    test = images["_test"]
    train = images.get("_train", test[torch.arange(0)])
    return Dataset(name=path.stem, train=train, test=test, classes=classes)


@contextmanager
def members_of(path: Path) -> Iterator[dict[str, Member]]:
    """The arrays of a file by name, to be read while it is open."""
    with readable(path, Exception), zipfile.ZipFile(path) as archive:  # zipfile and numpy raise many kinds of errors
        yield {info.filename.removesuffix(".npy"): open_member(path, archive, info) for info in archive.infolist()}


def open_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    where = f"{path}: {info.filename.removesuffix('.npy')}"
    check_size(info.file_size, where, ARRAY_LIMIT)
    with archive.open(info) as stream:
        major, _ = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        member = Member(archive, info, where, shape, fortran, dtype, stream.tell())
    if not dtype.hasobject and member.start + member.nbytes != info.file_size:
        raise EOFError(f"{info.filename} does not have the size that its header announces")
    return member


def read_whole(m: Member, limit: int = MEMBER_LIMIT) -> np.ndarray:
    check_size(m.nbytes, m.where, limit)
    if m.dtype.hasobject:
        raise RattleError(
            f"{m.where} is an array of Python objects, which only pickle could read; "
            "save it as whole numbers (labels, images) or fixed-width text (classes)"
        )
    with m.archive.open(m.info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_labels(m: Member) -> Tensor:
    """int64 [n] from whole numbers [n] or [n, 1]."""
    if m.dtype.kind in "US":
        raise RattleError(f"{m.where} holds labels as text: {AS_NUMBERS}")
    y = read_whole(m)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        raise RattleError(f"{m.where} should be whole numbers [n], not {y.dtype} {list(y.shape)}")
    return torch.from_numpy(y.astype(np.int64))


def read_classes(m: Member | None, highest: int, path: Path) -> tuple[str, ...]:
    """The stored names, or the numbers 0 to highest."""
    if m is not None:
        names = read_whole(m)
        if names.ndim != 1 or names.dtype.kind != "U":
            raise RattleError(f"{m.where} should be texts [classes], not {names.dtype} {list(names.shape)}")
        return tuple(map(str, names))
    if highest >= MOST_CLASSES:
        raise RattleError(
            f"{path} has labels up to {highest:,}, and {MOST_CLASSES:,} classes are the most: {AS_NUMBERS}"
        )
    return tuple(map(str, range(highest + 1)))


def load_images(m: Member, y: Tensor, path: Path) -> Images:
    """The array as uint8 [n, C, H, W]; of four axes, exactly one must look like channels."""
    if m.shape and m.shape[0] != len(y):
        raise RattleError(f"{m.where} has {m.shape[0]} images, but there are {len(y)} labels")
    shape = (*m.shape, 1) if len(m.shape) == 3 else m.shape  # grey images without a channel axis
    channels_first = len(m.shape) == 4 and shape[1] in (1, 3)
    channels_last = len(shape) == 4 and shape[3] in (1, 3)
    if channels_first == channels_last:
        layouts = "[n, H, W, C], [n, C, H, W] or [n, H, W] with 1 or 3 channels"
        raise RattleError(f"{m.where} is {list(m.shape)}; images should be {layouts}")
    axes = (0, 1, 2, 3) if channels_first else (0, 3, 1, 2)
    mapped = m.nbytes > IN_MEMORY and m.dtype == np.uint8 and not m.fortran
    if mapped and m.info.compress_type == zipfile.ZIP_STORED:
        stored = np.memmap(path, np.uint8, "r", data_offset(m, path), shape).transpose(axes)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the array is not writable
            return Images(torch.from_numpy(stored), y, mapped=True)
    whole = read_whole(m, ARRAY_LIMIT).reshape(shape).transpose(axes)
    x = np.empty(whole.shape, np.uint8)
    for start in range(0, len(x), BLOCK):
        x[start : start + BLOCK] = to_uint8(whole[start : start + BLOCK], m.where)
    return Images(torch.from_numpy(x), y)


def data_offset(m: Member, path: Path) -> int:
    """Where the values of an array begin in the file: after the local header of the zip member and the array's own."""
    with path.open("rb") as file:
        file.seek(m.info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return m.info.header_offset + 30 + name + extra + m.start


def to_uint8(x: np.ndarray, where: str) -> np.ndarray:
    """uint8 as it is; integers in 0..255 and floats that are k/255 are converted, since no value changes."""
    if x.dtype == np.uint8 or not x.size:
        return x.astype(np.uint8, copy=False)
    if x.dtype.kind not in "iuf":
        raise RattleError(f"{where} is {x.dtype}; images should be uint8, 0 to 255")
    low, high = x.min(), x.max()
    is_float = x.dtype.kind == "f"
    if not (low >= 0 and high <= (1 if is_float else 255)):  # also true for NaN
        wanted = "uint8, 0 to 255 (floats are accepted if they are k/255)"
        raise RattleError(f"{where} holds {x.dtype} from {low:g} to {high:g}; images should be {wanted}")
    if not is_float:
        return x.astype(np.uint8)
    levels = np.rint(x.astype(np.float64) * 255)
    if (np.abs(levels / 255 - x) > np.finfo(x.dtype).eps).any():
        raise RattleError(
            f"{where} holds {x.dtype} values that are not k/255, so storing them as uint8 would change the images; "
            "round them yourself with `(x * 255).round().astype(np.uint8)`"
        )
    return levels.astype(np.uint8)
