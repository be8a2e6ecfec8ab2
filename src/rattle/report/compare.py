"""Comparisons between runs: tests of each pair on the same images, runs grouped by seed, and clean against robust
accuracy beside the paper's figures."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rattle.evaluation.samples import Sample, join_seeds, on_shared_images
from rattle.evaluation.unions import UNION, split_name
from rattle.report.run_data import MANY, RunData, Runs
from rattle.report.significance import Tests, paired_tests, protocol_differences
from rattle.report.tables import Accuracy, Comparison, accuracy, compare

ALL_PAIRS = MANY  # up to this many runs every pair is compared; beyond it each with the first
NOT_THE_METHOD = ("seed", "threads")  # settings in which runs of one method may differ
STRONGEST = {"autoattack": 0, "pgd20": 1, "cw20": 2}  # of the attacks that the runs have in common; others stand at 3
PublishedRows = Callable[[str], Iterable[tuple[int, Any]]]  # recipe -> (table's number, its row)


def compare_runs(runs: Runs, baseline: RunData | None = None) -> Tests:
    """Tests of runs, network against network, and a sentence for each that could not be made.

    All pairs; with a baseline, each with it. Of more than ALL_PAIRS runs the first is the baseline.
    """
    return compare_groups({run.label: [run] for run in runs}, baseline)


def compare_methods(runs: Runs, baseline: RunData | None = None) -> Tests:
    """The same over seeds, of groups of runs that differ in their seed alone: all pairs, or with the baseline's."""
    return compare_groups(group_by_method(runs), baseline)


def compare_groups(groups: Mapping[str, Runs], baseline: RunData | None) -> Tests:
    """The tests of named groups of runs, each a row."""
    names = list(groups)
    name = names[0] if len(names) > ALL_PAIRS else None
    if baseline:
        name = next((name for name in names if baseline in groups[name]), None)
    return paired_tests({name: samples_of(members) for name, members in groups.items()}, name)


def has_seeds(runs: Runs) -> bool:
    """Whether one of several methods has several seeds: then methods are compared, not networks."""
    groups = group_by_method(runs)
    return 1 < len(groups) < len(runs)


def group_by_method(runs: Runs) -> dict[str, list[RunData]]:
    """Runs that differ in their seed alone, under the name they share."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        recipe = {key: value for key, value in run.recipe.items() if key not in NOT_THE_METHOD}
        if run.external:  # how it was trained is not known
            recipe = {"results": run.label}
        groups.setdefault(json.dumps(recipe, sort_keys=True, default=str), []).append(run)
    variants = [members[0].variant for members in groups.values()]
    named = {}
    for members in groups.values():
        first = members[0]
        named[first.variant if variants.count(first.variant) == 1 else first.label] = members
    return named


def samples_of(runs: Runs) -> dict[str, Sample]:
    """{column: flags over seeds}; only results under the first run's protocol count, on the images that all have."""
    found: dict[str, Sample] = {}
    for run in runs:
        for column, sample in run.columns.items():
            known = found.setdefault(column, sample)
            both = on_shared_images(known, sample)
            if known is sample or both is None or protocol_differences(known.protocol, sample.protocol):
                continue
            found[column] = join_seeds(both)
    return found


def over_seeds(runs: Runs) -> Comparison:
    """Methods by columns, mean and std over seeds."""
    return compare({method: samples_of(members) for method, members in group_by_method(runs).items()})


@dataclass(frozen=True, slots=True)
class PlanePoint:
    """One point of the plane."""

    label: str
    run: RunData  # the run it belongs to
    clean: Accuracy
    robust: Accuracy
    paper: bool = False  # a published figure, without an interval


def robust_attack(runs: Runs) -> str | None:
    """The attack that most runs have a result of; the strongest of those, under all threats where there are several."""
    attacks = [attack for run in runs for attack in run.results]

    def rank(name: str) -> tuple[int, int, bool, str]:
        attack, threat = split_name(name)
        return -attacks.count(name), STRONGEST.get(attack, 3), threat != UNION, name

    return min(attacks, key=rank, default=None)


def measured_points(runs: Runs, attack: str) -> list[PlanePoint]:
    points = []
    for run in runs:
        result = run.results.get(attack)
        if result is None:
            continue
        clean, robust = accuracy(result.clean, result.clean_error), accuracy(result.flags, result.error)
        points.append(PlanePoint(run.label, run, clean, robust))
    return points


def published_points(runs: Runs, attack: str, rows_of: PublishedRows) -> list[PlanePoint]:
    """The published points for the runs' recipes, each once."""
    points: dict[tuple[str, float, float], PlanePoint] = {}
    for run in runs:
        for number, row in rows_of(run.name):
            cells = {cell.column: cell.value for cell in row.cells if cell.unit == "%"}
            clean, robust = cells.get("clean"), cells.get(attack)
            if clean is None or robust is None:
                continue
            exact = Accuracy(clean, clean, clean), Accuracy(robust, robust, robust)
            point = PlanePoint(f"paper, Table {number}: {row.method}", run, *exact, paper=True)
            points.setdefault((run.name, clean, robust), point)
    return list(points.values())
