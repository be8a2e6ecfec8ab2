"""The study of all methods as tables and a picture: results/methods-study.md and docs/images/methods-study.png.

    python benchmarks/methods_report.py

Reads results/methods-study.json and results/method-costs.json. A difference is to TRADES' runs of the same seeds and
images, with the 95 % interval of the paired differences and Student's p; * means that p is below 0.05 after Holm's
adjustment for all differences of the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cifar10_report import ACCURACIES, TITLES, Runs, sample_of
from rattle.evaluation.samples import Difference, difference
from rattle.recipes.catalog import get_recipe
from rattle.stats import holm, summarise

BASE = "trades"


def label(method: str) -> str:
    """What tables call a method."""
    return get_recipe(f"cifar10-linf-cnn-slim-{method}").method


def strongest_first(runs: Runs) -> list[str]:
    return sorted(runs, key=lambda m: -summarise(sample_of(runs[m], "last", "autoattack").accuracies).mean)


def gaps_to_base(runs: Runs) -> dict[tuple[str, str], Difference]:
    """(method, column) -> its difference to TRADES on the seeds that both have."""
    found = {}
    for method in strongest_first(runs):
        for column in TITLES if method != BASE else ():
            shared = {run["seed"] for run in runs[method]} & {run["seed"] for run in runs[BASE]}
            pair = [[run for run in runs[name] if run["seed"] in shared] for name in (method, BASE)]
            gap = difference(*(sample_of(each, "last", column) for each in pair)) if len(shared) > 1 else None
            if gap is not None:
                found[method, column] = gap
    return found


def tables(runs: Runs, cost: Mapping[str, float]) -> list[str]:
    """What was reached, and the differences to TRADES, in Markdown."""
    lines = [
        "| method | seeds | cost | epochs | " + " | ".join(TITLES.values()) + " |",
        "|---" * (4 + len(TITLES)) + "|",
    ]
    for method in strongest_first(runs):
        each = runs[method]
        cells = [ACCURACIES.mean(sample_of(each, "last", column)) for column in TITLES]
        epochs = each[0]["found"]["last"]["epochs"]
        lines.append(f"| {label(method)} | {len(each)} | {cost[method]:.2f} | {epochs} | " + " | ".join(cells) + " |")
    gaps = gaps_to_base(runs)
    adjusted = dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))
    lines += ["", "| less TRADES | " + " | ".join(TITLES.values()) + " |", "|---" * (1 + len(TITLES)) + "|"]
    for method in dict.fromkeys(method for method, _ in gaps):
        cells = [ACCURACIES.gap(gaps[method, column], adjusted[method, column]) for column in TITLES]
        lines.append(f"| {label(method)} | " + " | ".join(cells) + " |")
    return lines


def costs_table(rows: list[dict[str, Any]]) -> list[str]:
    base = next(row["mb"] for row in rows if row["method"] == BASE)
    lines = ["| method | time over TRADES | quartiles | memory over TRADES |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["over_trades"]):
        low, high = row["quartiles"]
        lines.append(
            f"| `{row['method']}` | {row['over_trades']:.2f} | {low:.2f} to {high:.2f} | {row['mb'] / base:.2f} |"
        )
    return lines


def picture(runs: Runs, path: Path) -> None:
    """Robust accuracy under AutoAttack against clean accuracy: a dot for each run, a name for each method's mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    axis = figure.subplots()
    for place, (method, each) in enumerate(runs.items()):
        clean, robust = ([100 * a for a in sample_of(each, "last", c).accuracies] for c in ("clean", "autoattack"))
        colour, x, y = f"C{place % 10}", summarise(clean).mean, summarise(robust).mean
        axis.scatter(clean, robust, s=14, color=colour, alpha=0.5)
        axis.annotate(label(method), (x, y), fontsize=7, color=colour, ha="center", va="bottom")
    axis.set(xlabel="clean accuracy, %", ylabel="accuracy under AutoAttack, 8/255, %")
    axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", type=Path, default=Path("results/methods-study.json"))
    parser.add_argument("--costs", type=Path, default=Path("results/method-costs.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/methods-study.png"))
    options = parser.parse_args()
    study, runs = json.loads(options.study.read_text()), {}
    for run in study["runs"]:
        runs.setdefault(run["method"], []).append(run)
    lines = [*tables(runs, study["cost"]), ""]
    if options.costs.exists():
        lines += costs_table(json.loads(options.costs.read_text())["methods"])
    options.study.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    picture(runs, options.picture)


if __name__ == "__main__":
    main()
