"""What a data source gives: uint8 images, labels and class names; and how a set is split and subsampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rattle.errors import RattleError


@dataclass(frozen=True, slots=True)
class Images:
    """x uint8 [n, C, H, W], y int64 [n]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor) -> Images:
        return Images(self.x[index], self.y[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A training part, a test part and the names of the classes."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    val: Images | None = None  # held out of train, for choosing a checkpoint

    def __post_init__(self) -> None:
        for part in filter(None, (self.train, self.val, self.test)):
            if len(part) and not (int(part.y.min()) >= 0 and int(part.y.max()) < len(self.classes)):
                raise RattleError(
                    f"{self.name}: labels run from {int(part.y.min())} to {int(part.y.max())}, "
                    f"but there are {len(self.classes)} classes"
                )

    @property
    def channels(self) -> int:
        return self.test.x.shape[1]

    @property
    def size(self) -> int:
        return self.test.x.shape[-1]


def balanced(y: Tensor, n: int, seed: int) -> Tensor:
    """Indices of n images, as equal in classes as the data allow, drawn by seed; sorted."""
    if not 0 < n <= len(y):
        raise RattleError(f"cannot take {n} images of {len(y)}")
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    rank_in_class = torch.empty_like(shuffled)
    for label in y.unique():
        members = shuffled[y[shuffled] == label]
        rank_in_class[members] = torch.arange(len(members))
    place = torch.empty_like(shuffled)
    place[shuffled] = torch.arange(len(y))
    order = torch.argsort(rank_in_class * len(y) + place)  # round-robin over the classes, shuffled within a round
    return order[:n].sort().values


def hold_out(data: Dataset, n: int, seed: int) -> Dataset:
    """The data with n balanced training images set aside as `val`."""
    held = balanced(data.train.y, n, seed)
    rest = torch.ones(len(data.train), dtype=torch.bool)
    rest[held] = False
    return replace(data, train=data.train[rest.nonzero().squeeze(1)], val=data.train[held])
