"""scikit-learn's 1,797 handwritten digits, 8x8: part of that package, so the demo and the tests need no download."""

from pathlib import Path

import torch

from rattle.data.dataset import Dataset, Images, balanced_split
from rattle.data.mmap_cache import MmapCache

TEST_IMAGES, SPLIT_SEED = 500, 0


def digits(root: Path, cache: MmapCache) -> Dataset:
    """1,297 training and 500 balanced test images; grey values 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(grey).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    train, test = balanced_split(Images(x, torch.as_tensor(labels).long()), TEST_IMAGES, SPLIT_SEED)
    return Dataset(name="digits", train=train, test=test, classes=tuple("0123456789"))
