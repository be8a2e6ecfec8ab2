"""Pictures decoded when they are asked for: a stand-in for a uint8 tensor [n, 3, side, side] that is never whole.

Threads decode, not processes: Pillow releases the interpreter while it decodes and scales, so that they run side by
side, share what they read and end with the run (docs/adr/0016-large-images-are-decoded-on-the-fly.md).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rattle.data.pictures import COLOUR, GREY
from rattle.data.records import Records
from rattle.errors import RattleError
from rattle.randomness import ImageStreams

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]  # left, upper, right, lower in pixels of the picture
TRIES = 10  # shapes drawn for a random crop before the largest one in the middle is taken
RATIO = 4 / 3  # of the sides of a random crop, at most
AHEAD = 2  # minibatches that are decoded in advance
MOST_WORKERS = 16


@dataclass(frozen=True, slots=True)
class Framing:
    """What is shown of a picture: side x side pixels, as if its shorter side were scaled to `resize` before."""

    side: int
    resize: int

    def centre(self, width: int, height: int) -> Box:
        """The middle, as for tests."""
        part = min(width, height) * self.side / self.resize
        left, upper = (width - part) / 2, (height - part) / 2
        return left, upper, left + part, upper + part


@dataclass(frozen=True, slots=True)
class Crops:
    """Random crops of an epoch (Szegedy et al. 2015): what is drawn for a picture follows from seed and index alone."""

    seed: int
    area: float  # smallest share of a picture's area

    def draws(self, index: Tensor) -> Tensor:
        """U[0, 1) for each picture: TRIES shares and shapes, then a place; [n, 2 TRIES + 2]."""
        return ImageStreams(self.seed, index).uniform(2 * TRIES + 2)

    def box(self, width: int, height: int, draws: Sequence[float]) -> Box:
        """A random part of the picture with a random shape; the largest allowed one in the middle if none fits."""
        for share, shape in zip(draws[0 : 2 * TRIES : 2], draws[1 : 2 * TRIES : 2], strict=True):
            area = (self.area + (1 - self.area) * share) * width * height
            ratio = math.exp((2 * shape - 1) * math.log(RATIO))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, upper = int(draws[-2] * (width - w + 1)), int(draws[-1] * (height - h + 1))
                return left, upper, left + w, upper + h
        w, h = min(width, RATIO * height), min(height, RATIO * width)
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


class Pictures:
    """Encoded pictures as a tensor of bytes [n, 3, side, side]: `pictures[index]` decodes those alone.

    The centre of each, or random crops where `cropped` made it. What else a tensor has is here as far as it is used.
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(
        self, records: Records, framing: Framing, workers: int | None = None, rows: np.ndarray | None = None
    ) -> None:
        """rows: the pictures that these are, all when None. workers: threads, see `usual_workers`; 0: none."""
        self.records, self.framing = records, framing
        self.rows = np.arange(len(records)) if rows is None else rows
        self.pool = Pool(usual_workers() if workers is None else workers)
        self.crops: Crops | None = None
        self.begun: deque[Batch] = deque()  # what is decoded in advance
        self.asked: Iterator[Tensor] = iter(())  # what will be asked for after that
        self.checksum: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Pictures({list(self.shape)})"

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.framing.side, self.framing.side))

    def is_floating_point(self) -> bool:
        return False

    def element_size(self) -> int:
        return 1

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """The pictures of an index, mask or slice, decoded; RattleError for one that cannot be."""
        if isinstance(index, slice):
            index = torch.arange(len(self))[index]
        elif index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        index = index.cpu()
        ready = bool(self.begun) and torch.equal(self.begun[0].index, index)
        batch = self.begun.popleft() if ready else self.begin(index)
        self.look_ahead()
        return batch.finish()

    def split(self, size: int) -> Iterator[Tensor]:
        """All of them, decoded in parts of that size."""
        return (self[start : start + size] for start in range(0, len(self), size)) if len(self) else iter((self[:0],))

    def to(self, device: torch.device | str) -> Tensor:
        """All of them in memory."""
        return self[:].to(device)

    def take(self, index: Tensor) -> Pictures:
        """Those of an index or mask, still encoded."""
        return self.like(rows=self.rows[index.cpu().numpy()])

    def like(self, rows: np.ndarray) -> Pictures:
        some = Pictures(self.records, self.framing, 0, rows)
        some.pool = self.pool
        return some

    def cropped(self, seed: int, area: float, asked: Iterable[Tensor]) -> Pictures:
        """Random crops by (seed, index). asked: the indices that will be asked for, in their order, decoded ahead."""
        some = self.like(self.rows)
        some.crops, some.asked = Crops(seed, area), iter(asked)
        some.look_ahead()
        return some

    def look_ahead(self) -> None:
        while len(self.begun) < AHEAD and (index := next(self.asked, None)) is not None:
            self.begun.append(self.begin(index.cpu()))

    def begin(self, index: Tensor) -> Batch:
        """Let the workers decode the pictures of an index."""
        out = torch.empty((len(index), *self.shape[1:]), dtype=torch.uint8)
        draws = self.crops.draws(index).tolist() if self.crops else [None] * len(index)
        pixels, rows = out.numpy(), self.rows[index.numpy()].tolist()
        work = [self.pool.submit(self.decode, *each) for each in zip(pixels, rows, draws, strict=True)]
        return Batch(index, out, work)

    def decode(self, pixels: np.ndarray, row: int, draws: Sequence[float] | None) -> None:
        """One picture into its place in a batch, uint8 [3, side, side]."""
        where = self.records.where(row)
        try:
            picture = open_bytes(self.records.read(row), where)
            width, height = picture.size
            box = self.crops.box(width, height, draws) if self.crops and draws else self.framing.centre(width, height)
            pixels[:] = scaled(picture, box, self.framing.side)
        except RattleError:
            raise
        except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, MemoryError) as error:
            raise RattleError(f"{where} is not a whole PNG or JPEG picture") from error

    def fingerprint(self) -> Tensor:
        """A checksum of all pixels, uint8 [32]; they are decoded once for it."""
        if self.checksum is None:
            found = hashlib.sha256()
            for part in self.split(256):
                found.update(part.numpy().tobytes())
            self.checksum = torch.tensor(list(found.digest()), dtype=torch.uint8)
        return self.checksum


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Pictures that are being decoded."""

    index: Tensor
    out: Tensor
    work: list[Future[None]]

    def finish(self) -> Tensor:
        for each in self.work:
            each.result()  # raises what decoding raised
        return self.out


class Pool:
    """Threads that begin with the first picture; after a fork, which takes no threads along, others begin."""

    def __init__(self, workers: int) -> None:
        self.workers, self.process = workers, 0
        self.threads: ThreadPoolExecutor | None = None

    def submit(self, action: object, *args: object) -> Future[None]:
        if self.workers == 0:
            return at_once(action, *args)
        if self.threads is None or self.process != os.getpid():
            self.threads, self.process = ThreadPoolExecutor(self.workers, "decode"), os.getpid()
        return self.threads.submit(action, *args)  # type: ignore[arg-type]


def at_once(action: object, *args: object) -> Future[None]:
    """What a worker would do, done here."""
    done: Future[None] = Future()
    try:
        done.set_result(action(*args))  # type: ignore[operator]
    except Exception as reason:
        done.set_exception(reason)
    return done


def usual_workers() -> int:
    """As many threads as this process may use of the machine's cores, which the ranks on it share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(MOST_WORKERS, cores // (int(here) if here.isdecimal() and int(here) else 1)))


