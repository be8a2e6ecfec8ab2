"""What the Taylor terms and randomized weights do to plain AT where it overfits, as tables and a picture.

    python -m reproduction.plain_at_report

Reads results/plain-at.json, which may lack runs; writes results/plain-at.md and docs/images/plain-at.png. A difference
is paired by seed and image, with its 95 % interval over seeds and Student's p; * means that p is below 0.05 after
Holm's adjustment over the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rattle.evaluation.samples import Difference, Sample, difference
from rattle.stats import holm
from reproduction.cifar10_report import TITLES, Layout, Runs
from reproduction.plain_at import LATER, RESULTS, VARIANTS
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, unpacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "plain-at.png"
NAMES = {
    "at": "AT",
    "at-2nd": "AT + 1st + 2nd",
    "at-1st": "AT + 1st",
    "at-2nd-without-u": "AT + 1st + 2nd without u",
    "u-alone": "AT, u alone",
    "smoothing": "AT, soft labels",
    "awp": "AT-AWP",
    "awp-2nd": "AT-AWP + 1st + 2nd",
    "u-on-small-losses": "AT, u on small losses",
    "u-on-all-losses": "AT, u on all losses",
}
PAIRS = [
    *((variant, "at") for variant in VARIANTS | LATER if variant != "at"),
    ("at-2nd", "smoothing"),
    ("at-2nd-without-u", "smoothing"),
    ("at-2nd", "at-2nd-without-u"),
    ("awp-2nd", "awp"),
    ("u-on-small-losses", "u-on-all-losses"),
]
Compared = dict[
    tuple[str, str], dict[str, Difference]
]  # (variant, the one it is compared with) -> column -> difference


def sample_of(runs: list[dict[str, Any]], which: str, column: str) -> Sample:
    """One attack on a variant's runs."""
    n = AUTOATTACK_IMAGES if column == "autoattack" else TEST_IMAGES
    flags = tuple(tuple(unpacked(run["found"][which]["flags"][column], n).tolist()) for run in runs)
    return Sample(seeds=tuple(run["seed"] for run in runs), flags=flags)


LAYOUT = Layout(titles=TITLES, sample=sample_of, unit=100, form=".1f")


def compared(runs: Runs, which: str) -> Compared:
    """The protocol's differences, of pairs that share two seeds or more."""
    found: Compared = {}
    for variant, base in PAIRS:
        for column in TITLES if variant in runs and base in runs else ():
            gap = difference(*(sample_of(runs[each], which, column) for each in (variant, base)))
            if gap is not None and gap.n > 1:
                found.setdefault((variant, base), {})[column] = gap
    return found


def means_table(runs: Runs, which: str) -> list[str]:
    lines = LAYOUT.head
    for variant, each in runs.items():
        cells = [LAYOUT.mean(sample_of(each, which, column)) for column in TITLES]
        lines.append(f"| {NAMES[variant]} | {len(each)} | {' | '.join(cells)} |")
    return lines


def differences_table(gaps: dict[str, dict[str, Difference]]) -> list[str]:
    """A row for each label, with stars by Holm's adjustment over all cells."""
    lines = [line.replace("| method |", "| difference |") for line in LAYOUT.head]
    adjusted = iter(holm([gap.p for row in gaps.values() for gap in row.values()]))
    for label, row in gaps.items():
        cells = [LAYOUT.gap(gap, next(adjusted)) for gap in row.values()]
        lines.append(f"| {label} | {row['clean'].n} | {' | '.join(cells)} |")
    return lines


def named(gaps: Compared) -> dict[str, dict[str, Difference]]:
    return {f"{NAMES[variant]} less {NAMES[base]}": row for (variant, base), row in gaps.items()}


def overfitting(runs: Runs) -> dict[str, dict[str, Difference]]:
    """The last checkpoint less the best one, variant by variant."""
    found = {}
    for variant, each in runs.items():
        row = {}
        for column in TITLES:
            gap = difference(*(sample_of(each, which, column) for which in ("last", "best")))
            if gap is not None and gap.n > 1:
                row[column] = gap
        if row:
            found[NAMES[variant]] = row
    return found


def picture(last: Compared, best: Compared, path: Path) -> None:
    """Differences to AT in points, a colour an attack; left the last checkpoint, right the best."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True, sharex=True)
    for axis, gaps, title in zip(axes, (last, best), ("last checkpoint", "best checkpoint"), strict=True):
        draw(axis, [(variant, row) for (variant, base), row in gaps.items() if base == "at"][::-1], title)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def draw(axis: Axes, rows: Sequence[tuple[str, dict[str, Difference]]], title: str) -> None:
    for place, (_, row) in enumerate(rows):
        for at, (column, label) in enumerate(TITLES.items()):
            low, mean, high = (
                100 * value for value in (row[column].interval.low, row[column].mean, row[column].interval.high)
            )
            error, y = [[mean - low], [high - mean]], place + 0.3 - 0.2 * at
            axis.errorbar([mean], [y], xerr=error, fmt="o", ms=4, color=f"C{at}", label=label if place == 0 else None)
    axis.axvline(0, color="0.6", lw=0.8, ls="--")
    axis.set_yticks(range(len(rows)), [NAMES[variant] for variant, _ in rows], fontsize=8)
    axis.set(title=title, xlabel="points less AT, 95 % over seeds")
    axis.grid(axis="x", alpha=0.3)


def main() -> None:
    stored = json.loads(RESULTS.read_text())["runs"]
    runs = {name: each for name in VARIANTS | LATER if (each := [run for run in stored if run["variant"] == name])}
    lines, gaps = [], {}
    for which in ("last", "best"):
        gaps[which] = compared(runs, which)
        lines += [f"**{which} checkpoint**", "", *means_table(runs, which), ""]
        lines += [*differences_table(named(gaps[which])), ""]
    lines += ["**last less best checkpoint**", "", *differences_table(overfitting(runs))]
    text = "\n".join(lines) + "\n"
    RESULTS.with_suffix(".md").write_text(text)
    print(text)
    picture(gaps["last"], gaps["best"], FIGURE)


if __name__ == "__main__":
    main()
