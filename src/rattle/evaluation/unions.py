"""Several threats in one evaluation: how attacks under each are named, and what is robust under all. No torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rattle.evaluation.results import AttackResult, Draws

UNION = "union"
UNDER = re.compile(rf"(.+),((?:linf|l2|l1)=[^,]+|{UNION})")


def split_name(name: str) -> tuple[str, str]:
    """The attack and the threat that the name of a result holds.

    >>> split_name("autoattack,l2=0.5"), split_name("autoattack,union"), split_name("pgd40,step-size=0.01")
    (('autoattack', 'l2=0.5'), ('autoattack', 'union'), ('pgd40,step-size=0.01', ''))
    """
    found = UNDER.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def with_unions(results: Mapping[str, AttackResult]) -> dict[str, AttackResult]:
    """These results, and after them for each attack that was run under several threats ATTACK,union."""
    by_attack = {}
    for name, result in results.items():
        attack, threat = split_name(name)
        by_attack.setdefault(attack, {})[threat] = result
    unions = {}
    for attack, members in by_attack.items():
        if len(members) > 1 and "" not in members:
            unions[f"{attack},{UNION}"] = union(members)
    return {**results, **unions}


def union(members: Mapping[str, AttackResult]) -> AttackResult:
    """Robust under all threats, image by image, on the images that all were run on (Tramer and Boneh 2019).

    Of a random model: each rate at the point, of any threat, whose pilot rate is lowest.
    """
    settings = {"kind": "Union", "components": {threat: result.settings for threat, result in members.items()}}
    n = min(len(result.flags) for result in members.values())
    drawn = [(result, result.draws) for result in members.values() if result.draws]
    if drawn:
        return random_union(settings, drawn, n)
    flags = [all(result.flags[i] for result in members.values()) for i in range(n)]
    return AttackResult(settings=settings, flags=flags, seconds=0.0)


def random_union(settings: dict, drawn: Sequence[tuple[AttackResult, Draws]], n: int) -> AttackResult:
    rates, pilot, majority = [], [], []
    for i in range(n):
        result, draws = min(drawn, key=lambda each: each[1].pilot[i])
        rates.append(result.flags[i])
        pilot.append(draws.pilot[i])
        majority.append(draws.majority[i])
    error = max(draws.error for _, draws in drawn)
    found = replace(drawn[0][1], error=error, pilot=pilot, majority=majority, passes=0.0)
    return AttackResult(settings=settings, flags=rates, seconds=0.0, draws=found)
