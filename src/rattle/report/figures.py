"""The page's figures as plotly specifications: plain dicts of what is drawn; assets/page.js gives them their look.

Colours are names that the style sheet resolves. Text that came from a user is escaped by `safe`: plotly would read tags
in it.
"""

import html
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from rattle.recipes.schema import trade_off_text
from rattle.report.compare import PlanePoint
from rattle.report.naming import title_of
from rattle.report.run_data import RunData, Runs, finite
from rattle.report.sweeps import Sweep
from rattle.report.tables import Accuracy, accuracy
from rattle.runs.arrays import Gallery, InputSurface, WeightSurface, same_plane
from rattle.stats import summarise

Spec = dict[str, Any]
Grid = InputSurface | WeightSurface
NOT_TERMS = ("epoch", "step", "lr", "loss")
TERM_COLOURS = 6  # of the style sheet
MOST_NUMBERS = 12  # with more classes a number does not fit into a cell of the matrix


def safe(text: object) -> str:
    """Text that plotly shows as it is."""
    return html.escape(str(text), quote=False)


def colour(run: RunData) -> str:
    return f"var(--run-{run.index})"


def axis_spec(title: str, **more: Any) -> Spec:
    return {"title": {"text": safe(title)}, **more}


def figure(traces: list[Spec], x: Spec, y: Spec, **layout: Any) -> Spec:
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}}


def line(x: list[Any], y: list[Any], name: str, color: str, **more: Any) -> Spec:
    return {"type": "scatter", "x": x, "y": y, "name": safe(name), "marker": {"color": color}, **more}


def error_bars(found: Sequence[Accuracy]) -> Spec:
    above, below = [each.high - each.value for each in found], [each.value - each.low for each in found]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


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


def by_epoch(traces: list[Spec], title: str) -> Spec:
    return figure(traces, axis_spec("epoch", rangemode="tozero"), axis_spec(title, rangemode="tozero"))


def accuracy_curves(runs: Runs, kind: str) -> Spec:
    """Held-out accuracy of one kind, robust or clean, by epoch; that of the averaged weights where a run has them."""
    traces = []
    for run in runs:
        averaged = any(f"val_{kind}_average" in entry for entry in run.metrics)
        values = column(run, f"val_{kind}_average" if averaged else f"val_{kind}", 100)
        traces.append(line(epochs(run), values, run.label, colour(run)))
    return by_epoch(traces, f"{kind} accuracy, %")


def loss_terms(run: RunData) -> Spec:
    """The loss and its named terms by epoch."""
    x = epochs(run)
    traces = [line(x, column(run, "loss"), "loss", "var(--ink)")]
    for i, name in enumerate(terms(run)):
        traces.append(line(x, column(run, name), name, f"var(--term-{i % TERM_COLOURS})"))
    return by_epoch(traces, "loss")


def learning_rates(runs: Runs) -> Spec:
    traces = [line(epochs(run), column(run, "lr"), run.label, colour(run)) for run in runs]
    return by_epoch(traces, "learning rate")


def trade_off(points: Sequence[PlanePoint], robust_title: str) -> Spec:
    """Clean against robust accuracy: dots with their 95 % intervals, diamonds for the paper."""
    traces = []
    for point in points:
        trace = line([point.clean.value], [point.robust.value], point.label, colour(point.run), mode="markers")
        trace["marker"] |= {"size": 12, "symbol": "diamond-open" if point.paper else "circle"}
        if not point.paper:
            trace |= {"error_x": error_bars([point.clean]), "error_y": error_bars([point.robust])}
        traces.append(trace)
    return figure(traces, axis_spec("clean accuracy, %"), axis_spec(f"accuracy under {robust_title}, %"))


def frontier_figure(curves: Sequence[Spec], attack: str) -> Spec:
    """Clean against robust accuracy over the trade-off settings, with 95 % intervals and the setting at each point.

    curves: as in frontier.json.
    """
    traces = []
    for number, curve in enumerate(curves):
        texts, clean, robust = [], [], []
        for point in curve["points"]:
            found = point["attacks"][attack]
            low, high = found["interval"]
            texts.append(safe(trade_off_text(curve["setting"], float(point["value"]))))
            clean.append(100 * fmean(found["clean"]))
            robust.append(Accuracy(100 * fmean(found["robust"]), 100 * low, 100 * high))
        y, style = [each.value for each in robust], {"mode": "lines+markers+text", "textposition": "top right"}
        bars = error_bars(robust)
        colour = f"var(--term-{number % TERM_COLOURS})"
        traces.append(line(clean, y, curve["method"], colour, **style, text=texts, error_y=bars))
    return figure(traces, axis_spec("clean accuracy, %"), axis_spec(f"accuracy under {title_of(attack)}, %"))


def by_setting(sweep: Sweep) -> Spec:
    """Held-out accuracy against the setting that a sweep varies, mean and std over seeds: robust solid, clean
    dashed, a colour for each series."""
    traces = []
    for number, (name, points) in enumerate(sweep.series.items()):
        x = sorted(points)
        for i, kind, dash in ((1, "robust", "solid"), (0, "clean", "dash")):
            over_seeds = [summarise([100 * reached[i] for reached in points[value]]) for value in x]
            bars = {"type": "data", "array": [found.deviation for found in over_seeds]}
            y, title = [found.mean for found in over_seeds], ", ".join(filter(None, (name, kind)))
            traces.append(line(x, y, title, f"var(--run-{number})", line={"dash": dash}, error_y=bars))
    values = [value for points in sweep.series.values() for value in points]
    spread = min(values) > 0 and max(values) >= 20 * min(values)
    return figure(traces, axis_spec(sweep.setting, type="log" if spread else "linear"), axis_spec("accuracy, %"))


