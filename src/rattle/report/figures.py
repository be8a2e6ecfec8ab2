"""The page's flat figures as plotly specifications: plain dicts, whose colours are names the style sheet resolves.

Text that came from a user is escaped by `safe`: plotly would read tags in it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from rattle.report.run_data import RunData, finite
from rattle.report.trade_off import Point
from rattle.stats import wilson

Spec = dict[str, Any]
NOT_TERMS = ("epoch", "step", "lr", "loss")
COLOURS = 6
MARGIN = {"l": 56, "r": 16, "t": 12, "b": 48}


def safe(text: object) -> str:
    """Text that plotly shows as it is."""
    return html.escape(str(text), quote=False)


def colour(i: int, kind: str = "run") -> str:
    return f"var(--{kind}-{i % COLOURS})"


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title, "standoff": 8}, **more}


def figure(traces: list[Spec], x: Spec, y: Spec, **layout: Any) -> Spec:
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"}
    return {"data": traces, "layout": {"margin": MARGIN, "xaxis": x, "yaxis": y, "legend": legend, **layout}}


def line(x: list[Any], y: list[Any], name: str, ink: str, **more: Any) -> Spec:
    """A curve; a lone point is drawn as a point."""
    lone = sum(value is not None for value in y) < 2
    style = {"color": ink, "width": more.pop("width", 2), "dash": more.pop("dash", "solid")}
    marker = {"color": ink, "size": 8 if lone else 4}
    mode = more.pop("mode", "markers" if lone else "lines")
    return {
        "type": "scatter",
        "mode": mode,
        "x": x,
        "y": y,
        "name": safe(name),
        "line": style,
        "marker": marker,
        **more,
    }


def column(run: RunData, name: str, scale: float = 1.0) -> list[float | None]:
    values = [finite(entry.get(name)) for entry in run.metrics]
    return [None if value is None else scale * value for value in values]


def epochs(run: RunData) -> list[int]:
    return [int(entry["epoch"]) for entry in run.metrics]


def terms(run: RunData) -> list[str]:
    """The names of the loss's terms, in the order they were logged."""
    names = dict.fromkeys(name for entry in run.metrics for name in entry)
    kept = (n for n in names if n not in NOT_TERMS and not n.startswith("val_"))
    return [n for n in kept if any(value is not None for value in column(run, n))]


def accuracy_curves(runs: Sequence[RunData]) -> Spec:
    """Held-out accuracy by epoch: robust solid, clean dashed; averaged weights dotted."""
    traces = []
    for i, run in enumerate(runs):
        styles = (("val_robust", "robust", "solid", 2.4), ("val_clean", "clean", "dash", 1.6))
        averaged = (("val_robust_average", "robust, averaged weights", "dot", 2.4),)
        for name, words, dash, width in (*styles, *averaged):
            values = column(run, name, 100)
            if any(value is not None for value in values):
                hover = "epoch %{x}: %{y:.1f} %<extra>%{fullData.name}</extra>"
                name_shown = f"{run.label}, {words}" if len(runs) > 1 else words
                traces.append(
                    line(epochs(run), values, name_shown, colour(i), dash=dash, width=width, hovertemplate=hover)
                )
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
    shape = {"shape": "hv"}
    traces = []
    for i, run in enumerate(runs):
        trace = line(epochs(run), column(run, "lr"), run.label, colour(i))
        traces.append(trace | {"line": trace["line"] | shape})
    return figure(traces, axis("epoch", rangemode="tozero"), axis("learning rate", rangemode="tozero"))


def trade_off(points: Sequence[Point], robust_title: str) -> Spec:
    """Clean against robust accuracy: dots with their 95 % intervals, diamonds for the paper."""
    traces = []
    for point in points:
        ink = colour(point.index)
        trace: Spec = {
            "type": "scatter",
            "mode": "markers",
            "x": [point.clean],
            "y": [point.robust],
            "name": safe(point.label),
            "hovertemplate": "clean %{x:.2f} %, robust %{y:.2f} %<extra>%{fullData.name}</extra>",
            "marker": {"color": ink, "size": 12, "symbol": "diamond-open" if point.paper else "circle"},
        }
        if point.clean_interval and point.robust_interval:
            for key, value, (low, high) in (
                ("error_x", point.clean, point.clean_interval),
                ("error_y", point.robust, point.robust_interval),
            ):
                trace[key] = {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - value],
                    "arrayminus": [value - low],
                    "color": ink,
                    "thickness": 1,
                    "width": 0,
                }
        traces.append(trace)
    return figure(traces, axis("clean accuracy, %"), axis(f"accuracy under {safe(robust_title)}, %"))


