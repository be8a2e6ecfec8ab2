"""What the names of attacks stand for: a function of the threat for each, which attacks/registry.py finds by name."""

from rattle.attacks.autoattack import AutoAttack, components
from rattle.attacks.base import Attack
from rattle.attacks.ensemble import AttackSequence
from rattle.attacks.linearised import LinearisedAPGD
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.threat import Threat


def fgsm(threat: Threat) -> Attack:
    return PGD(threat=threat, steps=1, step_size=threat.epsilon, start="none")


def apgd_ce(threat: Threat) -> Attack:
    return components("standard", threat)["apgd-ce"]


def apgd_t(threat: Threat) -> Attack:
    return components("standard", threat)["apgd-t"]


def fab_t(threat: Threat) -> Attack:
    return components("standard", threat)["fab-t"]


def square(threat: Threat) -> Attack:
    return components("standard", threat)["square"]


def apgd_dlr(threat: Threat) -> Attack:
    return components("plus", threat)["apgd-dlr"]


def fab(threat: Threat) -> Attack:
    return components("plus", threat)["fab"]


def autoattack(threat: Threat) -> Attack:
    return AutoAttack(threat=threat)


def autoattack_plus(threat: Threat) -> Attack:
    return AutoAttack(threat=threat, version="plus")


def autoattack_rand(threat: Threat) -> Attack:
    return AutoAttack(threat=threat, version="rand")


def apgd_ce_t(threat: Threat) -> Attack:
    """AutoAttack's first two components: an upper bound on the robust accuracy that AutoAttack leaves."""
    return AttackSequence({"apgd-ce": apgd_ce(threat), "apgd-t": apgd_t(threat)})


def apgd_t_linearised(threat: Threat) -> Attack:
    return LinearisedAPGD(threat=threat)


def smoke_ensemble(threat: Threat) -> Attack:
    return AttackSequence(components("smoke", threat))


def rays(threat: Threat) -> Attack:
    return RayS(threat=threat)
