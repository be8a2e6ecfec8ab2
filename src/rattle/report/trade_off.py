"""Clean against robust accuracy: a point for each run, and the paper's for the recipes that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rattle.report.run_data import RunData
from rattle.stats import wilson

PREFERRED = ("autoattack", "aa", "pgd20", "cw20")  # the strongest that the runs have in common counts
Bounds = tuple[float, float]
PublishedRows = Callable[[str], Iterable[tuple[int, Any]]]  # recipe -> (table's number, its row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place in the plane, in %."""

    label: str
    index: int  # of the run it belongs to
    clean: float
    robust: float
    clean_interval: Bounds | None = None
    robust_interval: Bounds | None = None
    paper: bool = False


def robust_attack(runs: Sequence[RunData]) -> str | None:
    """The attack that most runs have a verdict of; the strongest of those."""
    counts: dict[str, int] = {}
    for run in runs:
        for attack in run.verdicts:
            counts[attack] = counts.get(attack, 0) + 1
    if not counts:
        return None
    rank = {attack: i for i, attack in enumerate(PREFERRED)}
    return min(counts, key=lambda attack: (-counts[attack], rank.get(attack, len(rank)), attack))


def bounds(flags: Sequence[int]) -> Bounds:
    interval = wilson(sum(flags), len(flags))
    return 100 * interval.low, 100 * interval.high


def measured(runs: Sequence[RunData], attack: str) -> list[Point]:
    points = []
    for i, run in enumerate(runs):
        verdict = run.verdicts.get(attack)
        if verdict is not None:
            clean, robust = verdict.clean, verdict.flags
            points.append(
                Point(
                    label=run.label,
                    index=i,
                    clean=100 * sum(clean) / len(clean),
                    robust=100 * sum(robust) / len(robust),
                    clean_interval=bounds(clean),
                    robust_interval=bounds(robust),
                )
            )
    return points


def published(runs: Sequence[RunData], attack: str, rows_of: PublishedRows) -> list[Point]:
    """The published points for the runs' recipes, each once."""
    points: dict[tuple[str, float, float], Point] = {}
    for i, run in enumerate(runs):
        for number, row in rows_of(run.name):
            cells = {cell.column: cell.value for cell in row.cells if cell.unit == "%"}
            clean, robust = cells.get("clean"), cells.get("autoattack" if attack == "aa" else attack)
            if clean is not None and robust is not None:
                label = f"paper, Table {number}: {row.method}"
                point = Point(label=label, index=i, clean=clean, robust=robust, paper=True)
                points.setdefault((run.name, clean, robust), point)
    return list(points.values())
