"""The page's figures as plotly specifications: plain dicts, whose colours are names the style sheet resolves.

Text that came from a user is escaped by `safe`: plotly would read tags in it.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from rattle.report.compare import Point
from rattle.report.run_data import RunData, finite
from rattle.report.tables import Accuracy, accuracy
from rattle.runs.arrays import Gallery, InputSurface, WeightSurface, same_plane

Spec = dict[str, Any]
Grid = InputSurface | WeightSurface
NOT_TERMS = ("epoch", "step", "lr", "loss")
COLOURS = 6
MARGIN = {"l": 56, "r": 16, "t": 12, "b": 48}
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"}
MOST_TICKS = 30  # with more classes their names do not fit along an axis
MOST_NUMBERS = 12  # with more classes a number does not fit into a cell of the matrix
ACCURACY_CURVES = (  # column of metrics.jsonl, legend, dash, width
    ("val_robust", "robust", "solid", 2.4),
    ("val_clean", "clean", "dash", 1.6),
    ("val_robust_average", "robust, averaged weights", "dot", 2.4),
)
CAMERA = {"eye": {"x": -1.38, "y": -1.38, "z": 0.84}, "center": {"x": 0, "y": 0, "z": -0.12}}
SCENE = {"aspectmode": "manual", "aspectratio": {"x": 1, "y": 1, "z": 0.72}, "camera": CAMERA, "dragmode": "turntable"}
LIGHT = {"ambient": 0.75, "diffuse": 0.45, "specular": 0.04, "roughness": 0.9}
MESH = {"colorscale": "loss", "showscale": False, "lighting": LIGHT}
DOT = {"size": 5, "color": "#ffffff", "line": {"color": "#222833", "width": 2}}


def safe(text: object) -> str:
    """Text that plotly shows as it is."""
    return html.escape(str(text), quote=False)


def colour(i: int, kind: str = "run") -> str:
    return f"var(--{kind}-{i % COLOURS})"


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title, "standoff": 8}, **more}


def figure(traces: list[Spec], x: Spec, y: Spec, **layout: Any) -> Spec:
    return {"data": traces, "layout": {"margin": MARGIN, "xaxis": x, "yaxis": y, "legend": LEGEND, **layout}}


def line(x: list[Any], y: list[Any], name: str, color: str, **more: Any) -> Spec:
    """A curve; a single point is drawn as a point."""
    single = sum(value is not None for value in y) < 2
    mode = more.pop("mode", "markers" if single else "lines")
    style = {"color": color, "width": more.pop("width", 2), "dash": more.pop("dash", "solid")}
    marker = {"color": color, "size": 8 if single else 4}
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "name": safe(name), "line": style, "marker": marker} | more


def column(run: RunData, name: str, scale: float = 1.0) -> list[float | None]:
    values = [finite(entry.get(name)) for entry in run.metrics]
    return [None if value is None else scale * value for value in values]


def epochs(run: RunData) -> list[int]:
    return [int(entry["epoch"]) for entry in run.metrics]


def terms(run: RunData) -> list[str]:
    """The names of the loss's terms, in the order they were logged."""
    names = dict.fromkeys(name for entry in run.metrics for name in entry)
    logged = (n for n in names if n not in NOT_TERMS and not n.startswith("val_"))
    return [n for n in logged if any(value is not None for value in column(run, n))]


def accuracy_curves(runs: Sequence[RunData]) -> Spec:
    """Held-out accuracy by epoch: robust solid, clean dashed; averaged weights dotted."""
    traces = []
    hover = "epoch %{x}: %{y:.1f} %<extra>%{fullData.name}</extra>"
    for run in runs:
        for name, words, dash, width in ACCURACY_CURVES:
            values = column(run, name, 100)
            if any(value is not None for value in values):
                legend = f"{run.label}, {words}" if len(runs) > 1 else words
                style = {"dash": dash, "width": width, "hovertemplate": hover}
                traces.append(line(epochs(run), values, legend, colour(run.index), **style))
    return figure(traces, axis("epoch", rangemode="tozero"), axis("held-out accuracy, %", rangemode="tozero"))


def loss_terms(run: RunData, top: float | None) -> Spec:
    """The loss and its named terms by epoch."""
    x = epochs(run)
    traces = [line(x, column(run, "loss"), "loss", "var(--ink)", width=2.6)]
    traces += [line(x, column(run, name), name, colour(i, "term")) for i, name in enumerate(terms(run))]
    y = axis("loss", **({"range": [0, top]} if top else {"rangemode": "tozero"}))
    return figure(traces, axis("epoch", rangemode="tozero"), y) | {"rows": 2}  # of the legend, the same in every panel


