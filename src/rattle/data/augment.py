"""Batch augmentation on the device: a function of (seed, epoch, index), whatever the batch or rank."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.randomness import ImageStreams


def to_float(x: Tensor, layout: torch.memory_format = torch.channels_last) -> Tensor:
    """uint8 [n, C, H, W] to [0, 1] in torch's default type (float32 unless set otherwise), by default channels last."""
    return x.to(dtype=torch.get_default_dtype(), memory_format=layout).div_(255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Random crop with zero padding, horizontal flip, cutout (DeVries and Taylor 2017); each off at 0 / False."""

    pad: int = 4  # pixels of padding before a random crop of the original size
    flip: bool = True  # mirror half of the images
    cutout: int = 0  # side of the square set to zero

    def __post_init__(self) -> None:
        if self.pad < 0 or self.cutout < 0:
            raise RattleError(f"augment.pad and augment.cutout must be >= 0, got {self.pad} and {self.cutout}")

    def __call__(self, x: Tensor, streams: ImageStreams) -> Tensor:
        """Images x, uint8 or float [n, C, H, W], to the same type and shape; streams: the randomness of each image."""
        n, channels, height, width = x.shape
        row, column = (torch.arange(side, device=x.device) for side in (height, width))
        rows, columns = row.expand(n, height), column.expand(n, width)
        if self.flip:
            mirrored = streams.integers(2, 1) == 1
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if self.pad:
            x = F.pad(x, [self.pad] * 4)
            shift = streams.integers(2 * self.pad + 1, 2)
            rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
        if self.flip or self.pad:  # one gather by flat pixel index: three times as fast as indexing by three tensors
            pixel = (rows[:, :, None] * x.shape[3] + columns[:, None, :]).view(n, 1, height * width)
            x = x.flatten(2).gather(2, pixel.expand(-1, channels, -1)).view(n, channels, height, width)
        if self.cutout:
            centre = (streams.uniform(2) * torch.tensor([height, width], device=x.device)).long()
            first, last = centre - self.cutout // 2, centre - self.cutout // 2 + self.cutout
            inside_rows = (row >= first[:, :1]) & (row < last[:, :1])
            inside_columns = (column >= first[:, 1:]) & (column < last[:, 1:])
            x = x.masked_fill((inside_rows[:, :, None] & inside_columns[:, None, :])[:, None], 0)
        return x
