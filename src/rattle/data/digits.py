"""scikit-learn's 1,797 handwritten digits, 8x8: part of that package, so the demo and the tests need no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images, balanced_split

TEST_IMAGES, SPLIT_SEED = 500, 0


def digits(root: Path) -> Dataset:
    """1,297 training and 500 balanced test images; grey values 0..16 become 0..255."""
    grey, labels = stored()
    x = torch.as_tensor(grey).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    train, test = balanced_split(Images(x, torch.as_tensor(labels).long()), TEST_IMAGES, SPLIT_SEED)
    return Dataset(name="digits", train=train, test=test, classes=tuple("0123456789"))


def stored() -> tuple[np.ndarray, np.ndarray]:
    """Grey values [n, 64] and labels [n] out of the package's file: to import it takes longer than torch."""
    package = find_spec("sklearn")
    folder = Path(package.origin).parent  # type: ignore[union-attr,arg-type]
    table = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)
