"""The page's figures as plotly specifications: plain dicts, whose colours are names the style sheet resolves.

Text that came from a user is escaped by `safe`: plotly would read tags in it.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from rattle.report.compare import Point
from rattle.report.run_data import RunData, finite
from rattle.report.sweeps import Sweep
from rattle.report.tables import Accuracy, accuracy
from rattle.runs.arrays import Gallery, InputSurface, WeightSurface, same_plane

Spec = dict[str, Any]
Grid = InputSurface | WeightSurface
NOT_TERMS = ("epoch", "step", "lr", "loss")
TERM_COLOURS = 6  # of the style sheet
MOST_IN_LEGEND = 8  # with more runs a key stands below the figure
MARGIN = {"l": 56, "r": 16, "t": 12, "b": 48}
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"}
MOST_NUMBERS = 12  # with more classes a number does not fit into a cell of the matrix
FAINT = "rgba(255, 255, 255, 0.33)"  # contours on a surface; plotly 5.20 takes no #rrggbbaa
EPOCH_HOVER = "epoch %{x}: %{y:.1f} %<extra>%{fullData.name}</extra>"
CAMERA = {"eye": {"x": -1.38, "y": -1.38, "z": 0.84}, "center": {"x": 0, "y": 0, "z": -0.12}}
SCENE = {"aspectmode": "manual", "aspectratio": {"x": 1, "y": 1, "z": 0.72}, "camera": CAMERA, "dragmode": "turntable"}
LIGHT = {"ambient": 0.75, "diffuse": 0.45, "specular": 0.04, "roughness": 0.9}
MESH = {"colorscale": "loss", "showscale": False, "lighting": LIGHT}
DOT = {"size": 5, "color": "#ffffff", "line": {"color": "#222833", "width": 2}}


def safe(text: object) -> str:
    """Text that plotly shows as it is."""
    return html.escape(str(text), quote=False)


def colour(i: int, kind: str = "run") -> str:
    return f"var(--{kind}-{i % TERM_COLOURS if kind == 'term' else i})"


def many(runs: Sequence[RunData]) -> bool:
    """Whether a legend of these runs would not fit above a figure."""
    return len(runs) > MOST_IN_LEGEND


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title, "standoff": 8}, **more}


def figure(traces: list[Spec], x: Spec, y: Spec, **layout: Any) -> Spec:
    return {"data": traces, "layout": {"margin": MARGIN, "xaxis": x, "yaxis": y, "legend": LEGEND, **layout}}


def line(x: list[Any], y: list[Any], name: str, color: str, *, width: float = 2, dash: str = "solid") -> Spec:
    """A curve; a single point is drawn as a point."""
    single = sum(value is not None for value in y) < 2
    return {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "x": x,
        "y": y,
        "name": safe(name),
        "line": {"color": color, "width": width, "dash": dash},
        "marker": {"color": color, "size": 8 if single else 4},
    }


def column(run: RunData, name: str, scale: float = 1.0) -> list[float | None]:
    values = [finite(entry.get(name)) for entry in run.metrics]
    return [None if value is None else scale * value for value in values]


def epochs(run: RunData) -> list[int]:
    return [int(entry["epoch"]) for entry in run.metrics]


def terms(run: RunData) -> list[str]:
    """The names of the loss's terms, in the order they were logged."""
    names = dict.fromkeys(name for entry in run.metrics for name in entry)
    found = []
    for name in names:
        if name in NOT_TERMS or name.startswith("val_") or name.endswith("_over_zeroth"):
            continue
        if any(value is not None for value in column(run, name)):
            found.append(name)
    return found


def accuracy_curves(runs: Sequence[RunData], kind: str) -> Spec:
    """Held-out accuracy of one kind, robust or clean, by epoch; that of the averaged weights where a run has them."""
    traces = []
    for run in runs:
        values = column(run, f"val_{kind}_average", 100)
        if all(value is None for value in values):
            values = column(run, f"val_{kind}", 100)
        if any(value is not None for value in values):
            trace = line(epochs(run), values, run.label, colour(run.index))
            traces.append(trace | {"hovertemplate": EPOCH_HOVER})
    y = axis(f"{kind} accuracy, %", rangemode="tozero")
    return figure(traces, axis("epoch", rangemode="tozero"), y, showlegend=not many(runs))


def loss_terms(run: RunData) -> Spec:
    """The loss and its named terms by epoch."""
    x = epochs(run)
    traces = [line(x, column(run, "loss"), "loss", "var(--ink)", width=2.6)]
    for i, name in enumerate(terms(run)):
        traces.append(line(x, column(run, name), name, colour(i, "term")))
    return figure(traces, axis("epoch", rangemode="tozero"), axis("loss", rangemode="tozero"))


