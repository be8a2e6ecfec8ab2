"""Clean against robust accuracy: a point for each run, and the paper's for the recipes that match."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rattle.report.run_data import RunData
from rattle.report.tables import Accuracy, accuracy

STRONGEST = {"autoattack": 0, "pgd20": 1, "cw20": 2}  # the strongest attack that the runs have in common counts
PublishedRows = Callable[[str], Iterable[tuple[int, Any]]]  # recipe -> (table's number, its row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the plane."""

    label: str
    run: RunData  # the run it belongs to
    clean: Accuracy
    robust: Accuracy
    paper: bool = False  # a published figure, without an interval


def robust_attack(runs: Sequence[RunData]) -> str | None:
    """The attack that most runs have a result of; the strongest of those."""
    attacks = [attack for run in runs for attack in run.results]
    return min(
        attacks, key=lambda name: (-attacks.count(name), STRONGEST.get(name, len(STRONGEST)), name), default=None
    )


def measured_points(runs: Sequence[RunData], attack: str) -> list[Point]:
    results = [(run, run.results[attack]) for run in runs if attack in run.results]
    return [
        Point(label=run.label, run=run, clean=accuracy(result.clean), robust=accuracy(result.flags))
        for run, result in results
    ]


def published_points(runs: Sequence[RunData], attack: str, rows_of: PublishedRows) -> list[Point]:
    """The published points for the runs' recipes, each once."""
    points: dict[tuple[str, float, float], Point] = {}
    for run in runs:
        for number, row in rows_of(run.name):
            cells = {cell.column: cell.value for cell in row.cells if cell.unit == "%"}
            clean, robust = cells.get("clean"), cells.get(attack)
            if clean is not None and robust is not None:
                point = Point(
                    label=f"paper, Table {number}: {row.method}",
                    run=run,
                    clean=Accuracy(clean, clean, clean),
                    robust=Accuracy(robust, robust, robust),
                    paper=True,
                )
                points.setdefault((run.name, clean, robust), point)
    return list(points.values())
