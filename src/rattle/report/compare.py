"""Comparisons between runs: tests of each pair on the same images, runs grouped by seed, and clean against robust
accuracy beside the paper's figures."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rattle.evaluation.results import StoredResult
from rattle.evaluation.samples import Sample, on_shared_images
from rattle.report.run_data import MANY, RunData
from rattle.report.significance import PairedTest, paired_tests, protocol_differences
from rattle.report.tables import Accuracy, Comparison, accuracy, compare, sorted_attacks

ALL_PAIRS = MANY  # up to this many runs every pair is compared; beyond it each with the first
BEST_KNOWN = "best-known"  # the column of what withstood every attack, beside AutoAttack's
NOT_THE_METHOD = ("seed", "threads")  # settings in which runs of one method may differ
STRONGEST = {"autoattack": 0, "pgd20": 1, "cw20": 2}  # of the attacks that the runs have in common; others stand at 3
PublishedRows = Callable[[str], Iterable[tuple[int, Any]]]  # recipe -> (table's number, its row)


def columns_of(run: RunData) -> dict[str, Sample]:
    """{column: what was measured}: clean on the most images, the attacks, and the best known beside AutoAttack."""
    if run.largest is None or run.columns:
        return run.columns
    attacks = {name: sample_of(run, run.results[name]) for name in sorted_attacks([*run.results])}
    clean = replace(sample_of(run, run.largest), flags=(run.largest.clean,), protocol=json.dumps({"attack": "clean"}))
    run.columns = {"clean": clean, **attacks, **best_known(run, attacks)}
    return run.columns


def sample_of(run: RunData, result: StoredResult) -> Sample:
    which = {"images": result.images, "places": result.places, "labels": result.labels}
    return Sample(seeds=(run.seed,), flags=(result.flags,), protocol=result.protocol, **which)


def best_known(run: RunData, attacks: Mapping[str, Sample]) -> dict[str, Sample]:
    """On AutoAttack's images, those that no attack of the same threat broke; only where another broke more than it."""
    bound = attacks.get("autoattack")
    if bound is None:
        return {}
    threat = run.results["autoattack"].settings.get("threat")
    others = [name for name in attacks if name != "autoattack" and run.results[name].settings.get("threat") == threat]
    robust = dict(enumerate(bound.flags[0]))
    for name in others:
        rows = replace(bound, flags=(tuple(robust),))  # the numbers of its images, to see which are shared
        if (shared := on_shared_images(rows, attacks[name])) is not None:
            robust |= {int(i): min(robust[int(i)], flag) for i, flag in zip(*(s.flags[0] for s in shared), strict=True)}
    flags = tuple(robust.values())
    protocol = json.dumps({"attack": BEST_KNOWN, "of": sorted(others), "threat": threat})
    return {BEST_KNOWN: replace(bound, flags=(flags,), protocol=protocol)} if sum(flags) < sum(bound.flags[0]) else {}


def compare_runs(runs: Sequence[RunData], baseline: RunData | None = None) -> tuple[list[PairedTest], list[str]]:
    """Tests of runs, network against network, and a sentence for each that could not be made.

    All pairs; with a baseline, or more than ALL_PAIRS runs of which the first then is it, each with the baseline.
    """
    baseline = runs[0] if baseline is None and len(runs) > ALL_PAIRS else baseline
    return paired_tests({run.label: samples_of([run]) for run in runs}, baseline.label if baseline else None)


def compare_methods(runs: Sequence[RunData], baseline: RunData) -> tuple[list[PairedTest], list[str]]:
    """The same over seeds: each group of runs that differ in their seed alone, with the baseline's group."""
    groups = group_by_method(runs)
    name = next(name for name, members in groups.items() if baseline in members)
    return paired_tests({name: samples_of(members) for name, members in groups.items()}, name)


def group_by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in their seed alone, under the name they share."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        recipe = {key: value for key, value in run.recipe.items() if key not in NOT_THE_METHOD}
        recipe = {"results": run.label} if run.external else recipe  # how it was trained is not known
        groups.setdefault(json.dumps(recipe, sort_keys=True, default=str), []).append(run)
    firsts = [members[0] for members in groups.values()]
    variants = [run.variant for run in firsts]
    names = [run.variant if variants.count(run.variant) == 1 else run.label for run in firsts]
    return dict(zip(names, groups.values(), strict=True))


def samples_of(runs: Sequence[RunData]) -> dict[str, Sample]:
    """{column: flags over seeds}; only results under the first run's protocol count, on the images that all have."""
    found: dict[str, Sample] = {}
    for run in runs:
        for column, sample in columns_of(run).items():
            if column not in found:
                found[column] = sample
                continue
            other = protocol_differences(found[column].protocol, sample.protocol)
            if not other and (both := on_shared_images(found[column], sample)):
                known, new = both
                found[column] = replace(known, seeds=known.seeds + new.seeds, flags=known.flags + new.flags)
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
