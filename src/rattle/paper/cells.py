"""A table's figures: mean, std, interval and difference to the baseline, cell by cell beside the paper's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rattle.evaluation.samples import Difference, Sample, difference
from rattle.paper.plan import Entry, Plan, States
from rattle.paper.protocols import Evaluator, Measured, Protocol
from rattle.paper.rows import Cell, Row
from rattle.recipes.recipe import Recipe
from rattle.stats import Interval, holm, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Ours in one cell under one protocol, in the cell's unit; `state` says why there is no number."""

    state: str = ""  # "", or: diverged, failed, not finished
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()  # one a seed
    checkpoints: tuple[str, ...] = ()  # that they belong to
    images: int = 0
    mean: float = math.nan
    std: float = math.nan  # over seeds; NaN with one
    interval: Interval | None = None  # over seeds (Student), with one seed over images (Wilson)
    sample: Sample | None = None
    difference: Difference | None = None  # to the baseline, as a share (or distance), not in %
    p_adjusted: float | None = None  # Holm, over all tests of the protocol in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of the paper with ours beside it."""

    row: Row
    key: str  # of our runs; "" for quoted results
    recipe: Recipe | None  # of our runs: what ran, where the row says what the paper ran
    baseline: Row | None = None
    ours: Mapping[Protocol, Mapping[str, CellResult]]  # protocol -> column -> ours

    def published_difference(self, column: str) -> float | None:
        """The paper's own difference to its baseline."""
        value, base = (row.cell(column).value if row else None for row in (self.row, self.baseline))
        return None if value is None or base is None else value - base


def state_of(plan: Plan, key: str, states: States, failed: Mapping[str, str]) -> str:
    """Why a row has no numbers; "" when at least one of its runs is finished and none diverged."""
    found = [states[key, seed] for seed in plan.seeds]
    if "diverged" in found:
        return "diverged" if len(found) == 1 else f"diverged ({found.count('diverged')} of {len(found)})"
    if "finished" in found:
        return ""
    return "failed" if any(plan.jobs[key, seed].folder.name in failed for seed in plan.seeds) else "not finished"


def cell_result(cell: Cell, by_seed: Mapping[int, Measured]) -> CellResult:
    """One cell from its seeds."""
    if not by_seed:
        return CellResult(state="not finished")
    unit, measured = 100.0 if cell.unit == "%" else 1.0, list(by_seed.values())
    sample = Sample(seeds=tuple(by_seed), flags=tuple(m.values for m in measured), protocol=measured[0].protocol)
    values = [unit * share for share in sample.accuracies]
    summary, within = summarise(values), sample.interval
    return CellResult(
        seeds=tuple(by_seed),
        values=tuple(values),
        checkpoints=tuple(m.checkpoint for m in measured),
        images=len(measured[0].values),
        mean=summary.mean,
        std=summary.deviation,
        interval=None if math.isinf(within.low) else Interval(unit * within.low, unit * within.high),
        sample=sample,
    )


def compare_rows(
    plan: Plan, evaluator: Evaluator, protocols: Sequence[Protocol], failed: Mapping[str, str]
) -> list[ComparedRow]:
    """Every row, measured under the protocols; `failed` names the folders of runs whose training failed, and why."""
    states = plan.states()
    results: dict[Protocol, dict[str, dict[str, CellResult]]] = {protocol: {} for protocol in protocols}
    for entry in plan.entries:
        for protocol, by_key in results.items():
            if entry.key and entry.key not in by_key:
                by_key[entry.key] = measured_row(plan, entry, evaluator, protocol, states, failed)
    for by_key in results.values():
        add_differences(plan.entries, by_key)
    rows = {entry.row.recipe: entry.row for entry in plan.entries if entry.recipe and not entry.row.overrides}
    return [
        ComparedRow(
            row=entry.row,
            key=entry.key,
            recipe=entry.recipe,
            baseline=rows.get(entry.row.baseline),
            ours={protocol: by_key[entry.key] for protocol, by_key in results.items() if entry.key},
        )
        for entry in plan.entries
    ]


def measured_row(
    plan: Plan, entry: Entry, evaluator: Evaluator, protocol: Protocol, states: States, failed: Mapping[str, str]
) -> dict[str, CellResult]:
    """Ours in every column of a row, before anything is compared."""
    keys = {entry.key: "", entry.surrogate: "surrogate "} if entry.surrogate else {entry.key: ""}
    for key, whose in keys.items():
        if state := state_of(plan, key, states, failed):
            return {cell.column: CellResult(state=whose + state) for cell in entry.row.cells}
    found: dict[str, dict[int, Measured]] = {cell.column: {} for cell in entry.row.cells}
    for seed in plan.seeds:
        if all(states[key, seed] == "finished" for key in keys):
            surrogate = plan.jobs[entry.surrogate, seed].run if entry.surrogate else None
            for column, one in evaluator.row(entry.row, plan.jobs[entry.key, seed], protocol, surrogate).items():
                found[column][seed] = one
    return {cell.column: cell_result(cell, found[cell.column]) for cell in entry.row.cells}


def add_differences(entries: Sequence[Entry], results: dict[str, dict[str, CellResult]]) -> None:
    """Compare the results of one protocol with their baselines; a run that is in two rows counts as one test."""
    found: dict[tuple[str, str], Difference] = {}
    for entry in entries:
        for column, ours in results.get(entry.key, {}).items():
            base = results[entry.baseline].get(column) if entry.baseline else None
            change = difference(ours.sample, base.sample) if base and ours.sample and base.sample else None
            if change:
                found[entry.key, column] = change
    adjusted = holm([change.p for change in found.values()])
    for ((key, column), change), p in zip(found.items(), adjusted, strict=True):
        results[key][column] = replace(results[key][column], difference=change, p_adjusted=p)
