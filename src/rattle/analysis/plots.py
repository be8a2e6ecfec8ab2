"""Pictures of landscapes: surfaces side by side (as Figs. 2 and 3 of the paper), and curves in weight space.

Each function takes {model's label: arrays} and returns a matplotlib Figure; `save` writes it as PNG and SVG. Models
that are compared share one scale of colours and losses, so that a flat picture means a flat loss.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rattle.errors import RattleError
from rattle.runs.arrays import Array, InputSurface, WeightSurface, same_plane
from rattle.runs.io import atomic_file
from rattle.runs.paths import printable

# viridis without its darkest fifth: lines stay visible on the lowest losses
COLOURS = LinearSegmentedColormap.from_list("loss", mpl.colormaps["viridis"](np.linspace(0.18, 1, 256)))
LINES = ("#3b6fb6", "#d1682c", "#3a8f5c", "#8a5ab0", "#b5973b", "#5d6b78")
LINE_INK, FAINT = "#222833", "#8d95a3"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), LINE_INK),
    "axes.edgecolor": FAINT,
    "svg.fonttype": "path",
    "svg.hashsalt": "rattle",  # the same figure gives the same bytes
}


def save_figure(figure: Figure, stem: str | Path, *, dpi: int = 200) -> list[Path]:
    """Write stem.png, at `dpi`, and stem.svg; the folder is created if missing."""
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with mpl.rc_context(STYLE), atomic_file(paths[0]) as png, atomic_file(paths[1]) as svg:
        figure.savefig(png, format="png", dpi=dpi, facecolor="white")
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
    return paths


def trade_off_panels(titles: Sequence[str]) -> tuple[Figure, Sequence[Any]]:
    """A panel for each title: clean accuracy on x, robust accuracy on y."""
    figure = Figure(figsize=(4.6 * len(titles), 4.2), layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False)[0]
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9)
        panel.set(xlabel="clean accuracy, %", ylabel="robust accuracy, %")
        panel.grid(color=FAINT, alpha=0.25)
    return figure, panels


def check_comparable(surfaces: Mapping[str, Any]) -> None:
    """Refuse an empty comparison, and one over different grids."""
    if not surfaces:
        raise RattleError("there is no landscape to draw")
    if not same_plane(list(surfaces.values())):
        raise RattleError("landscapes drawn side by side must share their grid")


def finite_range(arrays: list[Array]) -> tuple[float, float]:
    """The lowest and the highest finite loss of all models."""
    values = np.concatenate([np.ravel(array) for array in arrays])
    values = values[np.isfinite(values)]
    if values.size == 0:
        raise RattleError("the landscape holds no finite loss: the model has diverged")
    return float(values.min()), max(float(values.max()), float(values.min()) + 1e-9)


def draw_surface(axes: Any, a: Array, b: Array, loss: Array, scale: Normalize, names: tuple[str, str]) -> None:
    """A loss as a coloured surface over steps a and b, with a dot at the centre; `names` are those of the axes."""
    low, high = scale.vmin or 0.0, scale.vmax or 1.0
    loss = np.clip(np.nan_to_num(loss, nan=high, posinf=high), low, high)
    along, across = np.meshgrid(a, b, indexing="ij")
    axes.computed_zorder = False  # the dot stays in front
    axes.plot_surface(along, across, loss, cmap=COLOURS, norm=scale, rstride=1, cstride=1, edgecolor="white", lw=0.2)
    axes.plot([0], [0], [loss[len(a) // 2, len(b) // 2]], "o", ms=5, mfc="white", mec=LINE_INK, zorder=4)
    axes.set(zlim=(low, high))
    axes.view_init(elev=24, azim=-128)
    for side in (axes.xaxis, axes.yaxis, axes.zaxis):
        side.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=7, pad=-1)
    axes.set_xlabel(names[0], fontsize=7.5, labelpad=-5)
    axes.set_ylabel(names[1], fontsize=7.5, labelpad=-5)


def surface_grid(
    surfaces: Mapping[str, Any], losses: Mapping[str, list[Array]], titles: list[str], names: tuple[str, str]
) -> Figure:
    """A row for each model, a column for each of its `losses`, one z-scale for all."""
    low, high = finite_range([loss for row in losses.values() for loss in row])
    scale = PowerNorm(0.5, min(low, 0.0), high)  # z is linear; colours spread the low losses
    first = next(iter(surfaces.values()))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(titles) + 1.5, 2.9 * len(losses) + 1.0), layout="constrained")
        grid = figure.add_gridspec(len(losses) + 1, len(titles), height_ratios=[0.25, *[1] * len(losses)])
        panels = []
        for column, title in enumerate(titles):
            head = figure.add_subplot(grid[0, column], frame_on=False)
            head.set(xticks=[], yticks=[], xlabel=title)
            if isinstance(first, InputSurface):
                pixels = np.clip(first.x[column].transpose(1, 2, 0), 0, 1)  # drawn in grey with one channel
                head.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            for row, (label, each) in enumerate(losses.items(), start=1):
                axes: Any = figure.add_subplot(grid[row, column], projection="3d")
                draw_surface(axes, first.a, first.b, each[column], scale, names)
                if column == 0:
                    axes.text2D(
                        -0.1,
                        0.5,
                        printable(label),
                        transform=axes.transAxes,
                        rotation=90,
                        va="center",
                        size=12,
                        parse_math=False,
                    )
                panels.append(axes)
        figure.colorbar(ScalarMappable(scale, COLOURS), ax=panels, label="loss", shrink=0.6, ticks=MaxNLocator(5))
    return figure


def input_surfaces(surfaces: Mapping[str, InputSurface]) -> Figure:
    """Loss over the input plane: a row for each model, a column for each image (Figs. 2, 3)."""
    check_comparable(surfaces)
    images = min(len(surface.loss) for surface in surfaces.values())
    losses = {label: list(surface.loss[:images]) for label, surface in surfaces.items()}
    titles = [f"class {int(label)}" for label in next(iter(surfaces.values())).y[:images]]
    return surface_grid(surfaces, losses, titles, ("sign of gradient", "Rademacher"))


def weight_surfaces(surfaces: Mapping[str, WeightSurface]) -> Figure:
    """Mean loss over two filter-normalised directions: a row for each model, a column for each kind of loss."""
    check_comparable(surfaces)
    kinds = ["clean", "adversarial"] if all(surface.attacked for surface in surfaces.values()) else ["clean"]
    losses = {label: [getattr(surface, kind) for kind in kinds] for label, surface in surfaces.items()}
    return surface_grid(surfaces, losses, kinds, ("first direction", "second direction"))


def weight_curves(curves: Mapping[str, WeightSurface]) -> Figure:
    """Mean loss along one filter-normalised direction: solid for adversarial, dashed for clean."""
    check_comparable(curves)
    finite_range([curve.clean for curve in curves.values()])  # refuses models that diverged
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for (label, curve), colour in zip(curves.items(), itertools.cycle(LINES)):
            if curve.attacked:
                axes.plot(curve.a, curve.adversarial[:, 0], color=colour, label=printable(f"{label}, adversarial"))
            axes.plot(curve.a, curve.clean[:, 0], "--", color=colour, label=printable(f"{label}, clean"))
        axes.set(xlabel="step along a filter-normalised direction", ylabel="mean loss", ylim=(0, None))
        axes.axvline(0, color=FAINT, lw=0.8, zorder=0)
        axes.grid(axis="y", color="#e3e6ec", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    return figure
