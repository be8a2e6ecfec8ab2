"""Descriptions of a dataset: tables of counts, and a contact sheet of its images."""

import math
from pathlib import Path

import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import atomic_write
from rattle.errors import RattleError

ROWS_PER_BLOCK = 25  # the contact sheet starts a new block of columns after so many classes
TILE, HEADER = 64, 50  # pixels of an image's square, and above the images


def parts(data: Dataset) -> dict[str, Images]:
    """The parts that hold images, by name."""
    named = {"train": data.train, "val": data.val, "test": data.test}
    return {name: images for name, images in named.items() if images}


def counts(images: Images, data: Dataset) -> list[int]:
    return torch.bincount(images.y.cpu(), minlength=len(data.classes)).tolist()


def describe(data: Dataset) -> list[tuple[str, ...]]:
    """Rows of a table, header first: each part's number of images, shape and class balance."""
    rows = [("part", "images", "shape", "classes", "fewest in a class", "most in a class", "bytes")]
    for name, images in parts(data).items():
        n = counts(images, data)
        shape = "x".join(map(str, images.shape[1:]))
        fewest, most = (f"{n[i]:,} ({data.classes[i]})" for i in (n.index(min(n)), n.index(max(n))))
        present = f"{sum(map(bool, n))} of {len(n)}"
        rows.append((name, f"{len(images):,}", shape, present, fewest, most, f"{images.nbytes:,}"))
    return rows


def balance(data: Dataset) -> list[tuple[str, ...]]:
    """Rows of a table, header first: how many images of each class each part has."""
    columns = {name: counts(images, data) for name, images in parts(data).items()}
    rows = ((name, *(f"{n[i]:,}" for n in columns.values())) for i, name in enumerate(data.classes))
    return [("class", *columns), *rows]


def contact_sheet(data: Dataset, path: str | Path, *, columns: int = 10) -> Path:
    """Write a PNG with a row of images per class and return its path.

    data: the first images of its training part are shown (of test if it has none). path: file to write.
    columns: images per class.
    """
    from PIL import Image, ImageDraw, ImageFont

    part, images = next(iter(parts(data).items()), ("", data.test))
    if not len(images):
        raise RattleError(f"{data.name} has no images to show")
    names = [name if len(name) <= 24 else name[:23] + "…" for name in data.classes]
    font, small = ImageFont.load_default(18), ImageFont.load_default(14)
    margin = 20 + int(max(map(small.getlength, names)))
    rows, block = min(len(names), ROWS_PER_BLOCK), margin + columns * TILE
    sheet = Image.new("RGB", (-(-len(names) // rows) * block + 10, HEADER + rows * TILE + 10), "white")
    draw = ImageDraw.Draw(sheet)
    shape = "x".join(map(str, images.shape[1:]))
    draw.text((10, HEADER // 2), f"{data.name}: {len(images):,} {part} images, {shape}", "#222222", font, anchor="lm")
    scale = (TILE - 4) / max(images.shape[2:])
    size = (math.ceil(scale * images.shape[3]), math.ceil(scale * images.shape[2]))
    y = images.y.cpu()
    for label, name in enumerate(names):
        left, top = label // rows * block, HEADER + label % rows * TILE
        draw.text((left + margin - 8, top + TILE // 2), name, "#222222", small, anchor="rm")
        chosen = images[(y == label).nonzero().squeeze(1)[:columns]].x.cpu().numpy()
        for column, x in enumerate(chosen):
            picture = Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))
            sheet.paste(picture.resize(size, Image.Resampling.NEAREST), (left + margin + column * TILE, top))
    with atomic_write(Path(path)) as temporary:
        sheet.save(temporary, format="PNG")
    return Path(path)
