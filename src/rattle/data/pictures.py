"""PNG and JPEG pictures as uint8 arrays [C, H, W], decoded by Pillow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rattle.data.files import readable
from rattle.errors import RattleError

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_FORMATS = ("PNG", "JPEG")
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's modes of 8 bits


@contextmanager
def open_picture(file: Path) -> Iterator[Image]:
    """The picture with only its header read, which must not claim more pixels than Pillow's limit.

    What is wrong with the file becomes a RattleError that names it, also while it is decoded in the body.
    """
    from PIL import Image

    with readable(file), Image.open(file, formats=PICTURE_FORMATS) as picture:
        yield picture


def check_mode(picture: Image, where: object) -> None:
    if picture.mode not in GREY + COLOUR:
        raise RattleError(f"{where} has pixels of mode {picture.mode}, which 8 bits do not hold; convert it first")


def load_all(
    names: Sequence[object], open_one: Callable[[int], AbstractContextManager[Image]], resize: int | None
) -> np.ndarray:
    """All pictures as uint8 [n, C, H, W], grey if none has colour; without resize they must have one size.

    names: of the pictures, for error messages. open_one: opens the picture of that number. resize: the side to scale
    them to (bilinear, antialiased).
    """
    from PIL import Image

    with open_one(0) as first:
        width, height = (resize, resize) if resize else first.size
    mode = "L"
    for i, name in enumerate(names):
        with open_one(i) as picture:
            check_mode(picture, name)
            if not resize and picture.size != (width, height):
                raise RattleError(
                    f"{name} is {picture.width}x{picture.height} and {names[0]} is {width}x{height}: images must be of "
                    "one size; set data.resize to scale them all"
                )
            if picture.mode in COLOUR:
                mode = "RGB"
    x = np.empty((len(names), len(mode), height, width), np.uint8)
    for i in range(len(names)):
        with open_one(i) as picture:  # one that has the size already is only copied
            scaled = picture.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
            x[i] = np.atleast_3d(np.asarray(scaled)).transpose(2, 0, 1)
    return x


def scaled_part(picture: Image, box: tuple[float, float, float, float], side: int) -> np.ndarray:
    """The part of a picture in a box as uint8 [3, side, side] (bilinear, antialiased).

    A JPEG that is at least twice as large as needed is decoded at a half, quarter or eighth, which is faster.
    """
    from PIL import Image

    width, height = picture.size
    left, upper, right, lower = box
    shrink = max(min(right - left, lower - upper) / side, 1)
    picture.draft(None, (math.ceil(width / shrink), math.ceil(height / shrink)))
    x, y = picture.width / width, picture.height / height
    box = (left * x, upper * y, min(right * x, picture.width), min(lower * y, picture.height))
    found = picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.ascontiguousarray(np.asarray(found).transpose(2, 0, 1))
