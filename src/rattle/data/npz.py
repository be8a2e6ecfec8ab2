"""A user's .npz file: x_train, y_train, x_test, y_test; or x_test, y_test alone; or x, y, which are split by seed."""

import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from rattle.data.dataset import Dataset, Images, Names, train_test_split
from rattle.data.files import LARGEST_READ, open_arrays
from rattle.errors import RattleError

MOST_CLASSES = 100_000  # more are a mistake, and would take much memory
CONVERTED_AT_ONCE = 4096  # images that are converted at a time
AS_NUMBERS = "number them from 0 with `classes, y = np.unique(y, return_inverse=True)` and save `classes` too"


def npz(path: Path, seed: int) -> Dataset:
    """Images uint8 [n, H, W, C], [n, C, H, W] or [n, H, W]; labels [n]; optional `classes`, their names as text."""
    with open_arrays(path) as arrays:
        parts = [part for part in ("_train", "_test", "") if f"x{part}" in arrays and f"y{part}" in arrays]
        if "_test" not in parts and parts != [""]:
            raise RattleError(
                f"{path} holds {', '.join(arrays) or 'nothing'}; it should hold x_train, y_train, x_test and y_test, "
                "or x_test and y_test, or x and y"
            )
        y = {part: read_labels(arrays[f"y{part}"], f"{path}: y{part}") for part in parts}
        highest = max(int(labels.max()) for labels in y.values())
        classes = read_classes(arrays.get("classes"), highest, path)
        images = {part: read_image_array(arrays, f"x{part}", y[part], path) for part in parts}
    if "_test" not in images:
        return train_test_split(path.stem, images[""], classes, seed)
    test = images["_test"]
    train = images.get("_train", test[torch.arange(0)])
    return Dataset(name=path.stem, train=train, test=test, classes=classes)


def read_labels(y: np.ndarray, where: str) -> Tensor:
    """int64 [n] from whole numbers [n] or [n, 1]."""
    if y.dtype.kind in "US":
        raise RattleError(f"{where} holds labels as text: {AS_NUMBERS}")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        raise RattleError(f"{where} should be whole numbers [n], not {y.dtype} {list(y.shape)}")
    return torch.from_numpy(y.astype(np.int64))


def read_classes(names: np.ndarray | None, highest: int, path: Path) -> Names:
    """The stored names, or the numbers 0 to highest."""
    if names is not None:
        if names.ndim != 1 or names.dtype.kind != "U":
            raise RattleError(f"{path}: classes should be texts [classes], not {names.dtype} {list(names.shape)}")
        return tuple(map(str, names))
    if highest >= MOST_CLASSES:
        raise RattleError(
            f"{path} has labels up to {highest:,}, and {MOST_CLASSES:,} classes are the most: {AS_NUMBERS}"
        )
    return tuple(map(str, range(highest + 1)))


def read_image_array(arrays: NpzFile, key: str, y: Tensor, path: Path) -> Images:
    """An array as uint8 [n, C, H, W]; of four axes, exactly one must look like channels."""
    where = f"{path}: {key}"
    info = arrays.zip.getinfo(f"{key}.npy")  # type: ignore[union-attr]
    mapped = info.file_size > LARGEST_READ and info.compress_type == zipfile.ZIP_STORED
    stored = map_array(path, info) if mapped else arrays[key]
    if stored.ndim and len(stored) != len(y):
        raise RattleError(f"{where} has {len(stored)} images, but there are {len(y)} labels")
    shape = stored.shape
    if stored.ndim == 3:
        stored = stored[..., None]  # grey images without a channel axis
    channels_first = len(shape) == 4 and shape[1] in (1, 3)
    channels_last = stored.ndim == 4 and stored.shape[3] in (1, 3)
    if channels_first == channels_last:
        layouts = "[n, H, W, C], [n, C, H, W] or [n, H, W] with 1 or 3 channels"
        raise RattleError(f"{where} is {list(shape)}; images should be {layouts}")
    if channels_last:
        stored = stored.transpose(0, 3, 1, 2)
    if mapped and stored.dtype == np.uint8:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the array is not writable
            return Images(torch.from_numpy(stored), y)
    x = np.empty(stored.shape, np.uint8)
    for start in range(0, len(x), CONVERTED_AT_ONCE):
        x[start : start + CONVERTED_AT_ONCE] = to_uint8(stored[start : start + CONVERTED_AT_ONCE], where)
    return Images(torch.from_numpy(x), y)


def map_array(path: Path, info: zipfile.ZipInfo) -> np.ndarray:
    """An array that is not compressed, mapped: it begins after the local header of the zip member and its own."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def to_uint8(x: np.ndarray, where: str) -> np.ndarray:
    """uint8 as it is; integers in 0..255 and floats that are k/255 are converted, since no value changes."""
    if x.dtype == np.uint8 or not x.size:
        return x.astype(np.uint8, copy=False)
    wanted = "images should be uint8, 0 to 255 (floats are accepted if they are k/255)"
    if x.dtype.kind not in "iuf":
        raise RattleError(f"{where} is {x.dtype}; {wanted}")
    scale = 255 if x.dtype.kind == "f" else 1
    levels = np.rint(np.nan_to_num(x.astype(np.float64)) * scale).clip(0, 255)
    if not np.allclose(levels / scale, x, rtol=0, atol=np.finfo(np.result_type(x, np.float16)).eps):
        raise RattleError(
            f"{where} holds {x.dtype} from {x.min():g} to {x.max():g}, which uint8 would change; {wanted}: "
            "round them yourself with `(x * 255).round().astype(np.uint8)`"
        )
    return levels.astype(np.uint8)
