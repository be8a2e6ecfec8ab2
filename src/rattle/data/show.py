"""A look at a dataset: how many of what, in rows to print, and a contact sheet to see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.errors import RattleError

ROWS_A_BLOCK = 25  # classes under each other before the sheet goes on to the right


def parts(data: Dataset) -> dict[str, Images]:
    held = {"train": data.train, "val": data.val, "test": data.test}
    return {name: images for name, images in held.items() if images is not None and len(images)}


def counts(images: Images, data: Dataset) -> list[int]:
    return torch.bincount(images.y.cpu(), minlength=len(data.classes)).tolist()


def describe(data: Dataset) -> list[tuple[str, ...]]:
    """Rows to print, the first of them the heading: each part's number of images, shape and class balance."""
    rows = [("part", "images", "shape", "classes", "fewest in a class", "most in a class", "bytes")]
    for name, images in parts(data).items():
        n = counts(images, data)
        least, most = n.index(min(n)), n.index(max(n))
        shape = "x".join(map(str, images.shape[1:]))
        fewest, highest = (f"{n[i]:,} ({data.classes[i]})" for i in (least, most))
        present = f"{sum(map(bool, n))} of {len(n)}"
        rows.append((name, f"{len(images):,}", shape, present, fewest, highest, f"{images.nbytes:,}"))
    return rows


def balance(data: Dataset) -> list[tuple[str, ...]]:
    """Rows to print, the first of them the heading: how many images of each class each part has."""
    held = parts(data)
    columns = [counts(images, data) for images in held.values()]
    return [("class", *held), *((name, *(f"{n[i]:,}" for n in columns)) for i, name in enumerate(data.classes))]


def contact_sheet(data: Dataset, path: str | Path, *, columns: int = 10) -> Path:
    """A PNG with a row of images for each class, the first ones of the training part (or of test, if that is all)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    name, images = next(iter(parts(data).items()), ("", data.test))
    if not len(images):
        raise RattleError(f"{data.name} has no images to show")
    rows, blocks = min(len(data.classes), ROWS_A_BLOCK), -(-len(data.classes) // ROWS_A_BLOCK)
    longest = max(map(len, data.classes))
    tile, margin = 0.42, 0.12 + 0.075 * min(longest, 24)  # inches
    width, height = blocks * (margin + columns * tile) + 0.15, rows * tile + 0.6
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    title = f"{data.name}: {len(images):,} {name} images, {'x'.join(map(str, images.shape[1:]))}"
    figure.text(0.1 / width, 1 - 0.3 / height, title, fontsize=11, fontweight="bold", va="center", color="#222222")
    for block in range(blocks):
        first = block * rows
        labels = range(first, min(first + rows, len(data.classes)))
        left, tall = block * (margin + columns * tile) + margin, len(labels) * tile
        axes = figure.add_axes((left / width, (height - 0.5 - tall) / height, columns * tile / width, tall / height))
        axes.imshow(sheet(images, labels, columns), aspect="auto", interpolation="nearest")
        axes.set_xticks([])
        step = images.shape[2] + 2 * gap(images)
        names = [shortened(data.classes[label]) for label in labels]
        axes.set_yticks([step * (i + 0.5) - 0.5 for i in range(len(names))], names, fontsize=8, color="#222222")
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_visible(False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def gap(images: Images) -> int:
    """Pixels of white around each image."""
    return max(1, round(images.shape[-1] / 24))


def shortened(text: str, length: int = 24) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def sheet(images: Images, labels: range, columns: int) -> np.ndarray:
    """uint8 [H', W', 3]: the first images of each class in a row, white where there are fewer."""
    _, _, height, width = images.shape
    g, y = gap(images), images.y.cpu()
    canvas = np.full((len(labels) * (height + 2 * g), columns * (width + 2 * g), 3), 255, np.uint8)
    for row, label in enumerate(labels):
        chosen = (y == label).nonzero().squeeze(1)[:columns]
        for column, x in enumerate(images[chosen].x.cpu().numpy()):
            top, left = row * (height + 2 * g) + g, column * (width + 2 * g) + g
            canvas[top : top + height, left : left + width] = x.transpose(1, 2, 0)
    return canvas
