"""Descriptions of a dataset: tables of counts, and a contact sheet of its images."""

from pathlib import Path

from rattle.data.dataset import Dataset, Images
from rattle.data.files import atomic_write

TILE, HEADER, SHEET_MARGIN = 64, 50, 200  # pixels: an image's square, above the images, and beside them for the names
TEXT_INK = "#222222"
Rows = list[tuple[str, ...]]  # of a table, header first


def parts(data: Dataset) -> dict[str, Images]:
    """The parts that hold images, by name."""
    named = {"train": data.train, "val": data.val, "test": data.test}
    return {name: images for name, images in named.items() if images}


def describe_parts(data: Dataset) -> Rows:
    """Each part's number of images, their shape and their size in memory."""
    rows: Rows = [("part", "images", "shape", "bytes")]
    for name, images in parts(data).items():
        rows.append((name, f"{len(images):,}", shape_of(images), f"{images.nbytes:,}"))
    return rows


def shape_of(images: Images) -> str:
    return "x".join(map(str, images.shape[1:]))


def balance(data: Dataset) -> Rows:
    """How many images of each class each part has."""
    columns = [images.y.bincount(minlength=len(data.classes)).tolist() for images in parts(data).values()]
    rows: Rows = [("class", *parts(data))]
    for name, *counts in zip(data.classes, *columns, strict=True):
        rows.append((name, *(f"{n:,}" for n in counts)))
    return rows


def contact_sheet(data: Dataset, path: str | Path, *, columns: int = 10) -> Path:
    """Write a PNG with a row of images per class and return its path.

    data: the first images of its training part are shown (of test if it has none). path: file to write.
    columns: images per class.
    """
    from PIL import Image, ImageDraw, ImageOps

    part, images = next(iter(parts(data).items()))
    sheet = Image.new("RGB", (SHEET_MARGIN + columns * TILE, HEADER + len(data.classes) * TILE), "white")
    draw = ImageDraw.Draw(sheet)
    title = f"{data.name}: {len(images):,} {part} images, {shape_of(images)}"
    draw.text((10, HEADER // 2), title, TEXT_INK, anchor="lm", font_size=18)
    for label, name in enumerate(data.classes):
        top = HEADER + label * TILE
        draw.text((SHEET_MARGIN - 8, top + TILE // 2), name[:24], TEXT_INK, anchor="rm", font_size=14)
        chosen = images[(images.y == label).nonzero().squeeze(1)[:columns]].x.numpy()
        for column, x in enumerate(chosen):
            picture = Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))
            tile = ImageOps.contain(picture, (TILE - 4, TILE - 4), Image.Resampling.NEAREST)
            sheet.paste(tile, (SHEET_MARGIN + column * TILE, top))
    with atomic_write(Path(path)) as temporary:
        sheet.save(temporary, format="PNG")
    return Path(path)
