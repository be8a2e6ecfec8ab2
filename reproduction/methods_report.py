"""The study of all methods as tables and a picture: results/methods-study.md and docs/images/methods-study.png.

    python -m reproduction.methods_report

Reads results/methods-study.json, which may lack runs (they are named), and results/method-costs.json. A difference is
to TRADES' runs of the same seeds and images, with the 95 % interval of the paired differences and Student's p; * means
that p is below 0.05 after Holm's adjustment for all differences of the table. With one seed there is none: two networks
are no two methods.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rattle.evaluation.samples import Difference, Sample, difference
from rattle.recipes.catalog import get_recipe
from rattle.stats import holm
from reproduction.cifar10_report import ACCURACIES, TITLES, Runs, sample_of
from reproduction.methods_study import NAMES

BASE, SEEDS = "trades", (0, 1, 2)


@cache
def label(method: str) -> str:
    """What tables call a method; with its name where another of the study is called the same."""
    titles = {name: get_recipe(f"cifar10-linf-cnn-slim-{name}").method for name in NAMES}
    first = next(name for name, title in titles.items() if title == titles[method])
    return titles[method] if method == first else f"{titles[method]} ({method})"


def missing(runs: Runs, seeds: Sequence[int] = SEEDS) -> str:
    """The runs that the study still lacks, methods that lack the same seeds together: `seeds 1, 2: at, mart`."""
    lacking: dict[str, list[str]] = {}
    for name in NAMES:
        there = {run["seed"] for run in runs.get(name, [])}
        if absent := [str(seed) for seed in seeds if seed not in there]:
            lacking.setdefault(", ".join(absent), []).append(name)
    return "; ".join(f"seeds {absent}: {', '.join(names)}" for absent, names in lacking.items())


def cell(sample: Sample) -> str:
    """A mean with its interval, in %."""
    return sample.interval.around(sample.summary.mean)


def strongest_first(runs: Runs) -> list[str]:
    return sorted(runs, key=lambda m: -sample_of(runs[m], "last", "autoattack").summary.mean)


def gaps_to_base(runs: Runs) -> dict[tuple[str, str], Difference]:
    """(method, column) -> its difference to TRADES on the seeds that both have, where those are two or more."""
    found = {}
    for method in (method for method in strongest_first(runs) if method != BASE and BASE in runs):
        for column in TITLES:
            gap = difference(*(sample_of(runs[name], "last", column) for name in (method, BASE)))
            if gap is not None and gap.n > 1:
                found[method, column] = gap
    return found


def tables(runs: Runs, cost: Mapping[str, float]) -> list[str]:
    """What was reached, and the differences to TRADES, in Markdown."""
    lines = [
        "| method | seeds | cost | epochs | " + " | ".join(TITLES.values()) + " |",
        "|---" * (4 + len(TITLES)) + "|",
    ]
    for method in strongest_first(runs):
        each, over = runs[method], f"{cost[method]:.2f}" if method in cost else "-"
        cells = [cell(sample_of(each, "last", column)) for column in TITLES]
        epochs = each[0]["found"]["last"]["epochs"]
        lines.append(f"| {label(method)} | {len(each)} | {over} | {epochs} | " + " | ".join(cells) + " |")
    gaps = gaps_to_base(runs)
    if not gaps:
        return [*lines, "", "No method has two seeds in common with TRADES yet: nothing is compared."]
    adjusted = dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))
    lines += ["", "| less TRADES | seeds | " + " | ".join(TITLES.values()) + " |", "|---" * (2 + len(TITLES)) + "|"]
    for method in dict.fromkeys(method for method, _ in gaps):
        cells = [ACCURACIES.gap(gaps[method, column], adjusted[method, column]) for column in TITLES]
        lines.append(f"| {label(method)} | {gaps[method, 'clean'].n} | " + " | ".join(cells) + " |")
    return lines


def costs_table(rows: list[dict[str, Any]]) -> list[str]:
    head = ["method", "passes", "done", "time over TRADES", "memory over TRADES"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in sorted(rows, key=lambda row: row["over_trades"]["median"]):
        time = "{median:.2f} [{low:.2f}, {high:.2f}]".format(**row["over_trades"])
        cells = [f"`{row['method']}`", f"{row['demanded']:.2f}", f"{row['done']:.2f}", time, f"{row['memory']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def picture(runs: Runs, path: Path) -> None:
    """A row a method, the most robust at the top: a dot a seed, the mean and its interval."""
    from matplotlib.figure import Figure

    methods = strongest_first(runs)[::-1]
    figure = Figure(figsize=(10, 0.26 * len(methods) + 1), layout="constrained")
    panels = dict(zip(("autoattack", "clean"), figure.subplots(1, 2, sharey=True), strict=True))
    for column, axes in panels.items():
        base = 100 * sample_of(runs[BASE], "last", column).summary.mean if BASE in runs else math.nan
        axes.axvline(base, color="0.6", lw=0.8, ls="--")
        for place, method in enumerate(methods):
            sample = sample_of(runs[method], "last", column)
            interval = sample.interval
            axes.plot([100 * interval.low, 100 * interval.high], [place, place], color="C0", lw=2.5, alpha=0.3)
            axes.plot([100 * share for share in sample.accuracies], [place] * len(sample.seeds), ".", color="C0", ms=4)
            axes.plot(100 * sample.summary.mean, place, "|", color="C3", ms=10, mew=2)
        shares = [100 * share for m in methods for share in sample_of(runs[m], "last", column).accuracies]
        axes.set(xlim=(max(0, min(shares) - 2), max(shares) + 3), ylim=(-0.7, len(methods) - 0.3))
        axes.set(xlabel=f"{TITLES[column]}, %", yticks=range(len(methods)), yticklabels=map(label, methods))
        axes.grid(axis="x", alpha=0.3)
    figure.suptitle("dots: seeds; red: mean; bars: 95 % over seeds; dashed: TRADES", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", type=Path, default=Path("reproduction/results/methods-study.json"))
    parser.add_argument("--costs", type=Path, default=Path("reproduction/results/method-costs.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/methods-study.png"))
    options = parser.parse_args()
    study, runs = json.loads(options.study.read_text()), {}
    for run in study["runs"]:
        runs.setdefault(run["method"], []).append(run)
    lacking, whole = missing(runs), len(NAMES) * len(SEEDS)
    done = sum(map(len, runs.values()))
    state = f"Missing are {lacking}." if lacking else "All runs are there."
    lines = [f"{done} of {whole} runs. {state}", "", *tables(runs, study["cost"]), ""]
    if options.costs.exists():
        lines += costs_table(json.loads(options.costs.read_text())["methods"])
    options.study.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    picture(runs, options.picture)


if __name__ == "__main__":
    main()
