"""Extra and generated images to train on beside a dataset's own: a .npz with `image` and `label`.

`image` and `label` are the names under which generated images are published; `x_train` and `y_train`, or `x` and `y`,
will do as well. Labels are classes [n], or soft ones: probabilities [n, C].
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Dataset, Images
from rattle.data.npz import Member, load_images, members_of, read_labels, read_whole
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
    with members_of(path) as members:
        keys = next((keys for keys in KEYS if set(keys) <= set(members)), None)
        if keys is None:
            found = ", ".join(members) or "nothing"
            raise RattleError(f"{path} holds {found}; extra images should be under image and label, or under x and y")
        y = read_extra_labels(members[keys[1]], len(data.classes))
        images = load_images(members[keys[0]], y, path)
    if side and images.shape[2:] != (side, side):
        images = scale_images(images, side)
    own, extra = list(data.train.shape[1:]), list(images.shape[1:])
    if own != extra:
        raise RattleError(f"{path}: extra images are {extra}, those of {data.name} {own} (channels, height, width)")
    return images


def read_extra_labels(m: Member, classes: int) -> Tensor:
    """int64 [n], or float32 [n, C] where each row sums to one."""
    if len(m.shape) != 2 or m.shape[1] == 1:
        y = read_labels(m)
        if int(y.min()) < 0 or int(y.max()) >= classes:
            raise RattleError(f"{m.where} runs from {int(y.min())} to {int(y.max())}, but there are {classes} classes")
        return y
    if m.dtype.kind not in "iuf" or m.shape[1] != classes or not m.shape[0]:
        raise RattleError(
            f"{m.where} should be classes [n], or probabilities [n, {classes}], not {m.dtype} {list(m.shape)}"
        )
    y = torch.from_numpy(read_whole(m).astype(np.float32))
    wrong = ~((y >= 0).all(1) & ((y.sum(1) - 1).abs() <= SLACK))  # NaN is wrong too
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise RattleError(
            f"{m.where}: soft labels should be >= 0 and sum to one, row {first} sums to {float(y[first].sum()):.4g}"
        )
    return y / y.sum(1, keepdim=True)
