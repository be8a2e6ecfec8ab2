"""Comparisons between runs: McNemar's test on the same images with Holm's adjustment, runs grouped by seed, and clean
against robust accuracy beside the paper's figures."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rattle.report.naming import title_of
from rattle.report.run_data import RunData
from rattle.report.tables import Accuracy, Comparison, accuracy, compare, sorted_attacks
from rattle.stats import LEVEL, McNemar, Sample, holm, mcnemar

ALL_PAIRS = 4  # up to this many runs every pair is compared; beyond it each with the first
NOT_THE_METHOD = ("seed", "threads")  # settings in which runs of one method may differ
STRONGEST = {"autoattack": 0, "pgd20": 1, "cw20": 2}  # of the attacks that the runs have in common; others stand at 3
PublishedRows = Callable[[str], Iterable[tuple[int, Any]]]  # recipe -> (table's number, its row)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two runs under one attack."""

    first: str
    second: str
    attack: str
    test: McNemar
    p_adjusted: float

    @property
    def significant(self) -> bool:
        return self.p_adjusted < 1 - LEVEL

    @property
    def conclusion(self) -> str:
        if not self.significant:
            return "cannot be told apart"
        return f"{self.second if self.test.difference > 0 else self.first} is better"


def columns_of(run: RunData) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{column: (protocol, flags)}, clean first; only flags of the same protocol are comparable."""
    if not run.results:
        return {}
    first = next(iter(run.results.values()))
    clean = json.dumps([first.data, len(first.clean), "clean"])
    attacks = {name: (run.results[name].protocol, run.results[name].flags) for name in sorted_attacks([*run.results])}
    return {"clean": (clean, first.clean), **attacks}


def paired_tests(runs: Sequence[RunData]) -> tuple[list[PairedTest], list[str]]:
    """The tests, adjusted together, and a sentence for each that could not be made."""
    pairs = list(combinations(runs, 2)) if len(runs) <= ALL_PAIRS else [(runs[0], other) for other in runs[1:]]
    tests, refused = [], []
    for first, second in pairs:
        ours, theirs = columns_of(first), columns_of(second)
        for attack in (name for name in ours if name in theirs):
            if ours[attack][0] != theirs[attack][0]:
                reason = "they were measured on other images or under another threat"
                refused.append(f"{first.label} and {second.label} under {title_of(attack)}: {reason}")
            else:
                tests.append((first.label, second.label, attack, mcnemar(ours[attack][1], theirs[attack][1])))
    adjusted = holm([test.p_mid for *_, test in tests])
    return [PairedTest(*test, p_adjusted=p) for test, p in zip(tests, adjusted, strict=True)], refused


def group_by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in their seed alone, under the name they share."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        recipe = {key: value for key, value in run.recipe.items() if key not in NOT_THE_METHOD}
        groups.setdefault(json.dumps(recipe, sort_keys=True, default=str), []).append(run)
    firsts = [members[0] for members in groups.values()]
    methods = [run.method for run in firsts]
    names = [run.method if methods.count(run.method) == 1 else run.label for run in firsts]
    return dict(zip(names, groups.values(), strict=True))


def samples_of(runs: Sequence[RunData]) -> dict[str, Sample]:
    """{column: flags over seeds}; only results under the first run's protocol count."""
    found: dict[str, Sample] = {}
    for run in runs:
        for column, (protocol, flags) in columns_of(run).items():
            known = found.setdefault(column, Sample(seeds=(), flags=(), protocol=protocol))
            if known.protocol == protocol:
                found[column] = Sample(seeds=(*known.seeds, run.seed), flags=(*known.flags, flags), protocol=protocol)
    return found


def over_seeds(runs: Sequence[RunData]) -> Comparison:
    """Methods by columns, mean and deviation over seeds."""
    return compare({method: samples_of(members) for method, members in group_by_method(runs).items()})


@dataclass(frozen=True, slots=True)
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
    return min(attacks, key=lambda name: (-attacks.count(name), STRONGEST.get(name, 3), name), default=None)


def measured_points(runs: Sequence[RunData], attack: str) -> list[Point]:
    results = [(run, run.results[attack]) for run in runs if attack in run.results]
    return [Point(run.label, run, accuracy(result.clean), accuracy(result.flags)) for run, result in results]


def published_points(runs: Sequence[RunData], attack: str, rows_of: PublishedRows) -> list[Point]:
    """The published points for the runs' recipes, each once."""
    points: dict[tuple[str, float, float], Point] = {}
    for run in runs:
        for number, row in rows_of(run.name):
            cells = {cell.column: cell.value for cell in row.cells if cell.unit == "%"}
            clean, robust = cells.get("clean"), cells.get(attack)
            if clean is not None and robust is not None:
                label, exact = f"paper, Table {number}: {row.method}", [Accuracy(v, v, v) for v in (clean, robust)]
                points.setdefault((run.name, clean, robust), Point(label, run, *exact, paper=True))
    return list(points.values())
