"""Colours of runs that do not repeat, in both themes: a hue for each variant, and a lightness for each of its seeds."""

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
LIGHTNESS = ((0.22, 0.36), (0.62, 0.82))  # of light and dark: 3:1 or more against the page
SATURATION = 0.65
FIRST_HUE = 0.6  # of the wheel: blue, as on a page of few runs
SOFT = ("2e", "3a")  # opacity of bands and bars behind others, light and dark


def to_hex(hue: float, lightness: float) -> str:
    """A colour by its place on the wheel, from 0 to 1, and its lightness.

    >>> to_hex(0.0, 0.5), to_hex(0.5, 1.0)
    ('#d22d2d', '#ffffff')
    """
    rgb = colorsys.hls_to_rgb(hue % 1, lightness, SATURATION)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)


def run_colours(variants: Sequence[str]) -> list[tuple[str, str]]:
    """A colour in the light and in the dark theme for each run, from its variant's name."""
    if len(variants) <= len(FEW):
        return list(FEW[: len(variants)])
    if len(set(variants)) == 1:  # seeds alone: each its own hue
        variants = [str(i) for i in range(len(variants))]
    hues = {variant: i for i, variant in enumerate(dict.fromkeys(variants))}
    found = []
    for i, variant in enumerate(variants):
        place, members = variants[:i].count(variant), variants.count(variant)
        # seeds go from dark to light; a variant of one run alternates with its neighbours on the wheel
        share = place / (members - 1) if members > 1 else hues[variant] % 3 / 2
        hue = FIRST_HUE + hues[variant] / len(hues)
        light, dark = (to_hex(hue, low + share * (high - low)) for low, high in LIGHTNESS)
        found.append((light, dark))
    return found


def style_of_runs(variants: Sequence[str]) -> str:
    """The style sheet's colours of runs: `--run-0`, the translucent `--soft-0` and the class `run-0`, and so on."""
    themes = []
    for theme, (selector, soft) in enumerate(zip((":root", ':root[data-theme="dark"]'), SOFT, strict=True)):
        colours = [pair[theme] for pair in run_colours(variants)]
        names = "".join(f"--run-{i}: {each}; --soft-{i}: {each}{soft}; " for i, each in enumerate(colours))
        themes.append(f"{selector} {{ {names}}}")
    return "\n".join([*themes, *(f".run-{i} {{ background: var(--run-{i}); }}" for i in range(len(variants)))])
