"""Data: sources become uint8 tensors, batches are drawn by (seed, epoch), augmentation runs on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rattle.data.augment import Augment, to_float
from rattle.data.contract import Dataset, Images, balanced, hold_out
from rattle.data.digits import digits
from rattle.errors import RattleError, unknown
from rattle.randomness import fork

SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which images, how many, and what is held out to choose the checkpoint by."""

    name: str = "digits"  # a source's name
    train_size: int | None = None  # a balanced subset of the training images; all when not given
    val_size: int = 130  # balanced training images held out for choosing the best checkpoint
    split_seed: int = 0  # draws the subset and the held-out images
    augment: Augment = field(default_factory=Augment)

    def __post_init__(self) -> None:
        if self.val_size < 1:
            raise RattleError(
                f"data.val_size must be >= 1, got {self.val_size}: a checkpoint is chosen on held-out images"
            )

    def load(self) -> Dataset:
        if self.name not in SOURCES:
            raise unknown("dataset", self.name, SOURCES)
        data = SOURCES[self.name]()
        if self.val_size >= len(data.train):
            raise RattleError(f"data.val_size {self.val_size} leaves none of the {len(data.train)} training images")
        data = hold_out(data, self.val_size, self.split_seed)
        if self.train_size is not None:
            from dataclasses import replace

            data = replace(data, train=data.train[balanced(data.train.y, self.train_size, self.split_seed)])
        return data


def batches(n: int, batch_size: int, *, seed: int, epoch: int) -> Iterator[Tensor]:
    """Shuffled index batches of one epoch, the same for the same (seed, epoch); a short last batch is left out."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(fork(seed, epoch)))
    size = min(batch_size, n)
    yield from (order[i : i + size] for i in range(0, n - size + 1, size))


__all__ = ["Augment", "Data", "Dataset", "Images", "batches", "to_float"]
