"""Street View House Numbers (Netzer et al. 2011), format 2: train_32x32.mat and test_32x32.mat."""

from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import find_folder


def svhn(root: Path) -> Dataset:
    train, test = (read_mat(find_folder("svhn", root, (f"{part}_32x32.mat",))) for part in ("train", "test"))
    return Dataset(name="svhn", train=train, test=test, classes=tuple("0123456789"))


def read_mat(path: Path) -> Images:
    """X uint8 [32, 32, 3, n] and y [n, 1], where label 10 means the digit 0.

    `find` returns only files with the official checksum: scipy's parser crashes on some damaged ones.
    """
    from scipy.io import loadmat

    arrays = loadmat(path, variable_names=("X", "y"))
    x, y = arrays["X"], arrays["y"].reshape(-1).astype(np.int64)
    x = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return Images(torch.from_numpy(x), torch.from_numpy(y % 10))
