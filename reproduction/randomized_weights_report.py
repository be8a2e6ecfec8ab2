"""What randomized weights buy, as tables (results/randomized-weights.md) and a picture in docs/images.

    python -m reproduction.randomized_weights_report

Reads results/randomized-weights.json, which may lack runs. The screening is sorted by its score, the mean of PGD-20 and
CW-20 over checkpoints and seeds. In the decision a difference is to TRADES' (or AWP's) runs of the same seeds and
images, or of the paper's terms to constant soft labels, with the 95 % interval of the paired differences and Student's
p; * means that p is below 0.05 after Holm's adjustment for all differences of a table. A reading earns a recipe if it
is more robust than TRADES or AWP at an adjusted p below 0.01. Where the best checkpoint of every run is its last one,
there is one table for both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rattle.evaluation.samples import Difference, difference
from rattle.stats import holm, summarise
from reproduction.cifar10_report import ACCURACIES, FLATNESS, TITLES, Layout, Runs
from reproduction.randomized_weights import ALWAYS, FRESH_SEEDS, SCREENING_SEEDS, VARIANTS, score, slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {slug(name): name for name in VARIANTS} | {slug(f"awp + {name}"): f"awp + {name}" for name in VARIANTS}
SHOWN = 6  # points below the best that the picture shows; what is worse is named at its edge
DECIDED = len(ALWAYS) + 3  # two that are chosen, and AWP with the better one
BASES = ("trades", "awp")  # what a reading has to beat
Gaps = Mapping[
    tuple[str, str, str], Difference
]  # (method, the one it is compared with, column) -> method less the other


def grouped(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs by method, in the order in which the script names them."""
    return {name: each for name in NAMES if (each := [run for run in runs if run["method"] == name])}


def mean_score(runs: Sequence[dict[str, Any]]) -> float:
    return summarise([score(run["found"]) for run in runs]).mean


def best_first(screened: Runs) -> list[str]:
    return sorted(screened, key=lambda name: -mean_score(screened[name]))


