"""The CIFAR-10 study as a table and a picture: results/cifar10-study.md and docs/images/cifar10-study.png.

    python -m reproduction.cifar10_report

Reads results/cifar10-study.json. A difference is to the order 0 runs of the same base and seeds, with the 95 % interval
of the paired differences and Student's p; * means that p is below 0.05 after Holm's adjustment for all of a table (in
the tables of last less best, and of AWP as a control: as it is).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rattle.evaluation.samples import Difference, Sample, difference
from rattle.stats import holm, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"clean": "clean", "pgd20": "PGD-20", "cw20": "CW-20", "autoattack": "AutoAttack"}
FLATNESS_TITLES = {
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


def base_of(method: str) -> str:
    """The method without Taylor terms; nothing for one that has none."""
    base = method.removesuffix("-1st").removesuffix("-2nd")
    return base if base != method else ""


def sample_of(runs: list[dict[str, Any]], which: str, column: str) -> Sample:
    """One attack on a method's runs; every number of images is a multiple of eight, so no bit is padding."""
    packed = [np.frombuffer(bytes.fromhex(run["found"][which]["flags"][column]), np.uint8) for run in runs]
    flags = tuple(tuple(np.unpackbits(each).tolist()) for each in packed)
    return Sample(seeds=tuple(run["seed"] for run in runs), flags=flags)


