"""Data: sources become uint8 tensors, batches are drawn by (seed, epoch), augmentation runs on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from rattle.data.augment import Augment
from rattle.data.cifar import cifar10, cifar100
from rattle.data.dataset import Dataset, balanced_indices, hold_out
from rattle.data.digits import digits
from rattle.data.files import data_root
from rattle.data.folder import folder
from rattle.data.hub import hub
from rattle.data.idx import fashion_mnist, mnist
from rattle.data.mmap_cache import MmapCache
from rattle.data.npz import npz
from rattle.data.svhn import svhn
from rattle.errors import RattleError, unknown
from rattle.randomness import derive_seed

SOURCES: dict[str, Callable[[Path, MmapCache], Dataset]] = {
    "digits": lambda root, cache: digits(),
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
}

HELD_OUT_SHARE, MOST_HELD_OUT = 10, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which images, how many, and what is held out to choose the checkpoint by."""

    name: str = "digits"  # digits, cifar10, cifar100, svhn, mnist, fashion-mnist, FILE.npz, a FOLDER, hub:OWNER/NAME
    root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    train_size: int | None = None  # a balanced subset of the training images; all when not given
    val_size: int | None = None  # balanced training images held out to choose by; a tenth, at most 1000; 0 for none
    split_seed: int = 0  # draws the subset, the held-out images, and the test part of a set that has none
    resize: int | None = None  # side to scale the pictures of a folder or of the hub to
    in_memory_limit: float = 4.0  # gigabytes; a larger part is streamed from a mapped file in ROOT/cache
    augment: Augment = field(default_factory=Augment)

    def __post_init__(self) -> None:
        if self.val_size is not None and self.val_size < 0:
            raise RattleError(f"data.val_size must be >= 0, got {self.val_size}")
        if self.train_size is not None and self.train_size < 1:
            raise RattleError(f"data.train_size must be >= 1, got {self.train_size}")
        if self.resize is not None and self.resize < 1:
            raise RattleError(f"data.resize must be >= 1, got {self.resize}")
        if not self.in_memory_limit >= 0:
            raise RattleError(f"data.in_memory_limit must be >= 0, got {self.in_memory_limit}")

    def load(self) -> Dataset:
        """The whole set, or its subset, with `val` held out of the training part."""
        data = self.source()
        n = len(data.train)
        held = self.validation_size(n)
        if held >= n > 0:
            raise RattleError(f"data.val_size {held} leaves none of the {n} training images")
        if held:
            data = hold_out(data, held, self.split_seed)
        if self.train_size is None:
            return data
        if self.train_size > len(data.train):
            raise RattleError(
                f"data.train_size {self.train_size} is more than the {len(data.train)} training images of {data.name}"
                + (f" that {held} held out leave" if held else "")
                + f": ask for {len(data.train)} or fewer"
            )
        chosen = balanced_indices(data.train.y, self.train_size, self.split_seed)
        return replace(data, train=data.train.subset(chosen))

    def validation_size(self, n: int) -> int:
        """How many of n training images."""
        if self.val_size is None:
            return min(MOST_HELD_OUT, -(-min(n, self.train_size or n) // HELD_OUT_SHARE))
        return self.val_size

    def source(self) -> Dataset:
        """The data as they come, nothing held out."""
        root, path = data_root(self.root), Path(self.name).expanduser()
        cache = MmapCache(root / "cache", int(self.in_memory_limit * 1e9))
        if self.name.startswith("hub:"):
            return hub(self.name.removeprefix("hub:"), cache, self.split_seed, self.resize)
        if self.name not in SOURCES and path.is_dir():
            return folder(path, cache, self.split_seed, self.resize)
        if self.resize is not None:
            raise RattleError(f"data.resize is for folders of pictures and the hub, not for {self.name}")
        if self.name in SOURCES:
            return SOURCES[self.name](root, cache)
        if path.suffix == ".npz" and path.is_file():
            return npz(path, cache, self.split_seed)
        if path.suffix == ".npz" or len(path.parts) > 1:
            kind = ".npz file" if path.suffix == ".npz" else ".npz file or folder of class folders"
            raise RattleError(f"there is no {kind} at {path} (looked from {Path.cwd()})")
        raise unknown("dataset", self.name, [*SOURCES, "FILE.npz", "FOLDER", "hub:OWNER/NAME"])


def batches(n: int, batch_size: int, *, seed: int, epoch: int) -> Iterator[Tensor]:
    """Shuffled index batches of one epoch, the same for the same (seed, epoch); a short last batch is left out."""
    if n < 1:
        raise RattleError("there are no training images to draw batches from")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, epoch)))
    size = min(batch_size, n)
    yield from (order[i : i + size] for i in range(0, n - size + 1, size))
