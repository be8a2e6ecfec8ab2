"""Names of attacks: `get_attack` turns what people write (pgd20, apgd-ce, autoattack) into the attack they mean.

To add an attack, write one file and one line in ATTACKS, or call `register_attack` at run time.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from rattle.attacks.autoattack import ENSEMBLES, AttackSequence, AutoAttack, components
from rattle.attacks.base import Attack, Ensemble
from rattle.attacks.linearised import LinearisedAPGD
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.errors import RattleError, unknown
from rattle.settings import check_type, with_fields
from rattle.threat import Threat

COUNTED: dict[str, Literal["ce", "cw"]] = {"pgd": "ce", "cw": "cw"}  # PGD with a number of steps in its name: its loss
USUAL_STEPS = 20  # of a counted attack whose name has no number
ATTACKS: dict[str, Callable[[Threat], Attack]] = {
    "fgsm": lambda threat: PGD(threat=threat, steps=1, step_size=threat.epsilon, start="none"),
    **{name: lambda threat, name=name: components("standard", threat)[name] for name in ENSEMBLES["standard"]},
    **{name: lambda threat, name=name: components("plus", threat)[name] for name in ("apgd-dlr", "fab")},
    "autoattack": lambda threat: AutoAttack(threat=threat),
    "autoattack-plus": lambda threat: AutoAttack(threat=threat, version="plus"),
    "autoattack-rand": lambda threat: AutoAttack(threat=threat, version="rand"),
    # AutoAttack's first two components: an upper bound on the robust accuracy that AutoAttack leaves
    "apgd-ce+t": lambda threat: AttackSequence({name: get_attack(name, threat) for name in ("apgd-ce", "apgd-t")}),
    "apgd-t-linearised": lambda threat: LinearisedAPGD(threat=threat),
    "smoke-ensemble": lambda threat: AttackSequence(components("smoke", threat)),
    "rays": lambda threat: RayS(threat=threat),
}
BUILT_IN = frozenset(ATTACKS)
RENAMED = {"autoattack-fast": "apgd-ce+t", "autoattack-brief": "smoke-ensemble"}  # they are not AutoAttack


def list_attacks() -> list[str]:
    """The names that `get_attack` and `--attacks` take; pgd and cw take any number of steps."""
    return [*(f"{name}{USUAL_STEPS}" for name in COUNTED), *ATTACKS]


def register_attack(name: str, make: Callable[[Threat], Attack]) -> None:
    """Add an attack to the names that `get_attack`, `evaluate` and the command line take; replaces one of your own.

    name: lower-case letters, digits, + and -; result files are called by it. make: the attack for a given threat.
    """
    check_type("the name", name, str)
    if not callable(make):
        raise RattleError(f"make must be a function of the threat, got {type(make).__name__}")
    if not re.fullmatch(r"[a-z][a-z0-9+-]*", name):
        raise RattleError(f"an attack's name has lower-case letters, digits, + and - only, got {name!r}")
    if name in BUILT_IN or name in RENAMED or counted(name):
        raise RattleError(f"the attack name {name!r} is taken")
    ATTACKS[name] = make


def counted(name: str) -> tuple[str, int] | None:
    """A counted attack's family and steps: pgd50 is ("pgd", 50)."""
    match = re.fullmatch(rf"({'|'.join(COUNTED)})(\d*)", name)
    return (match[1], int(match[2] or USUAL_STEPS)) if match else None


def get_attack(name: str, threat: Threat, **settings: Any) -> Attack:
    """The attack of this name on this threat, with these fields of it changed; RattleError if there is none.

    >>> get_attack("cw20", Threat(epsilon=0.1), restarts=5).steps
    20
    """
    check_type("the attack's name", name, str)
    if not isinstance(threat, Threat):
        raise RattleError(f"the threat must be a rattle.Threat, got {type(threat).__name__}")
    family, steps = counted(name) or ("", 0)
    if name in RENAMED:
        raise RattleError(f"{name} is not AutoAttack and is now called {RENAMED[name]}")
    if name not in ATTACKS and steps < 1:
        raise unknown("attack", name, list_attacks())
    if name in ATTACKS:
        attack = ATTACKS[name](threat)
    else:  # step 2 epsilon / K: PGD-20 at epsilon 0.031 then uses 0.0031 (the paper's and TRADES': 0.003)
        attack = PGD(threat=threat, steps=steps, step_size=2 * threat.epsilon / steps, loss=COUNTED[family])
    if settings and (isinstance(attack, Ensemble) or (family and "steps" in settings)):
        meant = f"{family}K has K steps" if family else "its parts are attacks of their own, such as apgd-ce"
        raise RattleError(f"{name} with other {', '.join(settings)} would not be {name}: {meant}")
    return with_fields(attack, settings, name) if settings else attack
