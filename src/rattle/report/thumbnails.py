"""Small pictures inside the page: arrays as PNG data URLs."""

import base64
import io

import numpy as np

LARGEST_SIDE = 96  # of a side; of larger images every k-th pixel is shown; the browser enlarges smaller ones


def data_uri(image: np.ndarray) -> str:
    """An image [C, H, W] in [0, 1]: grey with one channel, colour with three, the mean of any other number."""
    from PIL import Image

    step = max(1, -(-max(image.shape[1:]) // LARGEST_SIDE))
    shown = np.clip(np.nan_to_num(image[:, ::step, ::step]), 0, 1)
    if shown.shape[0] != 3:
        shown = shown.mean(0, keepdims=True)
    pixels = (255 * shown).round().astype(np.uint8)
    out = io.BytesIO()
    grey_or_colour = pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    Image.fromarray(grey_or_colour).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def perturbation(delta: np.ndarray, factor: float) -> str:
    """A perturbation [C, H, W] times `factor`, around mid-grey."""
    return data_uri(factor * delta + 0.5)


def enlargement_factor(deltas: np.ndarray) -> float:
    """By how much to enlarge perturbations for display: 10, or less if they would then leave the range of a pixel."""
    largest = float(np.nanmax(np.abs(deltas))) if deltas.size else 0.0
    return 10.0 if largest <= 0.05 else float(f"{0.5 / largest:.2g}")
