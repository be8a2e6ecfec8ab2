"""Comparisons between runs: McNemar's paired test on the same images, Holm's adjustment, and runs grouped by seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from rattle.report.run_data import Plain, RunData, Verdict
from rattle.report.tables import ORDER, Comparison, compare, title_of
from rattle.stats import LEVEL, McNemar, Sample, holm, mcnemar

ALL_PAIRS = 4  # up to this many runs every pair is compared; beyond it each with the first
SAME_RECIPE_DESPITE = ("seed", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
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
    def verdict(self) -> str:
        if not self.significant:
            return "cannot be told apart"
        return f"{self.second if self.test.difference > 0 else self.first} is better"


def flags_of(run: RunData) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{column: (protocol, flags)}, clean first."""
    found = {name: (verdict.protocol, verdict.flags) for name, verdict in run.verdicts.items()}
    if not run.verdicts:
        return {}
    verdict = next(iter(run.verdicts.values()))
    ordered = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else 1.5, name))
    return {"clean": (clean_protocol(verdict), verdict.clean), **{name: found[name] for name in ordered}}


def clean_protocol(verdict: Verdict) -> str:
    return json.dumps([verdict.data, len(verdict.clean), "clean"])


def pairs(runs: Sequence[RunData]) -> tuple[list[Paired], list[str]]:
    """The tests, adjusted together, and a sentence for each that could not be made."""
    chosen = list(combinations(runs, 2)) if len(runs) <= ALL_PAIRS else [(runs[0], other) for other in runs[1:]]
    tests: list[tuple[RunData, RunData, str, McNemar]] = []
    refused = []
    for first, second in chosen:
        ours, theirs = flags_of(first), flags_of(second)
        for attack in (name for name in ours if name in theirs):
            if ours[attack][0] != theirs[attack][0]:
                reason = "they were measured on other images or under another threat"
                refused.append(f"{first.label} and {second.label} under {title_of(attack)}: {reason}")
            else:
                tests.append((first, second, attack, mcnemar(ours[attack][1], theirs[attack][1])))
    adjusted = holm([test.p_mid for *_, test in tests])
    found = [
        Paired(first=a.label, second=b.label, attack=attack, test=test, p_adjusted=p)
        for (a, b, attack, test), p in zip(tests, adjusted, strict=True)
    ]
    return found, refused


def recipe_key(recipe: Plain) -> str:
    kept = {key: value for key, value in recipe.items() if key not in SAME_RECIPE_DESPITE}
    return json.dumps(kept, sort_keys=True, default=str)


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in their seed alone, under the name they share."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(recipe_key(run.recipe), []).append(run)
    methods = [members[0].method for members in groups.values()]
    return {
        members[0].method if methods.count(members[0].method) == 1 else members[0].label: members
        for members in groups.values()
    }


def samples(members: Sequence[RunData]) -> dict[str, Sample]:
    """{column: flags over seeds}; only verdicts under the first run's protocol count."""
    found: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
    for run in members:
        for column, (protocol, flags) in flags_of(run).items():
            known = found.setdefault(column, [])
            if not known or known[0][1] == protocol:
                known.append((run.seed, protocol, flags))
    return {
        column: Sample(
            seeds=tuple(seed for seed, _, _ in entries),
            flags=tuple(flags for _, _, flags in entries),
            protocol=entries[0][1],
        )
        for column, entries in found.items()
    }


def over_seeds(runs: Sequence[RunData]) -> Comparison:
    """Methods by columns, mean and deviation over seeds."""
    return compare({method: samples(members) for method, members in by_method(runs).items()})
