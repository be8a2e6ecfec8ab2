"""The CIFAR-10 study as a table and a picture: results/cifar10-study.md and docs/images/cifar10-study.png.

    python benchmarks/cifar10_report.py

Reads results/cifar10-study.json. A difference is to the order 0 runs of the same base and seeds, with the 95 % interval
of the paired differences and Student's p; * means that p is below 0.05 after Holm's adjustment for all of a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rattle.significance import Difference, Sample, difference, holm
from rattle.statistics import summarise

TITLES = {"clean": "clean", "pgd20": "PGD-20", "cw20": "CW-20", "autoattack": "AutoAttack"}
FLATNESS = {
    "lipschitz": "local Lipschitz",
    "input_curvature": "input curvature",
    "weight_curvature": "weight curvature",
    "noise_rise": "rise under u",
}
LABELS = {
    "trades": "TRADES",
    "trades-1st": "TRADES + 1st",
    "trades-2nd": "TRADES + 1st + 2nd",
    "trades-awp": "TRADES-AWP",
    "trades-awp-2nd": "TRADES-AWP + 1st + 2nd",
}
Runs = Mapping[str, list[dict[str, Any]]]  # method -> its runs


def base_of(method: str) -> str | None:
    base = method.removesuffix("-1st").removesuffix("-2nd")
    return base if base != method else None


def sample(runs: list[dict[str, Any]], which: str, column: str) -> Sample:
    """One column of a method's runs; every number of images is a multiple of eight, so no bit is padding."""
    packed = [np.frombuffer(bytes.fromhex(run["found"][which]["flags"][column]), np.uint8) for run in runs]
    flags = tuple(tuple(np.unpackbits(each).tolist()) for each in packed)
    return Sample(seeds=tuple(run["seed"] for run in runs), flags=flags)


def differences(runs: Runs, which: str) -> dict[tuple[str, str], tuple[Difference, float]]:
    """(method, column) -> its difference to the base, and the p-value adjusted for all of them."""
    found = {}
    for method in runs:
        base = base_of(method)
        if base is None or base not in runs:
            continue
        for column in TITLES:
            gap = difference(sample(runs[method], which, column), sample(runs[base], which, column))
            if gap is not None:
                found[method, column] = gap
    adjusted = holm([gap.p for gap in found.values()])
    return {key: (gap, p) for (key, gap), p in zip(found.items(), adjusted, strict=True)}


def told(gap: Difference, p: float) -> str:
    star = "*" if p < 0.05 else ""
    within = f"[{100 * gap.interval.low:+.1f}, {100 * gap.interval.high:+.1f}]"
    return f"{100 * gap.mean:+.1f}{star} {within} p {gap.p:.3f}"


def accuracies(runs: Runs, which: str) -> list[str]:
    """A Markdown table of accuracies in %, each with its difference to the base."""
    gaps = differences(runs, which)
    lines = ["| method | seeds | " + " | ".join(TITLES.values()) + " |", "|---|---|" + "---|" * len(TITLES)]
    for method, each in runs.items():
        cells = [summarise([run["found"][which][column] for run in each]) for column in TITLES]
        shown = [f"{cell.mean:.1f} ± {cell.deviation:.1f}" for cell in cells]
        lines.append(f"| {LABELS[method]} | {len(each)} | " + " | ".join(shown) + " |")
        if base_of(method) in runs:
            shown = [told(*gaps[method, column]) if (method, column) in gaps else "-" for column in TITLES]
            lines.append("| difference | | " + " | ".join(shown) + " |")
    return lines


def forgotten(runs: Runs) -> list[str]:
    """A Markdown table of what the last checkpoint has less than the best one: robust overfitting."""
    lines = ["| method | " + " | ".join(TITLES.values()) + " |", "|---|" + "---|" * len(TITLES)]
    for method, each in runs.items():
        gaps = [difference(sample(each, "last", column), sample(each, "best", column)) for column in TITLES]
        lines.append(f"| {LABELS[method]} | " + " | ".join(told(gap, 1.0) if gap else "-" for gap in gaps) + " |")
    return lines


def flatness(runs: Runs, which: str) -> list[str]:
    """A Markdown table of the flatness numbers."""
    lines = ["| method | " + " | ".join(FLATNESS.values()) + " |", "|---|" + "---|" * len(FLATNESS)]
    for method, each in runs.items():
        cells = [summarise([run["found"][which][name] for run in each]) for name in FLATNESS]
        lines.append(f"| {LABELS[method]} | " + " | ".join(f"{c.mean:.3g} ± {c.deviation:.2g}" for c in cells) + " |")
    return lines


def picture(regimes: Mapping[str, Runs], path: Path) -> None:
    """Robust accuracy on the held-out images while training, the mean over seeds with their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(regimes), squeeze=False)[0]
    for axis, (name, runs) in zip(axes, regimes.items(), strict=True):
        for method, each in runs.items():
            curves = [[(p["epoch"], 100 * p["val_robust"]) for p in run["curve"] if "val_robust" in p] for run in each]
            epochs = [epoch for epoch, _ in curves[0]]
            values = [[curve[i][1] for curve in curves] for i in range(len(epochs))]
            style = "--" if "awp" in method else "-"
            (line,) = axis.plot(
                epochs, [sum(v) / len(v) for v in values], style, marker="o", ms=3, label=LABELS[method]
            )
            axis.fill_between(
                epochs, list(map(min, values)), list(map(max, values)), color=line.get_color(), alpha=0.12
            )
        axis.set(title=name, xlabel="epoch", ylabel="robust accuracy, held-out images, %")
        axis.grid(alpha=0.3)
    axes[-1].legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", type=Path, default=Path("results/cifar10-study.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/cifar10-study.png"))
    options = parser.parse_args()
    regimes: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in json.loads(options.study.read_text())["runs"]:
        regimes.setdefault(run["regime"], {}).setdefault(run["method"], []).append(run)
    lines = []
    for name, runs in regimes.items():
        checkpoints = list(next(iter(runs.values()))[0]["found"])
        for which in checkpoints:
            lines += [f"**{name}, {which} checkpoint**", "", *accuracies(runs, which), "", *flatness(runs, which), ""]
        if len(checkpoints) > 1:
            lines += [f"**{name}, last less best checkpoint**", "", *forgotten(runs), ""]
    options.study.with_suffix(".md").write_text("\n".join(lines))
    print("\n".join(lines))
    picture(regimes, options.picture)


if __name__ == "__main__":
    main()
