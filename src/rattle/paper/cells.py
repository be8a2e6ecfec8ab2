"""A table's figures: ours in every cell, and their differences to the baselines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rattle.evaluation.samples import Difference, difference, join_seeds
from rattle.paper.plan import Plan, PlannedRow, States
from rattle.paper.protocols import CellResult, Evaluator, Ours, Protocol
from rattle.stats import holm

ResultsByProtocol = Mapping[Protocol, Mapping[str, Mapping[str, Ours]]]  # protocol -> key of our runs -> column


def state_of(plan: Plan, key: str, states: States) -> str:
    """Why a row has no numbers; "" when at least one of its runs is finished and none diverged."""
    found = [states[key, seed] for seed in plan.seeds]
    if "diverged" in found:
        return "diverged" if len(found) == 1 else f"diverged ({found.count('diverged')} of {len(found)})"
    if "finished" in found:
        return ""
    return "failed" if "failed" in found else "not finished"


def compare_rows(
    plan: Plan, evaluator: Evaluator, protocols: Sequence[Protocol], failed: Collection[str]
) -> ResultsByProtocol:
    """Every row, measured under the protocols; `failed` names the folders of runs whose training failed."""
    states = plan.states(failed)
    results: dict[Protocol, dict[str, dict[str, Ours]]] = {protocol: {} for protocol in protocols}
    for protocol, by_key in results.items():
        for entry in plan.entries:
            if entry.key and entry.key not in by_key:
                by_key[entry.key] = measured_row(plan, entry, evaluator, protocol, states)
        add_differences(plan.entries, by_key)
    return results


def measured_row(
    plan: Plan, entry: PlannedRow, evaluator: Evaluator, protocol: Protocol, states: States
) -> dict[str, Ours]:
    """Ours in every column of a row, before anything is compared."""
    keys = {entry.key: "", entry.surrogate: "surrogate "} if entry.surrogate else {entry.key: ""}
    for key, whose in keys.items():
        if state := state_of(plan, key, states):
            return {cell.column: whose + state for cell in entry.row.cells}
    seeds = []
    for seed in plan.seeds:
        if all(states[key, seed] == "finished" for key in keys):
            surrogate = plan.jobs[entry.surrogate, seed].run if entry.surrogate else None
            seeds.append(evaluator.row(entry.row, plan.jobs[entry.key, seed], protocol, surrogate))
    results: dict[str, Ours] = {cell.column: "not finished" for cell in entry.row.cells}
    for column in results if seeds else ():  # no seed where a row is finished for one and its surrogate for another
        each = [found[column] for found in seeds]
        sample, checkpoints = join_seeds([one.sample for one in each]), [one.checkpoints[0] for one in each]
        results[column] = CellResult(sample=sample, checkpoints=checkpoints)
    return results


def add_differences(entries: Sequence[PlannedRow], results: dict[str, dict[str, Ours]]) -> None:
    """Compare the results of one protocol with their baselines; a run that is in two rows counts as one test."""
    found: dict[tuple[str, str], tuple[CellResult, Difference]] = {}
    for entry in entries:
        for column, ours in results.get(entry.key, {}).items():
            base = results[entry.baseline].get(column) if entry.baseline else None
            if isinstance(ours, CellResult) and isinstance(base, CellResult):
                change = difference(ours.sample, base.sample)
                if change:
                    found[entry.key, column] = ours, change
    adjusted = holm([change.p for _, change in found.values()])
    for ((key, column), (ours, change)), p in zip(found.items(), adjusted, strict=True):
        results[key][column] = replace(ours, difference=change, p_adjusted=p)