def highest_loss(runs: Sequence[RunData]) -> float | None:
    """The top of the loss axis that all runs share; None when a term is negative and each scale is its own."""
    values = [v for run in runs for name in ("loss", *terms(run)) for v in column(run, name) if v is not None]
    return 1.06 * max(values) if values and min(values) >= 0 and max(values) > 0 else None


def learning_rates(runs: Sequence[RunData]) -> Spec:
    traces = [line(epochs(run), column(run, "lr"), run.label, colour(run.index)) for run in runs]
    steps = [trace | {"line": trace["line"] | {"shape": "hv"}} for trace in traces]
    return figure(steps, axis("epoch", rangemode="tozero"), axis("learning rate", rangemode="tozero"))


def error_bar(accuracy: Accuracy, color: str) -> Spec:
    above, below = accuracy.high - accuracy.value, accuracy.value - accuracy.low
    style = {"color": color, "thickness": 1, "width": 0}
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], **style}


def trade_off(points: Sequence[Point], robust_title: str) -> Spec:
    """Clean against robust accuracy: dots with their 95 % intervals, diamonds for the paper."""
    traces = []
    for point in points:
        color = colour(point.run.index)
        trace: Spec = {"type": "scatter", "mode": "markers", "x": [point.clean.value], "y": [point.robust.value]}
        trace |= {
            "name": safe(point.label),
            "hovertemplate": "clean %{x:.2f} %, robust %{y:.2f} %<extra>%{fullData.name}</extra>",
            "marker": {"color": color, "size": 12, "symbol": "diamond-open" if point.paper else "circle"},
        }
        if not point.paper:
            trace |= {"error_x": error_bar(point.clean, color), "error_y": error_bar(point.robust, color)}
        traces.append(trace)
    return figure(traces, axis("clean accuracy, %"), axis(f"accuracy under {safe(robust_title)}, %"))


