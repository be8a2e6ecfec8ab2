"""`Data`: which dataset, by name, file, folder or hub name, and its subsets; shuffled batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from rattle.data.augment import Augment
from rattle.data.dataset import Dataset, Images, balanced_draws
from rattle.data.files import data_root
from rattle.data.sources import DECODED, SOURCES, check_source
from rattle.errors import RattleError
from rattle.randomness import derive_seed
from rattle.settings import Between, Bound, Count, CountOrZero, check_settings

CORRUPTED = ("cifar10-c:", "cifar100-c:")  # and a folder of KIND.npy, or one of its files
EXTRA_FRACTION = 0.7  # of a minibatch (Gowal et al. 2020)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which images to train and test on, and how many to hold out to select the checkpoint."""

    name: str = "digits"  # a name that `rattle data` lists, FILE.npz, a FOLDER, hub:OWNER/NAME or cifar10-c:FOLDER
    root: str | None = None  # folder that holds datasets; RATTLE_DATA, or ./data, when not given
    train_size: Annotated[int, Bound(least=1)] | None = None  # train on a balanced subset; all images when not given
    val_size: CountOrZero | None = None  # training images to hold out; a tenth, at most 1000, when not given; 0: none
    balanced: bool = False  # draw with replacement, every class with the same probability
    split_seed: int = 0  # draws the subset, the held-out images, and the test part of a dataset that has none
    resize: Count | None = None  # side to scale the images to, whatever their source; the shorter side with data.crop
    crop: Count | None = None  # decode a folder on the fly; side of random crops, and of centres in tests
    workers: CountOrZero | None = None  # processes that decode; one a core, up to 16, when not given
    augment: Augment = field(default_factory=Augment)  # random changes of the training images
    extra: str | None = None  # FILE.npz of extra or generated images (image, label), drawn into every minibatch
    extra_fraction: Between | None = None  # share of a minibatch that they make up; 0.7 when not given

    def __post_init__(self) -> None:
        check_settings(self, "data")
        side = self.crop_side
        if not side:
            for name, value in (("data.workers", self.workers), ("data.augment.area", self.augment.area)):
                if value is not None:
                    raise RattleError(
                        f"{name} {value} does nothing to images that are not decoded on the fly: set data.crop"
                    )
        elif self.resize and side > self.resize:
            raise RattleError(f"data.crop {side} is larger than data.resize {self.resize}: set a smaller data.crop")

    @property
    def crop_side(self) -> int | None:
        """The side of the crops of pictures that are decoded on the fly; None for other images."""
        return self.crop or DECODED.get(self.name)

    def load(self) -> Dataset:
        """The dataset with `val` held out of the training images, and train reduced to train_size."""
        return self.source().split(self.train_size, self.val_size, self.split_seed)

    def load_extra(self, data: Dataset) -> Images | None:
        """The images of `extra`, to train on beside those of `data`; evaluations do without them."""
        if self.extra is None:
            return None
        from rattle.data.extra import extra_images

        return extra_images(Path(self.extra).expanduser(), data, self.resize)

    def extra_count(self, batch: int) -> int:
        """How many images of a minibatch are extra ones, rounded down; at least one, and one is always original."""
        if self.extra is None:
            return 0
        share = self.extra_fraction or EXTRA_FRACTION
        count = math.floor(batch * share + 1e-9)
        if not 0 < count < batch:
            raise RattleError(
                f"data.extra-fraction {share:g} of a minibatch of {batch} is {count} extra images: change one of them"
            )
        return count

    def source(self) -> Dataset:
        """The dataset as its source returns it, nothing held out."""
        self.check()
        seed, side, path = self.split_seed, self.resize, Path(self.name).expanduser()
        if self.crop_side:
            from rattle.data.folder import decoded_folder

            return decoded_folder(self.picture_folder(), seed, crop=self.crop_side, resize=side, workers=self.workers)
        if self.name.startswith("hub:"):
            from rattle.data.hub import hub

            return hub(self.name.removeprefix("hub:"), seed, side)
        if self.name.startswith(CORRUPTED):
            from rattle.data.cifar_c import cifar_c

            data = cifar_c(self.name)
        elif self.name in SOURCES:
            data = SOURCES[self.name](data_root(self.root))
        elif path.is_dir():
            from rattle.data.folder import folder

            return folder(path, seed, side)
        else:
            from rattle.data.npz import npz

            data = npz(path, seed)
        if side is None:
            return data
        from rattle.data.resize import scale

        return scale(data, side)

    def check(self) -> None:
        """Raise RattleError if the name is no dataset's, and no file or folder that is there."""
        if self.name.partition(":")[0] == "memory":  # the name that `fit` gives to images handed to it
            raise RattleError(
                "the images were given in Python and are not stored: name others, or give them again, "
                "rattle.fit(..., data=(x, y)) to train, rattle.evaluate(rattle.load(RUN, model=...), x, y, ...) to test"
            )
        if not self.crop:
            check_source(self.name)
        if self.crop_side and not self.picture_folder().is_dir():
            raise RattleError(
                f"{self.name}: there is no folder {self.picture_folder()} of pictures to decode (data.crop); "
                "name it with --data.name, or the folder of datasets with --data.root or RATTLE_DATA"
            )

    def picture_folder(self) -> Path:
        """The folder of pictures that are decoded on the fly."""
        return data_root(self.root) / self.name if self.name in DECODED else Path(self.name).expanduser()

    def other(self, name: str) -> Data:
        """Other images of the size that these have; pictures in a folder are decoded as these are."""
        if self.crop and not (name in DECODED or Path(name).is_dir()):
            return Data(name=name, root=self.root, resize=self.crop)
        return Data(name=name, root=self.root, resize=self.resize, crop=self.crop, workers=self.workers)


def batches(
    n: int, batch_size: int, *, seed: int, epoch: int, drop_last: bool = True, balanced: Tensor | None = None
) -> Iterator[Tensor]:
    """The shuffled batches of one epoch, as indices below n; the same for the same (seed, epoch).

    A last batch of fewer than batch_size images is left out unless `drop_last` is False. balanced: labels [n]; each
    class has the same probability.
    """
    if n < 1:
        raise RattleError("there are no training images to draw batches from")
    if balanced is None:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, epoch)))
    else:
        order = balanced_draws(balanced, derive_seed(seed, epoch))
    for index in order.split(min(batch_size, n)):
        if len(index) == min(batch_size, n) or not drop_last:
            yield index
