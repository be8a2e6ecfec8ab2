"""A user's .npz file: x_train, y_train, x_test, y_test; or x_test, y_test alone; or x, y, which are split by seed."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.files import check_size, readable
from rattle.data.mmap_cache import MmapCache, cache_key
from rattle.errors import RattleError

ARRAY_LIMIT = 64 * 2**30  # bytes of one unpacked array of images
MOST_CLASSES = 100_000  # more are a mistake, and would take much memory
BLOCK_BYTES = 2**24  # images are converted in blocks of this size, so that a large array is never whole in memory
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


def npz(path: Path, cache: MmapCache, seed: int) -> Dataset:
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
        images = {part: load_images(members[f"x{part}"], y[part], path, cache) for part in parts}
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


def read_whole(m: Member) -> np.ndarray:
    check_size(m.nbytes, m.where)
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


def load_images(m: Member, y: Tensor, path: Path, cache: MmapCache) -> Images:
    """The array as uint8 [n, C, H, W]; of four axes, exactly one must look like channels."""
    if m.shape and m.shape[0] != len(y):
        raise RattleError(f"{m.where} has {m.shape[0]} images, but there are {len(y)} labels")
    shape = (*m.shape, 1) if len(m.shape) == 3 else m.shape  # grey images without a channel axis
    channels_first = len(shape) == 4 and shape[1] in (1, 3)
    channels_last = len(shape) == 4 and shape[3] in (1, 3)
    if len(m.shape) == 3:
        channels_first = False
    if channels_first == channels_last:
        layouts = "[n, H, W, C], [n, C, H, W] or [n, H, W] with 1 or 3 channels"
        raise RattleError(f"{m.where} is {list(m.shape)}; images should be {layouts}")
    axes = (0, 1, 2, 3) if channels_first else (0, 3, 1, 2)
    n, channels, height, width = (shape[axis] for axis in axes)
    blocks = (to_uint8(x, m.where).reshape(-1, *shape[1:]).transpose(axes) for x in read_blocks(m, cache.limit))
    return cache.images((n, channels, height, width), blocks, y, key=cache_key("npz", path, m.info.filename))


def read_blocks(m: Member, memory_limit: int) -> Iterator[np.ndarray]:
    """Consecutive rows of the array, about BLOCK_BYTES at a time."""
    if m.fortran or m.dtype.hasobject:
        check_size(m.nbytes, f"{m.where} (in Fortran order)", memory_limit)  # rows are not consecutive in the file
        yield read_whole(m)
        return
    row_bytes = math.prod(m.shape[1:]) * m.dtype.itemsize
    step = max(1, BLOCK_BYTES // max(row_bytes, 1))
    with m.archive.open(m.info) as stream:
        stream.read(m.start)
        for start in range(0, m.shape[0], step):
            size = min(step, m.shape[0] - start) * row_bytes
            raw = stream.read(size)
            if len(raw) < size:
                raise EOFError(f"{m.info.filename} ends early")
            yield np.frombuffer(raw, m.dtype).reshape(-1, *m.shape[1:])
        stream.read(1)  # reach the end, where zipfile verifies the checksum


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