def numbers(runs: list[dict[str, Any]], which: str, column: str) -> Sample:
    """One flatness number of a method's runs: a value for each seed."""
    values = tuple((run["found"][which][column],) for run in runs)
    return Sample(seeds=tuple(run["seed"] for run in runs), flags=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a table, where their values come from, and how they are written."""

    titles: Mapping[str, str]
    sample: Callable[[list[dict[str, Any]], str, str], Sample]
    unit: float = 1.0
    form: str = ".3g"

    def text(self, value: float, sign: str = "") -> str:
        return f"{self.unit * value:{sign}{self.form}}"

    def mean(self, sample: Sample) -> str:
        found = summarise(sample.accuracies)
        return f"{self.text(found.mean)} ± {self.text(found.deviation)}" if found.n > 1 else self.text(found.mean)

    def gap(self, gap: Difference, p: float) -> str:
        low, high = (self.text(end, "+") for end in (gap.interval.low, gap.interval.high))
        return f"{self.text(gap.mean, '+')}{'*' if p < 0.05 else ''} [{low}, {high}] p {gap.p:.3f}".replace(
            "p 0.000", "p < 0.001"
        )

    @property
    def head(self) -> list[str]:
        return [
            "| method | seeds | " + " | ".join(self.titles.values()) + " |",
            "|---|---|" + "---|" * len(self.titles),
        ]


ACCURACIES = Layout(titles=TITLES, sample=sample_of, unit=100, form=".1f")
FLATNESS = Layout(titles=FLATNESS_TITLES, sample=numbers)


def gaps_of(runs: Runs, which: str, layout: Layout) -> dict[tuple[str, str], Difference]:
    """(method, column) -> its difference to the method without Taylor terms."""
    found: dict[tuple[str, str], Difference] = {}
    for method, base in ((method, base_of(method)) for method in runs):
        for column in layout.titles if base in runs else ():
            gap = difference(*(layout.sample(runs[name], which, column) for name in (method, base)))
            if gap is not None:
                found[method, column] = gap
    return found


def beside_the_base(runs: Runs, which: str, layout: Layout) -> list[str]:
    """A Markdown table of every method, each with Taylor terms followed by its differences to the one without."""
    gaps, lines = gaps_of(runs, which, layout), layout.head
    adjusted = dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))
    for method, each in runs.items():
        cells = [layout.mean(layout.sample(each, which, column)) for column in layout.titles]
        lines.append(f"| {LABELS[method]} | {len(each)} | " + " | ".join(cells) + " |")
        keys = [(method, column) for column in layout.titles if (method, column) in gaps]
        if keys:
            lines.append("| difference | | " + " | ".join(layout.gap(gaps[key], adjusted[key]) for key in keys) + " |")
    return lines


def forgotten(runs: Runs) -> list[str]:
    """A Markdown table of the last checkpoint less the best one: robust overfitting."""
    lines = ACCURACIES.head
    for method, each in runs.items():
        gaps = [difference(*(sample_of(each, which, column) for which in ("last", "best"))) for column in TITLES]
        lines.append(plain_row(LABELS[method], gaps, ACCURACIES))
    return lines


def control(runs: Runs, which: str) -> list[str]:
    """What AWP alone does, in two Markdown tables: an effect that is known, to see whether the study would find one."""
    lines = []
    for layout in (ACCURACIES, FLATNESS):
        pairs = [[layout.sample(runs[m], which, c) for m in ("trades-awp", "trades")] for c in layout.titles]
        lines += [*layout.head, plain_row("TRADES-AWP less TRADES", [difference(*pair) for pair in pairs], layout), ""]
    return lines


def plain_row(label: str, gaps: list[Difference | None], layout: Layout) -> str:
    """Differences with their own p-values, adjusted for nothing."""
    cells = [layout.gap(gap, gap.p) if gap else "-" for gap in gaps]
    return f"| {label} | {gaps[0].n if gaps[0] else '-'} | " + " | ".join(cells) + " |"


def picture(regimes: Mapping[str, Runs], path: Path) -> None:
    """Above, robust accuracy on held-out images while training; below, the differences that the Taylor terms make."""
    from matplotlib.figure import Figure

    panels = [(name, which) for name, runs in regimes.items() for which in checkpoints_of(runs)]
    figure = Figure(figsize=(11, 8), layout="constrained")
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False)
    for axis, (name, runs) in zip(above.subplots(1, len(regimes), squeeze=False)[0], regimes.items(), strict=True):
        draw_curves(axis, name, runs)
    for axis, (name, which) in zip(below.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        draw_gaps(axis, f"{name}, {which} checkpoint", gaps_of(regimes[name], which, ACCURACIES))
    below.supxlabel(
        "points of accuracy above the same method without Taylor terms, 95 % interval over seeds", fontsize=10
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_curves(axis: Axes, name: str, runs: Runs) -> None:
    """The mean over seeds with their range."""
    for method, each in runs.items():
        curves = [[(p["epoch"], 100 * p["val_robust"]) for p in run["curve"] if "val_robust" in p] for run in each]
        epochs = [epoch for epoch, _ in curves[0]]
        values = [[curve[i][1] for curve in curves] for i in range(len(epochs))]
        style, means = "--" if "awp" in method else "-", [sum(v) / len(v) for v in values]
        (line,) = axis.plot(epochs, means, style, marker="o", ms=3, label=LABELS[method])
        axis.fill_between(epochs, list(map(min, values)), list(map(max, values)), color=line.get_color(), alpha=0.1)
    axis.set(title=name, xlabel="epoch", ylabel="robust accuracy, held-out images, %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)


def draw_gaps(axis: Axes, title: str, gaps: Mapping[tuple[str, str], Difference]) -> None:
    """Each difference in points of accuracy, with its 95 % interval."""
    names = []
    for row, ((method, column), gap) in enumerate(gaps.items()):
        low, mean, high = (100 * value for value in (gap.interval.low, gap.mean, gap.interval.high))
        axis.errorbar([mean], [-row], xerr=[[mean - low], [high - mean]], fmt="o", ms=4, capsize=2, color="C0")
        names.append(f"{LABELS[method]}: {TITLES[column]}")
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks([-row for row in range(len(names))], names, fontsize=8)
    axis.set_title(title, fontsize=10)
    axis.grid(axis="x", alpha=0.3)


def checkpoints_of(runs: Runs) -> list[str]:
    return list(next(iter(runs.values()))[0]["found"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", type=Path, default=Path("reproduction/results/cifar10-study.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/cifar10-study.png"))
    options = parser.parse_args()
    regimes: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in json.loads(options.study.read_text())["runs"]:
        regimes.setdefault(run["regime"], {}).setdefault(run["method"], []).append(run)
    lines = []
    for name, runs in regimes.items():
        for which in checkpoints_of(runs):
            lines += [f"**{name}, {which} checkpoint**", ""]
            for layout in (ACCURACIES, FLATNESS):
                lines += [*beside_the_base(runs, which, layout), ""]
            lines += [f"**{name}, {which} checkpoint, AWP as a control**", "", *control(runs, which)]
        if len(checkpoints_of(runs)) > 1:
            lines += [f"**{name}, last less best checkpoint**", "", *forgotten(runs), ""]
    options.study.with_suffix(".md").write_text("\n".join(lines))
    print("\n".join(lines))
    picture(regimes, options.picture)


if __name__ == "__main__":
    main()