def by_epsilon(runs: Sequence[RunData]) -> Spec:
    """Accuracy against the attack's radius, with bands of 95 %; a dotted line at each radius trained for."""
    traces, trained = [], set()
    for run in runs:
        if run.gallery is None:
            continue
        x = [round(float(e), 6) for e in run.gallery.epsilons]
        points = [accuracy(flags) for flags in run.gallery.robust]
        edge = [point.high for point in points] + [point.low for point in reversed(points)]
        band: Spec = {"type": "scatter", "x": x + x[::-1], "y": edge, "fill": "toself", "mode": "lines"}
        band |= {"fillcolor": colour(run.index, "soft"), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        hover = "epsilon %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>"
        curve = line(x, [point.value for point in points], run.label, colour(run.index), mode="lines+markers")
        group = {"legendgroup": str(run.index)}
        traces += [band | group, curve | group | {"hovertemplate": hover}]
        trained.add(float(run.gallery.epsilon))
    lines = [
        {"type": "line", "x0": epsilon, "x1": epsilon, "yref": "paper", "y0": 0, "y1": 1}
        | {"line": {"color": "var(--faint)", "width": 1, "dash": "dot"}}
        for epsilon in sorted(trained)
    ]
    x_axis = axis("attack radius epsilon", rangemode="tozero")
    return figure(traces, x_axis, axis("accuracy, %", range=[0, 101]), shapes=lines)


def class_accuracies(gallery: Gallery, predicted: np.ndarray) -> list[float | None]:
    """Each class's accuracy in % by the predicted classes of its images; None for a class without images."""
    y = gallery.y
    correct = [predicted[y == label] == label for label in range(len(gallery.classes))]
    return [100 * float(flags.mean()) if len(flags) else None for flags in correct]


def class_ticks(names: Sequence[str]) -> Spec:
    """Class names along an axis, as far as they fit."""
    if len(names) > MOST_TICKS:
        return {}
    short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
    return {"tickvals": list(range(len(names))), "ticktext": [safe(name) for name in short]}


def per_class(gallery: Gallery, index: int) -> Spec:
    """Bars of robust accuracy in front of bars of clean accuracy, in the colour of the run of that index."""
    names = [str(name) for name in gallery.classes]
    hover = "%{text}: %{y:.1f} %<extra>%{fullData.name}</extra>"
    traces = []
    for name, predicted, color in (
        ("clean", gallery.clean_predicted, colour(index, "soft")),
        ("under attack", gallery.adversarial_predicted, colour(index)),
    ):
        bar: Spec = {"type": "bar", "x": list(range(len(names))), "y": class_accuracies(gallery, predicted)}
        bar |= {"name": name, "marker": {"color": color}, "text": [safe(name) for name in names]}
        traces.append(bar | {"textposition": "none", "hovertemplate": hover})
    x_axis = axis("class", showgrid=False, zeroline=False, **class_ticks(names))
    return figure(traces, x_axis, axis("accuracy, %", range=[0, 101]), barmode="overlay", bargap=0.25)


def confusion_counts(gallery: Gallery) -> np.ndarray:
    """[true, predicted] counts under attack."""
    counts = np.zeros((len(gallery.classes), len(gallery.classes)), dtype=np.int64)
    np.add.at(counts, (gallery.y.astype(int), gallery.adversarial_predicted.astype(int)), 1)
    return counts


def confusion(gallery: Gallery) -> Spec:
    """Which class each class is taken for under attack, in % of its images."""
    counts, names = confusion_counts(gallery), [str(name) for name in gallery.classes]
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    named, numbered = len(names) <= MOST_TICKS, len(names) <= MOST_NUMBERS
    pair = "%{customdata[0]} taken for %{customdata[1]}" if named else "%{y} taken for %{x}"
    positions = list(range(len(names)))
    trace: Spec = {"type": "heatmap", "x": positions, "y": positions, "z": share.round(1).tolist()}
    trace["customdata"] = [[[safe(true), safe(taken)] for taken in names] for true in names] if named else None
    trace |= {"zmin": 0, "zmax": 100, "colorscale": "heat", "showscale": not numbered, "xgap": 1, "ygap": 1}
    trace["hovertemplate"] = f"{pair}: %{{z:.1f}} %<extra></extra>"
    if numbered:
        trace["texttemplate"] = "%{text}"
        trace["text"] = [[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in share]
    ticks = class_ticks(names)
    x = axis("predicted under attack", **ticks, showgrid=False, zeroline=False)
    y = axis("true class", **ticks, autorange="reversed", showgrid=False, zeroline=False, automargin=True)
    return figure([trace], x, y)


def rounded(values: np.ndarray) -> list[Any]:
    """Five figures are more than a screen shows, and half the bytes; what is not finite becomes a gap."""
    return [[None if (v := finite(value)) is None else float(f"{v:.5g}") for value in row] for row in values]


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
    centre, lift = finite(loss[len(grid.a) // 2, len(grid.b) // 2]), 0.015 * (high - low)
    x, y = ([float(f"{v:.4g}") for v in values] for values in (grid.a, grid.b))
    mesh: Spec = {"type": "surface", "x": x, "y": y, "z": rounded(loss.T), "cmin": low, "cmax": high, **MESH}
    mesh["contours"] = {"z": {"show": True, "start": low, "end": high, "size": (high - low) / 14, "color": "#ffffff55"}}
    mesh["hovertemplate"] = "%{x:.3f}, %{y:.3f}: loss %{z:.3f}<extra></extra>"
    top = None if centre is None else centre + lift
    dot: Spec = {"type": "scatter3d", "mode": "markers", "x": [0], "y": [0], "z": [top], "marker": DOT}
    dot["text"] = ["not finite" if centre is None else f"{centre:.3f}"]
    dot["hovertemplate"] = "the point itself: loss %{text}<extra></extra>"
    x_axis, y_axis = ({"title": {"text": title}, "nticks": 5} for title in titles)
    z_axis = {"title": {"text": "loss"}, "range": [min(low, 0.0), high + 2 * lift], "nticks": 5}
    scene = {"xaxis": x_axis, "yaxis": y_axis, "zaxis": z_axis, **SCENE}
    layout = {"scene": scene, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "showlegend": False}
    return {"data": [mesh, dot], "layout": layout, "gl": True}


def weight_lines(runs: Sequence[RunData]) -> Spec:
    """Mean loss along one direction: adversarial solid, clean dashed."""
    traces = []
    curves = (("adversarial", "solid", 2.4), ("clean", "dash", 1.6))
    for run, found in ((run, run.weight_line) for run in runs if run.weight_line):
        x = [float(f"{v:.4g}") for v in found.a]
        for key, dash, width in curves:
            y = [finite(v) for v in getattr(found, key)[:, 0]]
            if any(value is not None for value in y):
                legend = f"{run.label}, {key}" if len(runs) > 1 else key
                traces.append(line(x, y, legend, colour(run.index), dash=dash, width=width))
    return figure(traces, axis("step along a filter-normalised direction"), axis("mean loss", rangemode="tozero"))


def comparable(runs: Sequence[RunData]) -> bool:
    """Whether the runs' input surfaces were taken over the same plane of the same images."""
    planes = [run.plane for run in runs if run.plane]
    return len(runs) < 2 or (len(planes) == len(runs) and same_plane(planes))
