"""Extra and generated images to train on beside a dataset's own: a .npz with `image` and `label`.

`image` and `label` are the names under which generated images are published; `x_train` and `y_train`, or `x` and `y`,
will do as well. Labels are classes [n], or soft ones: probabilities [n, C].
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Dataset, Images, check_labels
from rattle.data.npz import load_images, open_arrays, read_labels
from rattle.data.resize import scale_images
from rattle.errors import RattleError

KEYS = (("image", "label"), ("x_train", "y_train"), ("x", "y"))
SLACK = 1e-3  # by which probabilities in half precision may miss one


def extra_images(path: Path, data: Dataset, side: int | None) -> Images:
    """The images of a file, to train on beside those of `data`; side: to scale them to, as `data` was."""
    if path.suffix != ".npz":
        raise RattleError(f"data.extra takes a .npz file, such as np.savez writes with image= and label=, got {path}")
    if not path.is_file():
        raise RattleError(f"there is no file of extra images at {path} (looked from {Path.cwd()})")
    with open_arrays(path) as arrays:
        keys = next((keys for keys in KEYS if set(keys) <= set(arrays)), None)
        if keys is None:
            found = ", ".join(arrays) or "nothing"
            raise RattleError(f"{path} holds {found}; extra images should be under image and label, or under x and y")
        y = read_extra_labels(arrays[keys[1]], f"{path}: {keys[1]}", len(data.classes))
        images = load_images(arrays, keys[0], y, path)
    if side and images.shape[2:] != (side, side):
        images = scale_images(images, side)
    own, extra = list(data.train.shape[1:]), list(images.shape[1:])
    if own != extra:
        raise RattleError(f"{path}: extra images are {extra}, those of {data.name} {own} (channels, height, width)")
    return images


def read_extra_labels(y: np.ndarray, where: str, classes: int) -> Tensor:
    """int64 [n], or float32 [n, C] where each row sums to one."""
    if y.ndim != 2 or y.shape[1] == 1:
        found = read_labels(y, where)
        check_labels(found, classes, where)
        return found
    soft = torch.from_numpy(y.astype(np.float32))
    sums = soft.sum(1, keepdim=True)
    if soft.shape[1] != classes or not ((soft >= 0).all() and ((sums - 1).abs() <= SLACK).all()):  # true for NaN
        raise RattleError(f"{where}: soft labels should be [n, {classes}], >= 0, and sum to one in every row")
    return soft / sums
