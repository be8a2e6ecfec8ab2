"""Street View House Numbers (Netzer et al. 2011), format 2: train_32x32.mat and test_32x32.mat."""

from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import find
from rattle.data.mat import load_mat
from rattle.data.mmap_cache import MmapCache, cache_key
from rattle.errors import RattleError


def svhn(root: Path, cache: MmapCache) -> Dataset:
    train, test = (load_images(find("svhn", root, (f"{part}_32x32.mat",)), cache) for part in ("train", "test"))
    return Dataset(name="svhn", train=train, test=test, classes=tuple("0123456789"))


def load_images(path: Path, cache: MmapCache) -> Images:
    """X uint8 [32, 32, 3, n] and y [n, 1], where label 10 means the digit 0."""
    arrays = load_mat(path, ("X", "y"))
    x, y = arrays.get("X"), arrays.get("y")
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 4 and x.shape[:3] == (32, 32, 3)):
        raise RattleError(f"{path}: X is not uint8 [32, 32, 3, n]")
    if not (isinstance(y, np.ndarray) and y.dtype.kind in "iu" and y.size == x.shape[3]):
        raise RattleError(f"{path}: y is not {x.shape[3]} whole numbers")
    labels = torch.from_numpy(np.where(y == 10, 0, y).reshape(-1).astype(np.int64))
    blocks = (x[..., i : i + 4096].transpose(3, 2, 0, 1) for i in range(0, x.shape[3], 4096))
    return cache.images((len(labels), 3, 32, 32), blocks, labels, key=cache_key("svhn", path))
