"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import check_size, find, readable
from rattle.data.mmap_cache import MmapCache, cache_key, stamp
from rattle.errors import RattleError

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def mnist(root: Path, cache: MmapCache) -> Dataset:
    return idx_pairs("mnist", tuple(str(d) for d in range(10)), root, cache)


def fashion_mnist(root: Path, cache: MmapCache) -> Dataset:
    return idx_pairs("fashion-mnist", FASHION, root, cache)


def idx_pairs(name: str, classes: tuple[str, ...], root: Path, cache: MmapCache) -> Dataset:
    def part(prefix: str) -> Images:
        stems = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
        images, labels = (find(name, root, (f"{stem}.gz", stem)) for stem in stems)
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise RattleError(f"{images} holds {len(x)} images and {labels} {len(y)} labels")
        n, height, width = x.shape
        key = cache_key(name, stamp(images), stamp(labels))
        return cache.images((n, 1, height, width), [x[:, None]], torch.from_numpy(y.astype(np.int64)), key=key)

    return Dataset(name=name, train=part("train"), test=part("t10k"), classes=classes)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of unsigned bytes: magic 0x0000 08 0d, d big-endian sizes, the values."""
    with readable(path, zlib.error), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions:
            raise EOFError("the file ends in its header")
        magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
        if magic != 0x0800 + dimensions:
            raise RattleError(f"{path} is not an idx file of {dimensions}-dimensional bytes (it begins {header[:4]!r})")
        size = math.prod(shape)
        check_size(size, str(path))
        values = file.read(size)
        if len(values) < size:
            raise EOFError(f"it ends after {len(values)} of {size} bytes")
        if file.read(1):  # also takes gzip to its checksum
            raise RattleError(f"{path} goes on after the {size} bytes that its header announces")
    return np.frombuffer(values, np.uint8).reshape(shape)
