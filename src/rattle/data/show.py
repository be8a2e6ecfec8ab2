"""Descriptions of a dataset: tables of counts, and a contact sheet of its images."""

from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import atomic_write
from rattle.errors import RattleError

ROWS_PER_BLOCK = 25  # the contact sheet starts a new block of columns after so many classes


def parts(data: Dataset) -> dict[str, Images]:
    """The parts that hold images, by name."""
    named = {"train": data.train, "val": data.val, "test": data.test}
    return {name: images for name, images in named.items() if images is not None and len(images)}


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
    from matplotlib.figure import Figure

    name, images = next(iter(parts(data).items()), ("", data.test))
    if not len(images):
        raise RattleError(f"{data.name} has no images to show")
    rows, blocks = min(len(data.classes), ROWS_PER_BLOCK), -(-len(data.classes) // ROWS_PER_BLOCK)
    tile, margin = 0.42, 0.12 + 0.075 * min(max(map(len, data.classes)), 24)  # inches
    block_width = margin + columns * tile
    width, height = blocks * block_width + 0.15, rows * tile + 0.6
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    title = f"{data.name}: {len(images):,} {name} images, {'x'.join(map(str, images.shape[1:]))}"
    figure.text(0.1 / width, 1 - 0.3 / height, title, fontsize=11, fontweight="bold", va="center", color="#222222")
    for block in range(blocks):
        labels = range(block * rows, min((block + 1) * rows, len(data.classes)))
        left, tall = block * block_width + margin, len(labels) * tile
        axes = figure.add_axes((left / width, (height - 0.5 - tall) / height, columns * tile / width, tall / height))
        axes.imshow(tile_images(images, labels, columns), aspect="auto", interpolation="nearest")
        axes.set_xticks([])
        step = images.shape[2] + 2 * gap(images)
        names = [shorten(data.classes[label]) for label in labels]
        axes.set_yticks([step * (i + 0.5) - 0.5 for i in range(len(names))], names, fontsize=8, color="#222222")
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_visible(False)
    with atomic_write(Path(path)) as part:
        figure.savefig(part, format="png")
    return Path(path)


def gap(images: Images) -> int:
    """Pixels of white around each image."""
    return max(1, round(images.shape[-1] / 24))


def shorten(text: str, length: int = 24) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def tile_images(images: Images, labels: range, columns: int) -> np.ndarray:
    """uint8 [H', W', 3]: a row with the first images of each class, white where there are fewer."""
    _, _, height, width = images.shape
    g, y = gap(images), images.y.cpu()
    canvas = np.full((len(labels) * (height + 2 * g), columns * (width + 2 * g), 3), 255, np.uint8)
    for row, label in enumerate(labels):
        chosen = (y == label).nonzero().squeeze(1)[:columns]
        for column, x in enumerate(images[chosen].x.cpu().numpy()):
            top, left = row * (height + 2 * g) + g, column * (width + 2 * g) + g
            canvas[top : top + height, left : left + width] = x.transpose(1, 2, 0)
    return canvas
