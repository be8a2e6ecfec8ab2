"""The page's landscapes as plotly specifications: surfaces on one loss scale, and curves in weight space."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rattle.report.figures import Spec, axis, colour, figure, line
from rattle.report.run_data import RunData, finite
from rattle.runs.arrays import same_plane

CAMERA = {"eye": {"x": -1.38, "y": -1.38, "z": 0.84}, "center": {"x": 0, "y": 0, "z": -0.12}}
SCENE = {"aspectmode": "manual", "aspectratio": {"x": 1, "y": 1, "z": 0.72}, "camera": CAMERA, "dragmode": "turntable"}
LIGHT = {"ambient": 0.75, "diffuse": 0.45, "specular": 0.04, "roughness": 0.9}
MESH = {"colorscale": "loss", "showscale": False, "lighting": LIGHT}
DOT = {"size": 5, "color": "#ffffff", "line": {"color": "#222833", "width": 2}}


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


def surface(
    a: np.ndarray, b: np.ndarray, loss: np.ndarray, scale: tuple[float, float], titles: tuple[str, str]
) -> Spec:
    """One surface, seen from the same side as every other; x runs along a.

    `loss` is [a, b], `scale` the lowest and highest loss of all surfaces beside it, `titles` those of the two axes.
    """
    low, high = scale
    centre, lift = finite(loss[len(a) // 2, len(b) // 2]), 0.015 * (high - low)
    x, y = ([float(f"{v:.4g}") for v in values] for values in (a, b))
    mesh: Spec = {"type": "surface", "x": x, "y": y, "z": rounded(loss.T), "cmin": low, "cmax": high, **MESH}
    mesh["contours"] = {"z": {"show": True, "start": low, "end": high, "size": (high - low) / 14, "color": "#ffffff55"}}
    mesh["hovertemplate"] = "%{x:.3f}, %{y:.3f}: loss %{z:.3f}<extra></extra>"
    top = None if centre is None else centre + lift
    dot: Spec = {"type": "scatter3d", "mode": "markers", "x": [0], "y": [0], "z": [top], "marker": DOT}
    dot["text"] = ["not finite" if centre is None else f"{centre:.3f}"]
    dot["hovertemplate"] = "the point itself: loss %{text}<extra></extra>"
    scene = {
        "xaxis": {"title": {"text": titles[0]}, "nticks": 5},
        "yaxis": {"title": {"text": titles[1]}, "nticks": 5},
        "zaxis": {"title": {"text": "loss"}, "range": [min(low, 0.0), high + 2 * lift], "nticks": 5},
        **SCENE,
    }
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
