"""Colours of runs that do not repeat, in both themes: a hue for each variant, and a lightness for each of its seeds."""

import math
from collections.abc import Sequence

FEW = (  # chosen by hand, light and dark, for a page of few runs
    ("#3b6fb6", "#7fb0f0"),
    ("#d1682c", "#f2955c"),
    ("#3a8f5c", "#6cc48d"),
    ("#8a5ab0", "#c094e6"),
    ("#a8862a", "#d9b958"),
    ("#5d6b78", "#a3b0bf"),
)
LIGHTNESS = ((0.42, 0.64), (0.60, 0.82))  # of light and dark: 3:1 or more against the page, by OKLab's L
CHROMA = 0.15
FIRST_HUE = 255.0  # degrees: blue, as on a page of few runs
SOFT = ("2e", "3a")  # opacity of bands and bars behind others, light and dark


def to_hex(lightness: float, chroma: float, hue: float) -> str:
    """An OKLCH colour (Ottosson 2020) as sRGB, with less chroma where the screen has not as much.

    >>> to_hex(1.0, 0.0, 0.0), to_hex(0.628, 0.2577, 29.23)
    ('#ffffff', '#ff0000')
    """
    while True:
        a, b = (chroma * f(math.radians(hue)) for f in (math.cos, math.sin))
        l, m, s = (  # noqa: E741
            (lightness + x * a + y * b) ** 3
            for x, y in ((0.3963377774, 0.2158037573), (-0.1055613458, -0.0638541728), (-0.0894841775, -1.2914855480))
        )
        linear = (
            4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
            -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
            -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
        )
        if all(-0.001 <= v <= 1.001 for v in linear) or chroma < 0.001:
            break
        chroma *= 0.95
    clipped = [min(max(v, 0.0), 1.0) for v in linear]
    gamma = [12.92 * v if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055 for v in clipped]
    return "#" + "".join(f"{round(255 * v):02x}" for v in gamma)


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
        hue = FIRST_HUE + 360 * hues[variant] / len(hues)
        light, dark = (to_hex(low + share * (high - low), CHROMA, hue) for low, high in LIGHTNESS)
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