def by_epsilon(runs: Runs) -> Spec:
    """Accuracy against the attack's radius, with 95 % intervals."""
    traces = []
    for run in runs:
        if run.gallery is not None:
            points = [accuracy(flags) for flags in run.gallery.robust]
            values = [point.value for point in points]
            traces.append(
                line(run.gallery.epsilons.tolist(), values, run.label, colour(run), error_y=error_bars(points))
            )
    return figure(
        traces, axis_spec("attack radius epsilon", rangemode="tozero"), axis_spec("accuracy, %", range=[0, 101])
    )


def per_class(run: RunData, gallery: Gallery) -> Spec:
    """Bars of robust accuracy in front of pale bars of clean accuracy; none for a class without images."""
    names, traces = [safe(name) for name in gallery.classes], []
    for title, predicted, opacity in (
        ("clean", gallery.clean_predicted, 0.25),
        ("under attack", gallery.adversarial_predicted, 1),
    ):
        heights = []
        for label in range(len(names)):
            correct = predicted[gallery.y == label] == label
            heights.append(100 * float(correct.mean()) if len(correct) else None)
        bars: Spec = {"type": "bar", "x": names, "y": heights, "name": title, "opacity": opacity}
        traces.append(bars | {"marker": {"color": colour(run)}})
    y_axis = axis_spec("accuracy, %", range=[0, 101])
    return figure(traces, axis_spec("class", type="category"), y_axis, barmode="overlay")


def reliability(runs: Sequence[RunData], column: str) -> Spec:
    """The share that is right against the confidence, bin by bin; a calibrated model lies on the diagonal."""
    traces = [line([0, 1], [0, 1], "calibrated", "var(--ink)", mode="lines", line={"dash": "dot"})]
    for run in runs:
        for known in run.columns[column].calibrations if column in run.columns else []:
            marks = {"mode": "lines+markers", "text": [f"{n} images" for n in known.sizes]}
            traces.append(line(list(known.confidence), list(known.accuracy), run.label, colour(run), **marks))
    share = {"range": [0, 1]}
    return figure(traces, axis_spec("confidence", **share), axis_spec("accuracy", **share))


def confusion_counts(gallery: Gallery) -> np.ndarray:
    """[true, predicted] counts under attack."""
    counts = np.zeros((len(gallery.classes), len(gallery.classes)), dtype=np.int64)
    np.add.at(counts, (gallery.y.astype(int), gallery.adversarial_predicted.astype(int)), 1)
    return counts


def confusion(gallery: Gallery) -> Spec:
    """Which class each class is taken for under attack, in % of its images."""
    counts, names = confusion_counts(gallery), [safe(name) for name in gallery.classes]
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    trace: Spec = {"type": "heatmap", "x": names, "y": names, "z": share.tolist(), "zmin": 0, "zmax": 100}
    trace["hovertemplate"] = "%{y} taken for %{x}: %{z:.1f} %<extra></extra>"
    if len(names) <= MOST_NUMBERS:
        trace["texttemplate"] = "%{z:.0f}"
    y_axis = axis_spec("true class", type="category", autorange="reversed")
    return figure([trace], axis_spec("predicted under attack", type="category"), y_axis)


def surfaces(losses: Sequence[tuple[RunData, Grid, np.ndarray]], titles: Sequence[str]) -> list[tuple[RunData, Spec]]:
    """Losses [a, b] of runs over the steps of their grids, all on one scale; none if no loss is finite.

    `titles` are those of the axes a and b.
    """
    values = np.concatenate([loss.ravel() for _, _, loss in losses]) if losses else np.zeros(0)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return []
    low, high = float(values.min()), float(values.max())
    high = max(high, low + 1e-6)
    found = []
    for run, grid, loss in losses:
        mesh = {"type": "surface", "x": grid.a.tolist(), "y": grid.b.tolist(), "z": loss.T.tolist()}
        centre = float(loss[len(grid.a) // 2, len(grid.b) // 2])
        dot = {"type": "scatter3d", "mode": "markers", "x": [0], "y": [0], "z": [centre]}
        scene = {"xaxis": axis_spec(titles[0]), "yaxis": axis_spec(titles[1])}
        scene["zaxis"] = axis_spec("loss", range=[min(low, 0.0), high])
        found.append((run, {"data": [mesh | {"cmin": low, "cmax": high}, dot], "layout": {"scene": scene}}))
    return found


def weight_lines(runs: Runs) -> Spec:
    """Mean adversarial loss along one direction in weight space."""
    traces = []
    for run in runs:
        if run.weight_line is not None:
            losses = run.weight_line.adversarial[:, 0].tolist()
            traces.append(line(run.weight_line.a.tolist(), losses, run.label, colour(run)))
    x_axis = axis_spec("step along a filter-normalised direction")
    return figure(traces, x_axis, axis_spec("mean loss", rangemode="tozero"))


def on_one_plane(runs: Runs) -> bool:
    """Whether the runs' input surfaces were taken over the same plane of the same images."""
    planes = [run.plane for run in runs if run.plane]
    return len(runs) < 2 or (len(planes) == len(runs) and same_plane(planes))