def learning_rates(runs: Sequence[RunData]) -> Spec:
    traces = [line(epochs(run), column(run, "lr"), run.label, colour(run.index)) for run in runs]
    y = axis("learning rate", rangemode="tozero")
    return figure(traces, axis("epoch", rangemode="tozero"), y, showlegend=not many(runs))


def error_bars(found: Sequence[Accuracy], color: str) -> Spec:
    above, below = [each.high - each.value for each in found], [each.value - each.low for each in found]
    style = {"color": color, "thickness": 1, "width": 0}
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def trade_off(points: Sequence[Point], robust_title: str) -> Spec:
    """Clean against robust accuracy: dots with their 95 % intervals, diamonds for the paper."""
    traces, runs = [], [point.run for point in points if not point.paper]
    for point in points:
        color = colour(point.run.index)
        trace: Spec = {
            "type": "scatter",
            "mode": "markers",
            "x": [point.clean.value],
            "y": [point.robust.value],
            "name": safe(point.label),
            "hovertemplate": "clean %{x:.2f} %, robust %{y:.2f} %<extra>%{fullData.name}</extra>",
            "marker": {"color": color, "size": 12, "symbol": "diamond-open" if point.paper else "circle"},
        }
        if not point.paper:
            trace |= {"error_x": error_bars([point.clean], color), "error_y": error_bars([point.robust], color)}
        traces.append(trace)
    y = axis(f"accuracy under {safe(robust_title)}, %")
    return figure(traces, axis("clean accuracy, %"), y, showlegend=not many(runs))


def by_setting(sweep: Sweep) -> Spec:
    """Accuracy against the setting that a sweep varies: robust solid, clean dashed, a colour for each series."""
    traces = []
    for series in sweep.series:
        x, color = [point.x for point in series.points], colour(series.index)
        for kind, dash in (("robust", "solid"), ("clean", "dash")):
            found = [getattr(point, kind) for point in series.points]
            name = ", ".join(filter(None, (series.name, kind)))
            trace = line(x, [each.value for each in found], name, color, dash=dash)
            hover = "%{x}: %{y:.1f} %<extra>%{fullData.name}</extra>"
            traces.append(
                trace | {"mode": "lines+markers", "error_y": error_bars(found, color), "hovertemplate": hover}
            )
    x_axis = axis(safe(sweep.setting))
    values = [point.x for series in sweep.series for point in series.points]
    if min(values) > 0 and max(values) >= 20 * min(values):
        x_axis["type"] = "log"
    return figure(traces, x_axis, axis("accuracy, %"))


def by_epsilon(runs: Sequence[RunData]) -> Spec:
    """Accuracy against the attack's radius, with 95 % intervals."""
    traces = []
    for run in runs:
        if run.gallery is not None:
            points, color = [accuracy(flags) for flags in run.gallery.robust], colour(run.index)
            x = [round(float(epsilon), 6) for epsilon in run.gallery.epsilons]
            trace = line(x, [point.value for point in points], run.label, color)
            hover = "epsilon %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>"
            traces.append(
                trace | {"mode": "lines+markers", "error_y": error_bars(points, color), "hovertemplate": hover}
            )
    x_axis, y_axis = axis("attack radius epsilon", rangemode="tozero"), axis("accuracy, %", range=[0, 101])
    return figure(traces, x_axis, y_axis, showlegend=not many(runs))


def class_accuracies(gallery: Gallery, predicted: np.ndarray) -> list[float | None]:
    """Each class's accuracy in % by the predicted classes of its images; None for a class without images."""
    y = gallery.y
    correct = [predicted[y == label] == label for label in range(len(gallery.classes))]
    return [100 * float(flags.mean()) if len(flags) else None for flags in correct]


def class_axis(title: str, **more: Any) -> Spec:
    """An axis with the classes' names; plotly leaves out those that do not fit."""
    return axis(title, type="category", showgrid=False, zeroline=False, automargin=True, **more)


