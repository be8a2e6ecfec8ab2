"""What a data source returns: images, labels and class names; balanced subsets and splits of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.settings import check_type

Names = tuple[str, ...]  # of classes: label i is that of names[i]
CHECKSUM_IMAGES = 4096  # images in the checksum of a part
VAL_SHARE, MAX_VAL = 10, 1000  # by default one training image in ten is held out, at most a thousand
UNEVEN = 3  # times as many images in the largest class as in the smallest
TEST_SHARE = 5  # a dataset without a test part gives one image in five to it


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images x [n, C, H, W], uint8 or float in [0, 1], and labels y int64 [n].

    `images[index]` is a batch in memory. x may be mapped from a file, which is then read batch by batch, or `Pictures`,
    which are decoded on the fly.
    """

    x: Any  # a tensor, or Pictures
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 and not self.x.is_floating_point():
            raise RattleError(f"images must be uint8 or floating point in [0, 1], got {self.x.dtype}")
        if len(self.y) != len(self.x):
            raise RattleError(f"{len(self.x)} images have {len(self.y)} labels")

    @property
    def decoded(self) -> bool:
        """Whether these are pictures that are decoded on the fly."""
        return not isinstance(self.x, Tensor)

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    @property
    def nbytes(self) -> int:
        return self.x.nbytes

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Images({list(self.shape)}, {self.x.device})"

    def __getitem__(self, index: Tensor) -> Images:
        """The images of an index or mask, in memory."""
        return Images(self.x[index.to(self.x.device)], self.y[index.to(self.y.device)])

    def subset(self, index: Tensor) -> Images:
        """The images of an index or mask, in memory; encoded ones stay encoded."""
        return Images(self.x.take(index), self.y[index]) if self.decoded else self[index]

    def to(self, device: torch.device | str) -> Images:
        return Images(self.x.to(device), self.y.to(device))

    def digest(self) -> str:
        """A cheap checksum: of all labels, and of the names of encoded pictures or else of the pixels of at most
        COMPARED images, evenly spread."""
        found = hashlib.sha256(repr(self.shape).encode() + self.y.cpu().contiguous().numpy().tobytes())
        if self.decoded:
            found.update(self.x.files.names.tobytes())
        elif len(self):
            rows = torch.linspace(0, len(self) - 1, min(len(self), CHECKSUM_IMAGES)).long()
            found.update(self[rows].x.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def cropped(self, seed: int, area: float, asked: Iterable[Tensor]) -> Images:
        """Random crops of images that are decoded on the fly, see `Pictures.cropped`."""
        return Images(self.x.cropped(seed, area, asked), self.y)


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """A batch on the device; to a GPU by way of pinned memory, so that the host does not wait for the copy."""
    if values.device.type == "cpu" and torch.device(device).type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def on_device(images: Images, device: torch.device | str, limit_bytes: int = 2 * 2**30) -> Images:
    """The images on the device if they take at most limit_bytes, else unchanged, to be moved batch by batch.

    Those that are decoded on the fly stay as they are: every epoch shows other parts of them.
    """
    stays = images.decoded or torch.device(device) == images.x.device or images.nbytes > limit_bytes
    return images if stays else images.to(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A training part, a test part and the names of the classes."""

    name: str
    train: Images
    test: Images
    classes: Names
    val: Images | None = None  # held out of train, to select a checkpoint with

    def __post_init__(self) -> None:
        for part in (self.train, self.val, self.test):
            if part:
                check_part(part, self.name, len(self.classes))
        train, test = list(self.train.shape[1:]), list(self.test.shape[1:])
        if train != test:
            raise RattleError(f"{self.name}: training images are {train}, test images {test} (channels, height, width)")

    @property
    def channels(self) -> int:
        return self.test.shape[1]

    @property
    def size(self) -> int:
        return self.test.shape[-1]

    def split(self, train_size: int | None, val_size: int | None, seed: int) -> Dataset:
        """The dataset with `val` held out of the training images, and train reduced to train_size; see `Data`.

        One that has held-out images already keeps them.
        """
        data, n = self, len(self.train)
        if val_size is None:
            val_size = min(MAX_VAL, math.ceil(min(n, train_size or n) / VAL_SHARE))
        if data.val is not None or not n:  # a test part alone has nothing to hold out
            val_size = 0
        if val_size:
            if val_size >= n:
                raise RattleError(f"data.val_size {val_size} leaves none of the {n} training images")
            train, val = balanced_split(data.train, val_size, seed)
            data = replace(data, train=train, val=val.to("cpu"))
        if train_size is None:
            return data
        left = len(data.train)
        if train_size > left:
            raise RattleError(
                f"data.train_size {train_size} is more than the {left} training images of {data.name} "
                f"beside {val_size} held out"
            )
        return replace(data, train=data.train.subset(balanced_indices(data.train.y, train_size, seed)))


def check_part(part: Images, name: str, classes: int) -> None:
    """Refuse labels that are no classes, and floats outside [0, 1]."""
    check_class_range(part.y, classes, name)
    if part.x.is_floating_point():  # here and not in every step: to look makes the host wait for a GPU
        least, most = float(part.x.min()), float(part.x.max())
        if not (least >= 0 and most <= 1):  # also true for NaN
            raise RattleError(f"{name}: images must lie in [0, 1], got [{least:.4g}, {most:.4g}]")


def check_class_range(y: Tensor, classes: int, where: str) -> None:
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise RattleError(f"{where}: labels run from {low} to {high}, but there are {classes} classes")


def balanced_indices(y: Tensor, n: int, seed: int, *, most: float = 1) -> Tensor:
    """Sorted indices of n of the labels y, drawn by seed, with class counts as equal as y allows.

    most: the share of a class that is taken as long as other classes have images.

    >>> balanced_indices(torch.tensor([0, 0, 0, 0, 1, 1]), 4, seed=0).bincount().sum().item()
    4
    """
    if not 0 < n <= len(y):
        raise RattleError(f"cannot take {n} images of {len(y)}")
    shuffled, rank_in_class = shuffle_classes(y, torch.Generator().manual_seed(seed))
    turn = rank_in_class + len(y) * (rank_in_class + 1 > most * y.bincount()[y])
    order = torch.argsort(turn * len(y) + shuffled.argsort())  # round-robin over classes, in shuffled order
    return order[:n].sort().values


def balanced_draws(y: Tensor, seed: int) -> Tensor:
    """As many indices of the labels y as there are, drawn with replacement, every class with the same probability."""
    weights = 1 / y.bincount()[y]
    return torch.multinomial(weights, len(y), replacement=True, generator=torch.Generator().manual_seed(seed))


def imbalance(images: Images, classes: Sequence[str]) -> str:
    """A sentence about classes of very different sizes; empty if there are none."""
    sizes = images.y.bincount(minlength=len(classes)).tolist()
    fewest, most = min(sizes), max(sizes)
    if most < UNEVEN * fewest:
        return ""
    smallest, largest = classes[sizes.index(fewest)], classes[sizes.index(most)]
    return f"classes are imbalanced: {fewest:,} images of {smallest}, {most:,} of {largest}"


def fair_order(y: Tensor, seed: int) -> Tensor:
    """All indices of the labels y, in an order whose every beginning is a fair sample of the whole.

    Drawn by seed; a beginning holds each class in proportion to its share of y, as nearly as whole images allow.

    >>> order = fair_order(torch.tensor([0] * 60 + [1] * 30), seed=0)
    >>> (order[:30] >= 60).sum().item()
    10
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled, rank_in_class = shuffle_classes(y, generator)
    sizes = y.bincount(minlength=1)
    offsets = torch.rand(len(sizes), generator=generator)  # or a short beginning would hold the first classes alone
    place = (rank_in_class + offsets[y]) / sizes[y]  # the k-th of m images stands at (k + offset) / m of the way
    return shuffled[place[shuffled].argsort(stable=True)]


def check_count(n: int | None) -> None:
    """Refuse a number of images that cannot be chosen; None is all."""
    if n is None:
        return
    check_type("the number of images", n, int)
    if n < 1:
        raise RattleError(f"the number of images must be >= 1, got {n}")


def choose_images(
    y: Tensor, n: int | None = None, *, first: bool = False, seed: int = 0, shuffled: bool = False
) -> Tensor:
    """Indices of n of the labels y, the same ones among every larger n: a fair sample by seed, or the first n.

    All of them in their own order when n is None or not fewer than there are; in `fair_order` then too if shuffled.
    """
    check_count(n)
    n = len(y) if n is None else min(n, len(y))
    whole = n == len(y) and not shuffled
    return torch.arange(n) if first or whole else fair_order(y, seed)[:n]


def shuffle_classes(y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random order of the labels' indices, and for each index how many of its class come before it there."""
    shuffled = torch.randperm(len(y), generator=generator)
    _, label, sizes = y[shuffled].unique(return_inverse=True, return_counts=True)
    by_class = label.argsort(stable=True)  # one sort: a pass for each of 1,000 classes takes seconds
    rank_in_class = torch.empty_like(shuffled)
    rank_in_class[shuffled[by_class]] = torch.arange(len(y)) - (sizes.cumsum(0) - sizes)[label[by_class]]
    return shuffled, rank_in_class


def balanced_split(images: Images, n: int, seed: int) -> tuple[Images, Images]:
    """All but n of the images, and the n: balanced over classes, drawn by seed; both keep their order.

    Of a small class at most half is taken, or nothing of it would be left.
    """
    chosen = torch.zeros(len(images), dtype=torch.bool)
    chosen[balanced_indices(images.y, n, seed, most=0.5)] = True
    return images.subset(~chosen), images.subset(chosen)


def train_test_split(name: str, images: Images, classes: Names, seed: int) -> Dataset:
    """A dataset from images without a test part: a balanced fifth, drawn by seed, becomes it."""
    if len(images) < 2:
        raise RattleError(f"{name} holds {len(images)} images, too few for a training and a test part")
    train, test = balanced_split(images, max(1, len(images) // TEST_SHARE), seed)
    return Dataset(name=name, train=train, test=test, classes=classes)
