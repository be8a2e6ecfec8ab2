"""Pictures decoded when they are asked for: a map-style Dataset of files, read by torch's DataLoader and its workers.

Nothing random happens in a worker: a crop is a function of (seed, index), so the number of workers changes nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rattle.data.pictures import check_mode, open_picture, scaled_part
from rattle.errors import RattleError
from rattle.randomness import ImageStreams
from rattle.settings import check_cores

Box = tuple[float, float, float, float]  # left, upper, right, lower in pixels of the picture
TRIES = 10  # shapes drawn for a random crop before the largest one in the middle is taken
RATIO = 4 / 3  # of the sides of a random crop, at most
MOST_WORKERS = 16


def centre(width: int, height: int, w: float, h: float) -> Box:
    """The part of a picture in its middle that is w x h."""
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def crop_draws(seed: int, index: int) -> list[float]:
    """U[0, 1) for one picture: TRIES shares and shapes, then a place."""
    return ImageStreams(seed, torch.tensor([index])).uniform(2 * TRIES + 2)[0].tolist()


def random_crop(width: int, height: int, area: float, draws: Sequence[float]) -> Box:
    """A random part of a picture with a random shape (Szegedy et al. 2015).

    area: the smallest share of the picture's area. The largest allowed part in the middle if none of TRIES fits.
    """
    for i in range(0, 2 * TRIES, 2):
        size = (area + (1 - area) * draws[i]) * width * height
        ratio = math.exp((2 * draws[i + 1] - 1) * math.log(RATIO))
        w, h = round(math.sqrt(size * ratio)), round(math.sqrt(size / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(draws[-2] * (width - w + 1)), int(draws[-1] * (height - h + 1))
            return left, upper, left + w, upper + h
    return centre(width, height, min(width, RATIO * height), min(height, RATIO * width))


@dataclass(frozen=True, slots=True, eq=False)
class PictureFiles(Dataset):
    """Item i is the picture of file i, decoded: uint8 [3, side, side]; its centre, or a random crop by (seed, i)."""

    folder: Path
    names: np.ndarray  # [n] of bytes, inside the folder: one block of memory, which workers share
    side: int
    resize: int  # of the shorter side before the centre is cut out
    seed: int = 0
    area: float | None = None  # smallest share of a random crop; None takes the centre

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Tensor:
        path = self.folder / os.fsdecode(self.names[i])
        with open_picture(path) as picture:
            check_mode(picture, path)
            width, height = picture.size
            if self.area is None:
                part = min(width, height) * self.side / self.resize
                box = centre(width, height, part, part)
            else:
                box = random_crop(width, height, self.area, crop_draws(self.seed, i))
            return torch.from_numpy(scaled_part(picture, box, self.side))

    def __getitems__(self, index: list[int]) -> Tensor | RattleError:
        """A batch for the DataLoader, or the error of a picture: raised in a worker it would become a traceback."""
        found = torch.empty((len(index), 3, self.side, self.side), dtype=torch.uint8)
        try:
            for place, i in enumerate(index):
                found[place] = self[i]
        except RattleError as error:
            return error
        return found


def as_is(batch: Any) -> Any:
    """`__getitems__` returns whole batches: there is nothing to collate."""
    return batch


class Pictures:
    """Encoded pictures in place of a uint8 tensor [n, 3, side, side]: `pictures[index]` decodes those alone."""

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, files: PictureFiles, workers: int | None = None) -> None:
        """workers: processes that decode, see `usual_workers`; 0: none."""
        self.files, self.workers = files, workers
        self.asked: deque[Tensor] = deque()  # the indices of `ahead`
        self.ahead: Iterator[Tensor] = iter(())  # batches that workers decode in advance

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.files.side, self.files.side))

    @property
    def nbytes(self) -> int:
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        return False

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """The pictures of an index, mask or slice, decoded; RattleError for one that cannot be."""
        if isinstance(index, slice):
            index = torch.arange(len(self))[index]
        elif index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        index = index.cpu()
        if self.asked and torch.equal(self.asked[0], index):
            self.asked.popleft()
            return whole(next(self.ahead))
        return whole(self.files.__getitems__(index.tolist()))

    def load(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Batches of indices, decoded by the workers in their order."""
        workers = usual_workers() if self.workers is None else self.workers
        check_cores("data.workers", workers, each=4)
        own = torch.Generator()  # so that the loader draws nothing from torch's global one
        lists = (index.tolist() for index in batches)
        return iter(DataLoader(self.files, batch_sampler=lists, num_workers=workers, collate_fn=as_is, generator=own))

    def split(self, size: int) -> Iterator[Tensor]:
        """All of them, decoded in parts of that size."""
        return map(whole, self.load(torch.arange(len(self)).split(size)))

    def to(self, device: torch.device | str) -> Tensor:
        """All of them in memory."""
        return torch.cat(list(self.split(256))).to(device)

    def take(self, index: Tensor) -> Pictures:
        """Those of an index or mask, still encoded."""
        return Pictures(replace(self.files, names=self.files.names[index.cpu().numpy()]), self.workers)

    def cropped(self, seed: int, area: float, asked: Iterable[Tensor]) -> Pictures:
        """Random crops by (seed, index). asked: the indices that will be asked for, in their order, decoded ahead."""
        some = Pictures(replace(self.files, seed=seed, area=area), self.workers)
        some.asked = deque(index.cpu() for index in asked)
        if some.asked:
            some.ahead = some.load(list(some.asked))
        return some

    @cached_property
    def fingerprint(self) -> Tensor:
        """A checksum of all pixels, uint8 [32]; they are decoded once for it."""
        found = hashlib.sha256()
        for part in self.split(256):
            found.update(part.numpy().tobytes())
        return torch.tensor(list(found.digest()), dtype=torch.uint8)


def whole(batch: Tensor | RattleError) -> Tensor:
    if isinstance(batch, RattleError):
        raise batch
    return batch


def usual_workers() -> int:
    """As many processes as this one may use of the machine's cores, which the ranks on it share."""
    from joblib import cpu_count

    return max(1, min(MOST_WORKERS, cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