def per_class(gallery: Gallery, index: int) -> Spec:
    """Bars of robust accuracy in front of bars of clean accuracy, in the colour of the run of that index."""
    names, traces = [safe(name) for name in gallery.classes], []
    for title, predicted, color in (
        ("clean", gallery.clean_predicted, colour(index, "soft")),
        ("under attack", gallery.adversarial_predicted, colour(index)),
    ):
        bar: Spec = {"type": "bar", "x": names, "y": class_accuracies(gallery, predicted), "name": title}
        bar["hovertemplate"] = "%{x}: %{y:.1f} %<extra>%{fullData.name}</extra>"
        traces.append(bar | {"marker": {"color": color}})
    y_axis = axis("accuracy, %", range=[0, 101])
    return figure(traces, class_axis("class"), y_axis, barmode="overlay", bargap=0.25)


def confusion_counts(gallery: Gallery) -> np.ndarray:
    """[true, predicted] counts under attack."""
    counts = np.zeros((len(gallery.classes), len(gallery.classes)), dtype=np.int64)
    np.add.at(counts, (gallery.y.astype(int), gallery.adversarial_predicted.astype(int)), 1)
    return counts


def confusion(gallery: Gallery) -> Spec:
    """Which class each class is taken for under attack, in % of its images."""
    counts, names = confusion_counts(gallery), [safe(name) for name in gallery.classes]
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    trace: Spec = {"type": "heatmap", "x": names, "y": names, "z": share.round(1).tolist(), "xgap": 1, "ygap": 1}
    trace |= {"zmin": 0, "zmax": 100, "colorscale": "heat"}
    trace["hovertemplate"] = "%{y} taken for %{x}: %{z:.1f} %<extra></extra>"
    if len(names) <= MOST_NUMBERS:
        trace["texttemplate"] = "%{z:.0f}"
    return figure([trace], class_axis("predicted under attack"), class_axis("true class", autorange="reversed"))


def rounded(values: np.ndarray) -> list[Any]:
    """Five figures are more than a screen shows, and half the bytes."""
    return [[float(f"{value:.5g}") for value in row] for row in values]


def common_range(arrays: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The lowest and highest finite value of all."""
    values = np.concatenate([np.ravel(array) for array in arrays]) if arrays else np.zeros(0)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    return low, high if high > low else low + 1e-6


def surface(grid: Grid, loss: np.ndarray, scale: tuple[float, float], titles: tuple[str, str]) -> Spec:
    """Loss [a, b] over the steps a (along x) and b of a grid, seen from the same side as every other surface.

    `scale` is the lowest and highest loss of all surfaces beside it, `titles` those of the two axes.
    """
    low, high = scale
    x, y = ([float(f"{v:.4g}") for v in values] for values in (grid.a, grid.b))
    mesh: Spec = {"type": "surface", "x": x, "y": y, "z": rounded(loss.T), "cmin": low, "cmax": high, **MESH}
    mesh["contours"] = {"z": {"show": True, "start": low, "end": high, "size": (high - low) / 14, "color": FAINT}}
    mesh["hovertemplate"] = "%{x:.3f}, %{y:.3f}: loss %{z:.3f}<extra></extra>"
    centre = float(loss[len(grid.a) // 2, len(grid.b) // 2])
    dot: Spec = {"type": "scatter3d", "mode": "markers", "x": [0], "y": [0], "z": [centre], "marker": DOT}
    dot["hovertemplate"] = "the point itself: loss %{z:.3f}<extra></extra>"
    x_axis, y_axis = ({"title": {"text": title}, "nticks": 5} for title in titles)
    z_axis = {"title": {"text": "loss"}, "range": [min(low, 0.0), high], "nticks": 5}
    scene = {"xaxis": x_axis, "yaxis": y_axis, "zaxis": z_axis, **SCENE}
    layout = {"scene": scene, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "showlegend": False}
    return {"data": [mesh, dot], "layout": layout, "gl": True}


def weight_lines(runs: Sequence[RunData]) -> Spec:
    """Mean adversarial loss along one direction in weight space."""
    traces = []
    for run in runs:
        if run.weight_line is not None:
            losses = [finite(loss) for loss in run.weight_line.adversarial[:, 0]]
            trace = line(run.weight_line.a.tolist(), losses, run.label, colour(run.index))
            traces.append(trace | {"hovertemplate": "%{x}: %{y:.3f}<extra>%{fullData.name}</extra>"})
    x_axis, y_axis = axis("step along a filter-normalised direction"), axis("mean loss", rangemode="tozero")
    return figure(traces, x_axis, y_axis, showlegend=not many(runs))


def comparable(runs: Sequence[RunData]) -> bool:
    """Whether the runs' input surfaces were taken over the same plane of the same images."""
    planes = [run.plane for run in runs if run.plane]
    return len(runs) < 2 or (len(planes) == len(runs) and same_plane(planes))
