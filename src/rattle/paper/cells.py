"""A table's figures: mean, deviation, interval and difference to the baseline, cell by cell beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rattle.paper.plan import Entry, Plan, States
from rattle.paper.protocols import PROTOCOLS, Evaluator, Measured, Protocol
from rattle.paper.rows import Cell, Row
from rattle.stats import Difference, Interval, Sample, difference, holm, summarise, t_interval, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Ours in one cell under one protocol, in the cell's unit; `state` says why there is no number."""

    state: str = ""  # "", or: diverged, failed, not finished
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()  # one a seed
    checkpoints: tuple[str, ...] = ()  # that they belong to
    images: int = 0
    mean: float = math.nan
    deviation: float = math.nan  # over seeds; NaN with one
    interval: Interval | None = None  # over seeds (Student), with one seed over images (Wilson)
    sample: Sample | None = None
    difference: Difference | None = None  # to the baseline, as a share (or distance), not in %
    p_adjusted: float | None = None  # Holm, over all tests of the protocol in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of the paper with ours beside it."""

    row: Row
    key: str  # of our runs; "" for quoted results
    baseline: Row | None
    ours: Mapping[Protocol, Mapping[str, CellResult]]  # protocol -> column -> ours

    def published_difference(self, column: str) -> float | None:
        """The paper's own difference to its baseline."""
        above, below = (row.cell(column).value if row else None for row in (self.row, self.baseline))
        return None if above is None or below is None else above - below


def scaled(cell: Cell) -> float:
    """What a share is multiplied by to be in a cell's unit."""
    return 100.0 if cell.unit == "%" else 1.0


def state_of(plan: Plan, key: str, states: States, failed: Mapping[str, str]) -> str:
    """Why a row has no numbers; nothing when at least one of its runs is finished and none diverged."""
    found = [states[key, seed] for seed in plan.seeds]
    if "diverged" in found:
        return "diverged" if len(found) == 1 else f"diverged ({found.count('diverged')} of {len(found)})"
    if "finished" in found:
        return ""
    names = {plan.jobs[key, seed].folder.name for seed in plan.seeds}
    return "failed" if names & set(failed) else "not finished"


def cell_result(cell: Cell, found: Mapping[int, Measured]) -> CellResult:
    """One cell from its seeds."""
    unit, measured = scaled(cell), list(found.values())
    sample = Sample(seeds=tuple(found), flags=tuple(m.values for m in measured), protocol=measured[0].protocol)
    values = [unit * share for share in sample.accuracies]
    summary = summarise(values)
    return CellResult(
        seeds=tuple(found),
        values=tuple(values),
        checkpoints=tuple(m.checkpoint for m in measured),
        images=len(measured[0].values),
        mean=summary.mean,
        deviation=summary.deviation,
        interval=interval_of(values, measured, unit),
        sample=sample,
    )


def interval_of(values: Sequence[float], measured: Sequence[Measured], unit: float) -> Interval | None:
    """95 %: of the mean over seeds; with one seed, of its mean over images."""
    if len(values) > 1:
        return t_interval(values)
    flags = measured[0].values
    if set(flags) <= {0, 1}:
        within = wilson(int(sum(flags)), len(flags))
    else:
        within = t_interval(flags) if len(flags) > 1 else None
    return Interval(unit * within.low, unit * within.high) if within else None


def lines(
    plan: Plan, evaluator: Evaluator, protocols: Sequence[Protocol] = PROTOCOLS, failed: Mapping[str, str] | None = None
) -> list[ComparedRow]:
    """Every row, measured."""
    known: dict[tuple[str, Protocol], dict[str, CellResult]] = {}
    states = plan.states()
    for entry in plan.entries:
        for protocol in protocols if entry.recipe else ():
            if (entry.key, protocol) not in known:
                known[entry.key, protocol] = measured_row(plan, entry, evaluator, protocol, states, failed or {})
    rows = {entry.key: entry.row for entry in reversed(plan.entries) if entry.key}
    found = []
    for entry in plan.entries:
        ours: dict[Protocol, Mapping[str, CellResult]] = {}
        if entry.recipe:
            ours = {protocol: compared(entry, known, protocol) for protocol in protocols}
        found.append(ComparedRow(row=entry.row, key=entry.key, baseline=baseline_row(plan, entry, rows), ours=ours))
    return adjusted(found, protocols)


def baseline_row(plan: Plan, entry: Entry, rows: Mapping[str, Row]) -> Row | None:
    """The row that the paper's own difference is taken to: the one of the same recipe, not of a stand-in for it."""
    if entry.baseline is None:
        return None
    wanted = entry.row.baseline or entry.row.recipe
    return next((e.row for e in plan.entries if e.row.recipe == wanted and not e.row.overrides), rows[entry.baseline])


def measured_row(
    plan: Plan, entry: Entry, evaluator: Evaluator, protocol: Protocol, states: States, failed: Mapping[str, str]
) -> dict[str, CellResult]:
    """Ours in every column of a row, before anything is compared."""
    keys = list(dict.fromkeys((entry.key, *(key for _, key in entry.surrogates))))
    for key in keys:
        if state := state_of(plan, key, states, failed):
            told = state if key == entry.key else f"surrogate {state}"
            return {cell.column: CellResult(state=told) for cell in entry.row.cells}
    found: dict[str, dict[int, Measured]] = {cell.column: {} for cell in entry.row.cells}
    for seed in plan.seeds:
        if any(states[key, seed] != "finished" for key in keys):
            continue
        job, surrogate = plan.jobs[entry.key, seed], plan.jobs[keys[-1], seed].run if len(keys) > 1 else None
        for column, measured in evaluator.row(entry.row, job.run, job.recipe, protocol, surrogate).items():
            found[column][seed] = measured
    return {
        cell.column: cell_result(cell, found[cell.column]) if found[cell.column] else CellResult(state="not finished")
        for cell in entry.row.cells
    }


def compared(
    entry: Entry, known: Mapping[tuple[str, Protocol], Mapping[str, CellResult]], protocol: Protocol
) -> dict[str, CellResult]:
    """A row's figures with their differences to the baseline's."""
    ours = dict(known[entry.key, protocol])
    below = known.get((entry.baseline, protocol)) if entry.baseline else None
    for column, mine in ours.items():
        other = below.get(column) if below else None
        if other and mine.sample and other.sample:
            ours[column] = replace(mine, difference=difference(mine.sample, other.sample))
    return ours


def adjusted(found: Sequence[ComparedRow], protocols: Sequence[Protocol]) -> list[ComparedRow]:
    """The p-values of each protocol adjusted for being several; a run that stands in two rows counts once."""
    p_values: dict[tuple[str, Protocol, str], float] = {}
    for line in found:
        for protocol, cells in line.ours.items():
            for column, ours in cells.items():
                if ours.difference:
                    p_values[line.key, protocol, column] = ours.difference.p
    after: dict[tuple[str, Protocol, str], float] = {}
    for protocol in protocols:
        keys = [key for key in p_values if key[1] == protocol]
        after |= dict(zip(keys, holm([p_values[key] for key in keys]), strict=True))
    return [
        replace(
            line,
            ours={
                protocol: {
                    column: replace(ours, p_adjusted=after.get((line.key, protocol, column)))
                    for column, ours in cells.items()
                }
                for protocol, cells in line.ours.items()
            },
        )
        for line in found
    ]