def weights_table(weights: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What each reading adds to the gradient on TRADES' network, the lightest first."""
    head = [
        "reading",
        "length over the zeroth's",
        "cosine to the zeroth's",
        "cosine to smoothing's",
        "part that is its own",
        "what lasts of it",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, row in sorted(weights.items(), key=lambda item: item[1]["over_zeroth"]):
        numbers = [f"{row['over_zeroth']:.2g}", *(f"{row[key]:.2f}" for key in ("to_zeroth", "to_smoothing", "own"))]
        low, middle, high = (f"{round(row[key], 5):.2g}" for key in ("lasts_low", "lasts", "lasts_high"))
        lines.append("| " + " | ".join([name, *numbers, f"{middle} [{low}, {high}]"]) + " |")
    return lines


def screening_table(screened: Runs) -> list[str]:
    """Means over seeds, the best score first."""
    head = [
        "variant",
        "seeds",
        "score",
        "each seed",
        "clean, last",
        "PGD-20, best / last",
        "CW-20, best / last",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in best_first(screened):
        founds = {run["seed"]: run["found"] for run in screened[name]}
        scores = ", ".join(f"{score(found):.1f}" for found in founds.values())
        means = {
            (which, column): summarise([found[which][column] for found in founds.values()]).mean
            for which in ("best", "last")
            for column in ("clean", "pgd20", "cw20")
        }
        attacks = [f"{means['best', column]:.1f} / {means['last', column]:.1f}" for column in ("pgd20", "cw20")]
        clean = f"{means['last', 'clean']:.1f}"
        cells = [NAMES[name], str(len(founds)), f"{mean_score(screened[name]):.2f}", scores, clean, *attacks]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def gaps_of(runs: Runs, which: str, layout: Layout) -> Gaps:
    """Everything less TRADES, AWP with a reading less AWP, and the paper's terms less constant soft labels of the same
    weight, where two seeds or more are shared."""
    pairs = [(name, "trades") for name in runs if name != "trades"]
    pairs += [(name, "awp") for name in runs if name.startswith("awp-and-")]
    pairs += [("head-0.2", "smoothing-0.2")]
    found = {}
    for name, base in ((name, base) for name, base in pairs if name in runs and base in runs):
        for column in layout.titles:
            gap = difference(*(layout.sample(runs[each], which, column) for each in (name, base)))
            if gap is not None and gap.n > 1:
                found[name, base, column] = gap
    return found


def adjusted(gaps: Gaps) -> dict[tuple[str, str, str], float]:
    """Their p after Holm."""
    return dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))


def earned(runs: Runs, which: str) -> list[str]:
    """What is more robust than TRADES or AWP at an adjusted p below 0.01, AWP itself aside: it is the control."""
    gaps = gaps_of(runs, which, ACCURACIES)
    return [
        f"{NAMES[name]} over {NAMES[base]} ({TITLES[column]}, adjusted p {p:.4f})"
        for (name, base, column), p in adjusted(gaps).items()
        if p < 0.01 and gaps[name, base, column].mean > 0 and column != "clean" and name != "awp" and base in BASES
    ]


def decision_tables(runs: Runs, which: str, layout: Layout) -> list[str]:
    """What was reached with one checkpoint, and the differences."""
    lines = layout.head
    for name, each in runs.items():
        cells = [layout.mean(layout.sample(each, which, column)) for column in layout.titles]
        lines.append(f"| {NAMES[name]} | {len(each)} | " + " | ".join(cells) + " |")
    gaps = gaps_of(runs, which, layout)
    chances = adjusted(gaps)
    lines += ["", "| difference | seeds | " + " | ".join(layout.titles.values()) + " |"]
    lines.append("|---" * (2 + len(layout.titles)) + "|")
    for name, base in dict.fromkeys((name, base) for name, base, _ in gaps):
        keys = [(name, base, column) for column in layout.titles]
        cells = [layout.gap(gaps[key], chances[key]) for key in keys]
        lines.append(f"| {NAMES[name]} less {NAMES[base]} | {gaps[keys[0]].n} | " + " | ".join(cells) + " |")
    return lines


def checkpoints(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Those that have tables: the last alone where it is the best one in every run."""
    if not runs:
        return []
    return ["last"] if all(run["found"]["best"] == run["found"]["last"] for run in runs) else ["best", "last"]


def picture(screened: Runs, runs: Runs, path: Path) -> None:
    """Left the screening, the best at the top; right what the decision found, less TRADES, if it has two seeds."""
    from matplotlib.figure import Figure

    gaps = gaps_of(runs, "last", ACCURACIES)
    figure = Figure(figsize=(11 if gaps else 6, 0.24 * len(screened) + 1.4), layout="constrained")
    left, *right = figure.subplots(1, 2 if gaps else 1, squeeze=False)[0]
    draw_screening(left, screened)
    for axis in right:
        draw_gaps(axis, gaps)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_screening(axis: Axes, screened: Runs) -> None:
    names = best_first(screened)[::-1]
    left = mean_score(screened[names[-1]]) - SHOWN
    for place, name in enumerate(names):
        scores, mean = [score(run["found"]) for run in screened[name]], mean_score(screened[name])
        axis.plot(scores, [place] * len(scores), ".", color="C0", ms=5)
        axis.plot(mean, place, "|", color="C3", ms=10, mew=2)
        if mean < left:
            axis.annotate(
                f"\N{LEFTWARDS ARROW} {mean:.1f}",
                (left, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axis.set_xlim(left=left)
    if "trades" in screened:
        axis.axvline(mean_score(screened["trades"]), color="0.6", lw=0.8, ls="--")
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names], fontsize=8)
    axis.set(title="screening: dots are seeds, dashed TRADES", xlabel="mean of PGD-20 and CW-20, held-out images, %")
    axis.grid(axis="x", alpha=0.3)


def draw_gaps(axis: Axes, gaps: Gaps) -> None:
    """The differences to TRADES, a colour an attack."""
    names = list(dict.fromkeys(name for name, base, _ in gaps if base == "trades"))[::-1]
    for place, name in enumerate(names):
        for at, (column, title) in enumerate(TITLES.items()):
            gap = gaps[name, "trades", column]
            low, mean, high = (100 * value for value in (gap.interval.low, gap.mean, gap.interval.high))
            y, label = place + 0.3 - 0.2 * at, title if place == 0 else None
            axis.errorbar([mean], [y], xerr=[[mean - low], [high - mean]], fmt="o", ms=4, color=f"C{at}", label=label)
    axis.axvline(0, color="0.6", lw=0.8, ls="--")
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names], fontsize=8)
    axis.set(title="decision, last checkpoint", xlabel="points less TRADES, 95 % over seeds")
    axis.grid(axis="x", alpha=0.3)
    if names:
        axis.legend(fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", type=Path, default=Path("reproduction/results/randomized-weights.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/randomized-weights.png"))
    options = parser.parse_args()
    study = json.loads(options.study.read_text())
    screened, runs = grouped(study["screened"]), grouped(study["runs"])
    whole = len(VARIANTS) * len(SCREENING_SEEDS)
    lines = ["**What the readings add to the gradient**", "", *weights_table(study["weights"]), ""]
    lines += [f"**Screening**: {len(study['screened'])} of {whole} runs.", "", *screening_table(screened), ""]
    lines += [f"**Decision**: {len(study['runs'])} of {DECIDED * len(FRESH_SEEDS)} runs.", ""]
    for which in checkpoints(study["runs"]):
        lines += [f"*{which} checkpoint*", ""]
        for layout in (ACCURACIES, FLATNESS):
            lines += [*decision_tables(runs, which, layout), ""]
        lines += [f"More robust at an adjusted p below 0.01: {'; '.join(earned(runs, which)) or 'none'}.", ""]
    options.study.with_suffix(".md").write_text("\n".join(lines))
    print("\n".join(lines))
    picture(screened, runs, options.picture)


if __name__ == "__main__":
    main()
