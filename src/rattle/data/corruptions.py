"""Common corruptions of images of one's own, five severities each: the kinds of CIFAR-10-C without OpenCV.

Definitions and severities are those of Hendrycks and Dietterich 2019 for CIFAR; blurs are in pixels. Random numbers are
a function of the seed, the kind, the severity and the image's index.
"""

import math
from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

Pixels = np.ndarray
Random = np.random.Generator


def gaussian_noise(x: Pixels, severity: int, random: Random) -> Pixels:
    return x + random.normal(scale=(0.04, 0.06, 0.08, 0.09, 0.10)[severity], size=x.shape)


def shot_noise(x: Pixels, severity: int, random: Random) -> Pixels:
    rate = (500, 250, 100, 75, 50)[severity]
    return random.poisson(x * rate) / rate


def impulse_noise(x: Pixels, severity: int, random: Random) -> Pixels:
    """Salt and pepper: each value is replaced with this probability, by 0 or 1."""
    replaced = random.random(x.shape) < (0.01, 0.02, 0.03, 0.05, 0.07)[severity]
    return np.where(replaced, random.random(x.shape) < 0.5, x)


def speckle_noise(x: Pixels, severity: int, random: Random) -> Pixels:
    return x + x * random.normal(scale=(0.06, 0.1, 0.12, 0.16, 0.2)[severity], size=x.shape)


def gaussian_blur(x: Pixels, severity: int, random: Random) -> Pixels:
    from scipy.ndimage import gaussian_filter

    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity]
    return gaussian_filter(x, (sigma, sigma, 0), mode="nearest")


def defocus_blur(x: Pixels, severity: int, random: Random) -> Pixels:
    """A disk, smoothed by a Gaussian of 3x3 pixels."""
    from scipy.ndimage import convolve

    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity]
    axis = np.arange(-8, 9)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(float)
    bell = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias**2))
    kernel = convolve(disk / disk.sum(), np.outer(bell, bell) / bell.sum() ** 2, mode="mirror")
    return convolve(x, kernel[:, :, None], mode="mirror")


def zoom_blur(x: Pixels, severity: int, random: Random) -> Pixels:
    """The mean of the image and of its middle zoomed to a few factors."""
    from scipy.ndimage import zoom

    side, factors = len(x), np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity], 0.01)
    total = x.copy()
    for factor in factors:
        crop = math.ceil(side / factor)
        top = (side - crop) // 2
        larger: Pixels = np.asarray(zoom(x[top : top + crop, top : top + crop], (factor, factor, 1), order=1))
        trim = (len(larger) - side) // 2
        total += larger[trim : trim + side, trim : trim + side]
    return total / (len(factors) + 1)


def brightness(x: Pixels, severity: int, random: Random) -> Pixels:
    """The value of HSV, the largest channel, rises; hue and saturation stay."""
    value = x.max(2, keepdims=True)
    brighter = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity]).clip(0, 1)
    return np.where(value > 0, x / np.where(value > 0, value, 1), 1) * brighter


def contrast(x: Pixels, severity: int, random: Random) -> Pixels:
    mean = x.mean((0, 1), keepdims=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity] + mean


def saturate(x: Pixels, severity: int, random: Random) -> Pixels:
    """The saturation of HSV changes; hue and value stay. Grey pixels have hue 0, red."""
    factor, added = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity]
    value = x.max(2, keepdims=True)
    range_ = value - x.min(2, keepdims=True)
    saturation = range_ / np.where(value > 0, value, 1)
    missing = np.where(range_ > 0, (value - x) / np.where(range_ > 0, range_, 1), np.array([0, 1, 1]))
    return value * (1 - missing * (saturation * factor + added).clip(0, 1))


def pixelate(x: Pixels, severity: int, random: Random) -> Pixels:
    side = (x.shape[1], x.shape[0])
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity]
    small = to_picture(x).resize((int(side[0] * share), int(side[1] * share)), Image.Resampling.BOX)
    return pixels(small.resize(side, Image.Resampling.BOX), x)


def jpeg_compression(x: Pixels, severity: int, random: Random) -> Pixels:
    file = BytesIO()
    to_picture(x).save(file, "JPEG", quality=(80, 65, 58, 50, 40)[severity])
    return pixels(Image.open(file), x)


def to_picture(x: Pixels) -> Image.Image:
    levels = np.rint(x * 255).astype(np.uint8)
    return Image.fromarray(levels[:, :, 0] if x.shape[2] == 1 else levels)


def pixels(found: Image.Image, x: Pixels) -> Pixels:
    return np.asarray(found, np.float64).reshape(x.shape) / 255


CORRUPTIONS: dict[str, Callable[[Pixels, int, Random], Pixels]] = {
    kind.__name__: kind
    for kind in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        speckle_noise,
        gaussian_blur,
        defocus_blur,
        zoom_blur,
        brightness,
        contrast,
        saturate,
        pixelate,
        jpeg_compression,
    )
}


def kinds_for(channels: int) -> list[str]:
    """The kinds that change images of so many channels: grey ones have no saturation."""
    return [kind for kind in CORRUPTIONS if kind != "saturate" or channels == 3]


def corrupt(x: Pixels, kind: str, severity: int, index: Pixels, seed: int = 0) -> Pixels:
    """Corrupted images uint8 [n, C, H, W] of uint8 images; severity 1 to 5; index: of each image in its dataset.

    >>> int(corrupt(np.full((1, 3, 8, 8), 100, np.uint8), "brightness", 5, np.arange(1))[0, 0, 0, 0])
    176
    """
    found, number = np.empty_like(x), list(CORRUPTIONS).index(kind)
    for place, image in enumerate(index):
        random = np.random.default_rng((seed, number, severity, int(image)))
        moved = CORRUPTIONS[kind](x[place].transpose(1, 2, 0) / 255, severity - 1, random)
        found[place] = (moved.clip(0, 1) * 255 + 1e-9).astype(np.uint8).transpose(2, 0, 1)  # as theirs, rounded down
    return found