def open_bytes(data: bytes, where: str) -> Image:
    """A PNG or JPEG picture with only its header read; refuses one of too many pixels, or of more than 8 bits.

    Not by `Image.open`, which warns of the size by a filter of warnings that all threads share.
    """
    from PIL import Image, JpegImagePlugin, PngImagePlugin

    png = data.startswith(b"\x89PNG\r\n\x1a\n")
    if not png and not data.startswith(b"\xff\xd8"):
        raise RattleError(f"{where} is not a whole PNG or JPEG picture")
    file = io.BytesIO(data)
    picture = PngImagePlugin.PngImageFile(file) if png else JpegImagePlugin.JpegImageFile(file)
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and picture.width * picture.height > most:
        raise RattleError(f"{where} has more than {most:,} pixels; it is not read")
    if picture.mode not in GREY + COLOUR:
        raise RattleError(f"{where} has pixels of mode {picture.mode}, which 8 bits do not hold; convert it first")
    return picture


def scaled(picture: Image, box: Box, side: int) -> np.ndarray:
    """The part of a picture in a box as uint8 [3, side, side] (bilinear, antialiased).

    A JPEG that is at least twice as large as needed is decoded at a half, quarter or eighth, which is faster.
    """
    from PIL import Image

    width, height = picture.size
    shrink = min(box[2] - box[0], box[3] - box[1]) / side
    picture.draft(None, (math.ceil(width / max(shrink, 1)), math.ceil(height / max(shrink, 1))))
    x, y = picture.width / width, picture.height / height
    box = (box[0] * x, box[1] * y, min(box[2] * x, picture.width), min(box[3] * y, picture.height))
    picture = picture if picture.mode == "RGB" else picture.convert("RGB")
    found = picture.resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(found).transpose(2, 0, 1)
