"""What the names of attacks stand for: a function of the threat for each, which attacks/registry.py finds by name."""

from functools import partial

from rattle.attacks.autoattack import AutoAttack, components
from rattle.attacks.base import Attack
from rattle.attacks.ensemble import AttackSequence
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.threat import Threat


def fgsm(threat: Threat) -> Attack:
    return PGD(threat=threat, steps=1, step_size=threat.epsilon, start="none")


def component(kind: str, name: str, threat: Threat) -> Attack:
    return components(kind, threat)[name]


apgd_ce = partial(component, "standard", "apgd-ce")
apgd_t = partial(component, "standard", "apgd-t")
fab_t = partial(component, "standard", "fab-t")
square = partial(component, "standard", "square")
apgd_dlr = partial(component, "plus", "apgd-dlr")
fab = partial(component, "plus", "fab")


def autoattack(threat: Threat) -> Attack:
    return AutoAttack(threat=threat)


def autoattack_plus(threat: Threat) -> Attack:
    return AutoAttack(threat=threat, version="plus")


def apgd_ce_t(threat: Threat) -> Attack:
    """AutoAttack's first two components: an upper bound on the robust accuracy that AutoAttack leaves."""
    return AttackSequence({"apgd-ce": apgd_ce(threat), "apgd-t": apgd_t(threat)})


def smoke_ensemble(threat: Threat) -> Attack:
    return AttackSequence(components("smoke", threat))


def rays(threat: Threat) -> Attack:
    return RayS(threat=threat)
