"""Colours of runs that do not repeat, in both themes."""

import colorsys
from collections.abc import Sequence

FEW = (  # chosen by hand, light and dark, for a page of few runs
    ("#3b6fb6", "#7fb0f0"),
    ("#d1682c", "#f2955c"),
    ("#3a8f5c", "#6cc48d"),
    ("#8a5ab0", "#c094e6"),
    ("#a8862a", "#d9b958"),
    ("#5d6b78", "#a3b0bf"),
)
LIGHTNESS = ((0.22, 0.36), (0.62, 0.82))  # of the first and last seed, light and dark: 3:1 or more against the page
SATURATION = 0.65
BLUE, TURN = 0.6, 0.618034  # of the wheel: the first hue, and the way to the next, which keeps any number of them apart


def run_colours(variants: Sequence[str]) -> list[tuple[str, str]]:
    """A colour in the light and in the dark theme for each run: a hue for each variant, seeds from dark to light."""
    if len(variants) <= len(FEW):
        return list(FEW[: len(variants)])
    if len(set(variants)) == 1:  # seeds alone: each its own hue
        variants = [str(i) for i in range(len(variants))]
    names = list(dict.fromkeys(variants))
    found = []
    for i, variant in enumerate(variants):
        hue, place = BLUE + TURN * names.index(variant), variants[:i].count(variant) / variants.count(variant)
        light, dark = (to_hex(hue, low + place * (high - low)) for low, high in LIGHTNESS)
        found.append((light, dark))
    return found


def to_hex(hue: float, lightness: float) -> str:
    """A colour by its place on the wheel, from 0 to 1, and its lightness.

    >>> to_hex(0.0, 0.5), to_hex(0.5, 1.0)
    ('#d22d2d', '#ffffff')
    """
    rgb = colorsys.hls_to_rgb(hue % 1, lightness, SATURATION)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)
