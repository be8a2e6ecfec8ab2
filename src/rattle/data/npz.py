"""A .npz of the user's own: x_train, y_train, x_test, y_test; or x_test, y_test alone; or x, y, split by seed."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.files import check_size, readable
from rattle.data.mmap_cache import MmapCache, Shape, cache_key, stamp
from rattle.errors import RattleError

ARRAY_LIMIT = 64 * 2**30  # bytes of one array of images, unpacked
BLOCK_BYTES = 2**24  # of an array of images in memory at a time, on its way to where it is kept


class Member(NamedTuple):
    """One array of the file, its header read and its values not."""

    path: Path
    archive: zipfile.ZipFile
    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def where(self) -> str:
        return f"{self.path}: {self.name}"


def npz(path: Path, cache: MmapCache, seed: int) -> Dataset:
    """Images uint8 [n, H, W, C], [n, C, H, W] or [n, H, W], labels [n]; `classes` (texts) names them. No pickles."""
    damages = (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError)
    with readable(path, *damages), zipfile.ZipFile(path) as archive:
        members = {m.name: m for m in (member(path, archive, info) for info in archive.infolist())}
        pairs = [part for part in ("_train", "_test", "") if f"x{part}" in members and f"y{part}" in members]
        if "_test" not in pairs and pairs != [""]:
            raise RattleError(
                f"{path} holds {', '.join(members) or 'nothing'}; it should hold x_train, y_train, x_test and y_test, "
                "or x_test and y_test, or x and y"
            )
        y = {part: read_labels(members[f"y{part}"]) for part in pairs}
        names = read_classes(members.get("classes"), int(torch.cat(list(y.values())).max()))
        parts = {part: read_images(members[f"x{part}"], y[part], cache) for part in pairs}
    name = path.stem
    if "_test" not in parts:
        return train_test_split(name, parts[""], names, seed)
    test = parts["_test"]
    nothing = Images(torch.empty(0, *test.shape[1:], dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    return Dataset(name=name, train=parts.get("_train", nothing), test=test, classes=names)


def member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    name = info.filename.removesuffix(".npy")
    check_size(info.file_size, f"{path}: {name}", ARRAY_LIMIT)
    with archive.open(info) as stream:
        shape, fortran, dtype = read_header(stream)
        if not dtype.hasobject and stream.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
            raise EOFError(f"{name} does not have the size that its header announces")
    return Member(path, archive, name, shape, fortran, dtype)


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def read_whole(m: Member) -> np.ndarray:
    """A small array: labels, names of classes."""
    if m.dtype.hasobject:
        raise RattleError(
            f"{m.where} is an array of Python objects, which only pickle could read; "
            "save it as whole numbers (labels, images) or fixed-width text (classes)"
        )
    check_size(math.prod(m.shape) * m.dtype.itemsize, m.where)
    with m.archive.open(f"{m.name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_labels(m: Member) -> Tensor:
    """int64 [n] from whole numbers [n] or [n, 1]."""
    if m.dtype.kind in "US":
        raise RattleError(
            f"{m.where} holds labels as text; map them to numbers with "
            "`classes, y = np.unique(y, return_inverse=True)` and save `classes` too"
        )
    y = read_whole(m)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        raise RattleError(f"{m.where} should be whole numbers [n], not {y.dtype} {list(y.shape)}")
    return torch.from_numpy(y.astype(np.int64))


def read_classes(m: Member | None, highest: int) -> tuple[str, ...]:
    if m is None:
        return tuple(str(label) for label in range(highest + 1))
    names = read_whole(m)
    if names.ndim != 1 or names.dtype.kind != "U":
        raise RattleError(f"{m.where} should be texts [classes], not {names.dtype} {list(names.shape)}")
    return tuple(map(str, names))


def read_images(m: Member, y: Tensor, cache: MmapCache) -> Images:
    if m.shape and m.shape[0] != len(y):
        raise RattleError(f"{m.where} has {m.shape[0]} images, but there are {len(y)} labels")
    axes, shape = layout(m)
    return cache.images(shape, blocks(m, axes, cache), y, key=cache_key("npz", stamp(m.path), m.name))


def layout(m: Member) -> tuple[tuple[int, ...], Shape]:
    """The order of axes that makes [n, C, H, W] (after a channel axis is put last if there is none), and that shape."""
    if len(m.shape) == 3:
        return (0, 3, 1, 2), (m.shape[0], 1, m.shape[1], m.shape[2])
    if len(m.shape) == 4:
        first, last = m.shape[1] in (1, 3), m.shape[3] in (1, 3)
        n, a, b, c = m.shape
        if first and not last:
            return (0, 1, 2, 3), (n, a, b, c)
        if last and not first:
            return (0, 3, 1, 2), (n, c, a, b)
    raise RattleError(
        f"{m.where} is {list(m.shape)}; images should be [n, H, W, C], [n, C, H, W] or [n, H, W] with 1 or 3 channels"
    )


def blocks(m: Member, axes: tuple[int, ...], cache: MmapCache) -> Iterator[np.ndarray]:
    """uint8 [k, C, H, W], a part of the array at a time."""
    if m.fortran:
        check_size(math.prod(m.shape) * m.dtype.itemsize, f"{m.where} (in Fortran order)", cache.limit)
        yield np.transpose(with_channels(to_uint8(read_whole(m), m.where)), axes)
        return
    row = math.prod(m.shape[1:]) * m.dtype.itemsize
    step = max(1, BLOCK_BYTES // max(row, 1))
    with m.archive.open(f"{m.name}.npy") as stream:
        read_header(stream)
        for start in range(0, m.shape[0], step):
            rows = min(step, m.shape[0] - start)
            raw = stream.read(rows * row)
            if len(raw) < rows * row:
                raise EOFError(f"{m.name} ends early")
            values = np.frombuffer(raw, m.dtype).reshape(rows, *m.shape[1:])
            yield np.transpose(with_channels(to_uint8(values, m.where)), axes)
        stream.read(1)  # to the end, where zip compares the checksum


def with_channels(x: np.ndarray) -> np.ndarray:
    return x[..., None] if x.ndim == 3 else x


def to_uint8(x: np.ndarray, where: str) -> np.ndarray:
    """uint8 as they are; whole numbers in 0..255, and floats that are k/255, become uint8 because nothing is lost."""
    if x.dtype == np.uint8 or not x.size:
        return x.astype(np.uint8, copy=False)
    if x.dtype.kind in "iu":
        if x.min() < 0 or x.max() > 255:
            raise RattleError(f"{where} runs from {x.min()} to {x.max()}; images should be uint8, 0 to 255")
        return x.astype(np.uint8, copy=False)
    if x.dtype.kind != "f":
        raise RattleError(f"{where} is {x.dtype}; images should be uint8, 0 to 255")
    if not (x.min() >= 0 and x.max() <= 1):  # also refuses NaN
        raise RattleError(
            f"{where} holds {x.dtype} from {x.min():g} to {x.max():g}; images should be uint8, 0 to 255 "
            "(floats are taken when they are k/255)"
        )
    levels = np.rint(x.astype(np.float64) * 255)
    if (np.abs(levels / 255 - x) > np.finfo(x.dtype).eps).any():
        raise RattleError(
            f"{where} holds {x.dtype} values that are not k/255, so storing them as uint8 would change the images; "
            "round them yourself with `(x * 255).round().astype(np.uint8)`"
        )
    return levels.astype(np.uint8)
