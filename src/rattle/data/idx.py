"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): idx files, gzipped or not."""

import gzip
import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images, Names
from rattle.data.files import MEMBER_LIMIT, find_folder, readable

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def idx_dataset(name: str, torchvision: str, classes: Names, root: Path) -> Dataset:
    """torchvision: the folder that torchvision puts the files in. Not root itself: the two sets share file names."""
    folders = (name, f"{torchvision}/raw", torchvision)

    def load_images(prefix: str) -> Images:
        stems = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
        images, labels = (find_folder(name, root, (f"{stem}.gz", stem), folders) for stem in stems)
        x, y = read_idx(images, 3), read_idx(labels, 1)
        return Images(torch.from_numpy(x[:, None]), torch.from_numpy(y.astype(np.int64)))

    return Dataset(name=name, train=load_images("train"), test=load_images("t10k"), classes=classes)


mnist = partial(idx_dataset, "mnist", "MNIST", tuple("0123456789"))
fashion_mnist = partial(idx_dataset, "fashion-mnist", "FashionMNIST", FASHION)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of unsigned bytes: magic number 0x0800 + dimensions, big-endian sizes, values."""
    with readable(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        raw = bytearray(file.read(MEMBER_LIMIT))
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", raw)
        if magic != 0x0800 + dimensions:
            raise ValueError(f"it is not an idx file of {dimensions}-dimensional bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
