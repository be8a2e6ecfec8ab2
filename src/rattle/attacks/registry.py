"""Attacks: one a file. `named` turns what people type (pgd20, apgd-ce, autoattack) into the attack they mean."""

from __future__ import annotations

import re
from collections.abc import Callable

from rattle.attacks.autoattack import AutoAttack, plus, standard
from rattle.attacks.base import Attack
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.errors import unknown
from rattle.threat import Threat

# Evaluation attacks step 2 epsilon / K: PGD-20 at epsilon 0.031 then uses 0.0031 (the paper's and TRADES': 0.003).
FAMILIES: dict[str, Callable[[Threat, int], Attack]] = {
    "fgsm": lambda threat, _: PGD(threat=threat, steps=1, step_size=threat.epsilon, start="none"),
    "pgd": lambda threat, k: PGD(threat=threat, steps=k, step_size=2 * threat.epsilon / k),
    "cw": lambda threat, k: PGD(threat=threat, steps=k, step_size=2 * threat.epsilon / k, loss="cw"),
    "apgd-ce": lambda threat, _: standard(threat)["apgd-ce"],
    "apgd-dlr": lambda threat, _: plus(threat)["apgd-dlr"],
    "apgd-t": lambda threat, _: standard(threat)["apgd-t"],
    "fab": lambda threat, _: plus(threat)["fab"],
    "fab-t": lambda threat, _: standard(threat)["fab-t"],
    "square": lambda threat, _: standard(threat)["square"],
    "autoattack": lambda threat, _: AutoAttack(threat=threat),
    "autoattack-fast": lambda threat, _: AutoAttack(threat=threat, version="fast"),  # apgd-ce + apgd-t: not AutoAttack
    "autoattack-brief": lambda threat, _: AutoAttack(threat=threat, version="brief"),  # a tenth of it: not AutoAttack
    "autoattack-plus": lambda threat, _: AutoAttack(threat=threat, version="plus"),
    "autoattack-rand": lambda threat, _: AutoAttack(threat=threat, version="rand"),
    "rays": lambda threat, _: RayS(threat=threat),
}

COUNTED = {"pgd": 20, "cw": 20}  # families whose name takes a number of steps, and the usual number


def list_attacks() -> list[str]:
    """What `--attacks` takes; pgd and cw take any number of steps."""
    return [f"{family}{COUNTED.get(family, '')}" for family in FAMILIES]


def get_attack(name: str, threat: Threat) -> Attack:
    """The attack people mean by a name, on this threat.

    >>> get_attack("cw20", Threat(epsilon=0.1)).steps
    20
    """
    match = re.fullmatch(r"([a-z]+)(\d*)", name)
    family, digits = match.groups() if match else (name, "")
    if name in FAMILIES and name not in COUNTED:
        return FAMILIES[name](threat, 1)
    if family not in COUNTED or (digits and int(digits) < 1):
        raise unknown("attack", name, list_attacks())
    return FAMILIES[family](threat, int(digits or COUNTED[family]))
