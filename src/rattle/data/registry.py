"""Datasets by name, file, folder or hub name; their subsets; shuffled batches.

A source is a function load(root, cache) -> Dataset. One file and one line of SOURCES add one, or one call of
`register_source` at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from rattle.data.augment import Augment
from rattle.data.cifar import cifar10, cifar100
from rattle.data.dataset import Dataset, Images, balanced_indices, hold_out
from rattle.data.decoded import Decoder, decoded
from rattle.data.digits import digits
from rattle.data.extra import IN_MEMORY, extra_images
from rattle.data.files import data_root
from rattle.data.folder import folder
from rattle.data.hub import hub
from rattle.data.idx import fashion_mnist, mnist
from rattle.data.mmap_cache import MmapCache
from rattle.data.npz import npz
from rattle.data.resize import scale
from rattle.data.svhn import svhn
from rattle.data.urls import URLS, Remote
from rattle.errors import RattleError, unknown
from rattle.randomness import derive_seed

Load = Callable[[Path, MmapCache], Dataset]
SOURCES: dict[str, Load] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
}
BUILT_IN = frozenset(SOURCES)
DECODED = {"imagenet": 224}  # found under the root, decoded on the fly; the side of the crops when not given
EXTRA_FRACTION = 0.7  # of a minibatch (Gowal et al. 2020)
LEAST = {"val_size": 0, "train_size": 1, "resize": 1, "crop": 1, "workers": 0, "in_memory_limit": 0}
VAL_SHARE, MAX_VAL = 10, 1000  # by default one training image in ten is held out, at most a thousand


def register_source(name: str, load: Load, *, urls: Sequence[Remote] = ()) -> None:
    """Make `Data(name=name)` and `rattle ... --data.name NAME` load a dataset of your own.

    name: not a built-in one; registering a name again replaces it. load: given the folder of datasets and a cache for
    images too large for memory, returns the Dataset. urls: files that `rattle data get NAME` downloads.
    """
    if name in BUILT_IN:
        raise RattleError(f"{name} is a built-in dataset: register yours under another name")
    SOURCES[name] = load
    if urls:
        URLS[name] = tuple(urls)


def list_datasets() -> list[str]:
    """The names of all datasets, built-in and registered."""
    return list(SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which images to train and test on, and how many to hold out to select the checkpoint."""

    name: str = "digits"  # digits, cifar10, ... (`rattle data` lists them), FILE.npz, a FOLDER, or hub:OWNER/NAME
    root: str | None = None  # folder that holds datasets; RATTLE_DATA, or ./data, when not given
    train_size: int | None = None  # train on a balanced subset of this size; all training images when not given
    val_size: int | None = None  # training images to hold out; a tenth, at most 1000, when not given; 0 or none: none
    split_seed: int = 0  # draws the subset, the held-out images, and the test part of a dataset that has none
    resize: int | None = None  # side to scale the images to, whatever their source; the shorter side with data.crop
    crop: int | None = None  # decode a folder or tar shards on the fly; side of random crops, and of centres in tests
    workers: int | None = None  # threads that decode; as many as this process has cores, up to 16, when not given
    in_memory_limit: float = 4.0  # gigabytes; a larger part is read from a memory-mapped file in ROOT/cache
    augment: Augment = field(default_factory=Augment)  # random changes of the training images
    extra: str | None = None  # FILE.npz of extra or generated images (image, label), drawn into every minibatch
    extra_fraction: float | None = None  # share of a minibatch that they make up; 0.7 when not given

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise RattleError(f"data.{name} must be >= {low}, got {value}")
        for name, value in (("data.workers", self.workers), ("data.augment.area", self.augment.area)):
            if value is not None and not self.crop and self.name not in DECODED:
                raise RattleError(
                    f"{name} {value} does nothing to images that are not decoded on the fly: set data.crop"
                )
        if self.crop and self.resize and self.crop > self.resize:
            sides = f"data.crop {self.crop} is larger than data.resize {self.resize}"
            raise RattleError(f"{sides}, the shorter side of the pictures that it is cut from")
        if self.extra_fraction is not None and not 0 < self.extra_fraction < 1:
            raise RattleError(f"data.extra-fraction must lie between 0 and 1, got {self.extra_fraction}")

    def load(self) -> Dataset:
        """The dataset with `val` held out of the training images, and train reduced to train_size."""
        return self.split(self.source())

    def split(self, data: Dataset) -> Dataset:
        """The same of a dataset at hand; one that has held-out images already keeps them."""
        n, n_val = len(data.train), self.val_size if data.val is None else 0
        if n_val is None:
            n_val = min(MAX_VAL, math.ceil(min(n, self.train_size or n) / VAL_SHARE))
        n_val = n_val if n else 0  # a test part alone has nothing to hold out
        if n_val >= n > 0:
            raise RattleError(f"data.val_size {n_val} leaves none of the {n} training images")
        if n_val:
            data = hold_out(data, n_val, self.split_seed)
        if self.train_size is None:
            return data
        if self.train_size > len(data.train):
            raise RattleError(
                f"data.train_size {self.train_size} is more than the {len(data.train)} training images of {data.name}"
                + (f" that {n_val} held out leave" if n_val else "")
                + f": ask for {len(data.train)} or fewer"
            )
        chosen = balanced_indices(data.train.y, self.train_size, self.split_seed)
        return replace(data, train=data.train.subset(chosen))

    def load_extra(self, data: Dataset) -> Images | None:
        """The images of `extra`, to train on beside those of `data`; evaluations do without them."""
        if self.extra is None:
            return None
        cache = replace(self.cache, limit=min(self.cache.limit, IN_MEMORY))
        return extra_images(Path(self.extra).expanduser(), data, self.resize, cache)

    def extra_count(self, batch: int) -> int:
        """How many images of a minibatch are extra ones, rounded down; at least one, and one is always original."""
        if self.extra is None:
            return 0
        count = math.floor(batch * (self.extra_fraction or EXTRA_FRACTION) + 1e-9)
        if not 0 < count < batch:
            share = f"data.extra-fraction {self.extra_fraction or EXTRA_FRACTION:g} of a minibatch of {batch}"
            raise RattleError(f"{share} is {count or 'no'} extra image{'s' if count else ''}: change one of the two")
        return count

    @property
    def cache(self) -> MmapCache:
        """Where images that are too many for memory go."""
        return MmapCache(data_root(self.root) / "cache", int(self.in_memory_limit * 1e9))

    def source(self) -> Dataset:
        """The dataset as its source returns it, nothing held out."""
        return self.find()()

    def find(self) -> Callable[[], Dataset]:
        """What reads the dataset; raises RattleError if the name is none."""
        if self.name.partition(":")[0] == "memory":  # the name that `fit` gives to images handed to it
            raise RattleError(
                "the images were given in Python and are not stored: name others, or give them again, "
                "rattle.fit(..., data=(x, y)) to train, rattle.evaluate(rattle.load(RUN, model=...), x, y, ...) to test"
            )
        root, path = data_root(self.root), Path(self.name).expanduser()
        cache = self.cache
        if self.crop or self.name in DECODED:
            return self.find_decoded(root, path)
        if self.name.startswith("hub:"):
            return lambda: hub(self.name.removeprefix("hub:"), cache, self.split_seed, self.resize)
        if self.name not in SOURCES and path.is_dir():
            return lambda: folder(path, cache, self.split_seed, self.resize)
        if self.name in SOURCES:
            return self.scaled(lambda: SOURCES[self.name](root, cache))
        if path.suffix == ".npz" and path.is_file():
            return self.scaled(lambda: npz(path, cache, self.split_seed))
        if path.suffix == ".npz" or len(path.parts) > 1:
            kind = ".npz file" if path.suffix == ".npz" else ".npz file or folder of class folders"
            raise RattleError(f"there is no {kind} at {path} (looked from {Path.cwd()})")
        raise unknown("dataset", self.name, [*SOURCES, *DECODED, "FILE.npz", "FOLDER", "hub:OWNER/NAME"])

    def other(self, name: str) -> Data:
        """Other images of the size that these have; pictures in a folder are decoded as these are."""
        if self.crop and not (name in DECODED or Path(name).is_dir()):
            return Data(name=name, root=self.root, resize=self.crop)
        return Data(name=name, root=self.root, resize=self.resize, crop=self.crop, workers=self.workers)

    def find_decoded(self, root: Path, path: Path) -> Callable[[], Dataset]:
        """What reads a dataset that is decoded on the fly."""
        side = self.crop or DECODED[self.name]
        if self.name in DECODED:
            path = root / self.name
        elif self.name in SOURCES or not path.is_dir():
            what = "comes as arrays" if self.name in SOURCES or path.is_file() else "is none"
            raise RattleError(f"data.crop is for a folder of pictures or of tar shards, and {self.name} {what}")
        if not path.is_dir():
            where = "name the folder above it with --data.root or RATTLE_DATA, or it with --data.name"
            raise RattleError(f"{self.name}: there is no folder {path} with train/ and val/ or tar shards; {where}")
        if self.resize is not None and side > self.resize:  # where the side was not given
            raise RattleError(f"data.resize {self.resize} leaves no room for crops of {side}: set a smaller data.crop")
        decoder = Decoder(crop=side, resize=self.resize, workers=self.workers, cache=self.cache.folder)
        return lambda: decoded(path, decoder, self.split_seed)

    def scaled(self, read: Callable[[], Dataset]) -> Callable[[], Dataset]:
        """`read`, its images scaled where the settings ask for it."""
        side = self.resize
        return read if side is None else lambda: scale(read(), side, self.cache)


def batches(n: int, batch_size: int, *, seed: int, epoch: int, drop_last: bool = True) -> Iterator[Tensor]:
    """The shuffled batches of one epoch, as indices below n; the same for the same (seed, epoch).

    A last batch of fewer than batch_size images is left out unless `drop_last` is False.
    """
    if n < 1:
        raise RattleError("there are no training images to draw batches from")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, epoch)))
    size = min(batch_size, n)
    yield from (order[i : i + size] for i in range(0, n - size + 1 if drop_last else n, size))