def by_epsilon(runs: Sequence[RunData]) -> Spec:
    """Accuracy against the attack's radius, with bands of 95 %."""
    traces, marks = [], []
    for i, run in enumerate(runs):
        if run.gallery is None:
            continue
        x = [round(float(e), 6) for e in run.gallery["epsilons"]]
        n = run.gallery["robust"].shape[1]
        counts = [int(row.sum()) for row in run.gallery["robust"]]
        bands = [wilson(count, n) for count in counts]
        edge = [100 * band.high for band in bands] + [100 * band.low for band in reversed(bands)]
        band: Spec = {"type": "scatter", "x": x + x[::-1], "y": edge, "fill": "toself", "mode": "lines"}
        band |= {"fillcolor": colour(i, "soft"), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        hover = "epsilon %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>"
        curve = line(x, [100 * count / n for count in counts], run.label, colour(i), mode="lines+markers")
        traces += [band | {"legendgroup": str(i)}, curve | {"legendgroup": str(i), "hovertemplate": hover}]
        marks.append(float(run.gallery["epsilon"]))
    lines = [
        {"type": "line", "x0": mark, "x1": mark, "yref": "paper", "y0": 0, "y1": 1}
        | {"line": {"color": "var(--faint)", "width": 1, "dash": "dot"}}
        for mark in sorted(set(marks))
    ]
    x_axis = axis("attack radius epsilon", rangemode="tozero")
    return figure(traces, x_axis, axis("accuracy, %", range=[0, 101]), shapes=lines)


def class_shares(run: RunData) -> tuple[list[str], list[float | None], list[float | None]]:
    """Each class's name, clean and robust accuracy in %; None for a class without images."""
    gallery = run.gallery or {}
    y, before, after = (np.asarray(gallery[key]) for key in ("y", "clean_predicted", "adversarial_predicted"))
    names = [str(name) for name in gallery["classes"]]

    def share(predicted: np.ndarray, label: int) -> float | None:
        members = y == label
        return 100 * float((predicted[members] == label).mean()) if members.any() else None

    clean, robust = ([share(p, label) for label in range(len(names))] for p in (before, after))
    return names, clean, robust


def per_class(run: RunData, i: int) -> Spec:
    """Bars of robust accuracy in front of bars of clean accuracy."""
    names, clean, robust = class_shares(run)
    ticks = [safe(shorten(name)) for name in names]
    x = list(range(len(names)))
    hover = "%{text}: %{y:.1f} %<extra>%{fullData.name}</extra>"
    full = [safe(name) for name in names]
    back: Spec = {"type": "bar", "x": x, "y": clean, "name": "clean", "marker": {"color": colour(i, "soft")}}
    front: Spec = {"type": "bar", "x": x, "y": robust, "name": "under attack", "marker": {"color": colour(i)}}
    traces = [bar | {"text": full, "textposition": "none", "hovertemplate": hover} for bar in (back, front)]
    marks = {"tickvals": x, "ticktext": ticks} if len(names) <= 30 else {}
    x_axis = axis("class", showgrid=False, zeroline=False, **marks)
    return figure(traces, x_axis, axis("accuracy, %", range=[0, 101]), barmode="overlay", bargap=0.25)


def shorten(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def confusion_counts(run: RunData) -> np.ndarray:
    """[true, predicted] counts under attack."""
    gallery = run.gallery or {}
    size = len(gallery["classes"])
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (gallery["y"].astype(int), gallery["adversarial_predicted"].astype(int)), 1)
    return counts


def confusion(run: RunData) -> Spec:
    """Which class each class is taken for under attack, in % of its images."""
    counts = confusion_counts(run)
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [str(name) for name in (run.gallery or {})["classes"]]
    ticks = [safe(shorten(name)) for name in names]
    positions = list(range(len(names)))
    small = len(names) <= 12
    trace: Spec = {
        "type": "heatmap",
        "x": positions,
        "y": positions,
        "z": share.round(1).tolist(),
        "customdata": [[[safe(true), safe(taken)] for taken in names] for true in names] if len(names) <= 30 else None,
        "zmin": 0,
        "zmax": 100,
        "colorscale": "heat",
        "showscale": not small,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{customdata[0]} taken for %{customdata[1]}: %{z:.1f} %<extra></extra>"
        if len(names) <= 30
        else "%{y} taken for %{x}: %{z:.1f} %<extra></extra>",
    }
    if small:
        trace["texttemplate"] = "%{text}"
        trace["text"] = [[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in share]
    marks = {"tickvals": positions, "ticktext": ticks} if len(names) <= 30 else {}
    x = axis("predicted under attack", **marks, showgrid=False, zeroline=False)
    y = axis("true class", **marks, autorange="reversed", showgrid=False, zeroline=False, automargin=True)
    return figure([trace], x, y)
