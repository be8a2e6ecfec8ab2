"""Names of attacks: `get_attack` turns what people write (pgd20, apgd-ce, autoattack) into the attack they mean.

To add an attack, write one file, one function in named.py and one line in ATTACKS; or call `register_attack` at run
time. Imports no torch before an attack is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from rattle.errors import RattleError, unknown
from rattle.registry import Entry, Registry
from rattle.settings import check_type, with_fields

if TYPE_CHECKING:
    from rattle.attacks.base import Attack
    from rattle.threat import Threat

COUNTED: dict[str, Literal["ce", "cw"]] = {"pgd": "ce", "cw": "cw"}  # PGD with a number of steps in its name: its loss
USUAL_STEPS = 20  # of a counted attack whose name has no number
ATTACKS: Registry[Callable[[Threat], Attack]] = Registry(
    "attack",
    {
        "fgsm": Entry(".named:fgsm", "one step of size epsilon"),
        "apgd-ce": Entry(".named:apgd_ce", "Auto-PGD on the cross-entropy, AutoAttack's first component"),
        "apgd-t": Entry(".named:apgd_t", "Auto-PGD on the targeted DLR loss, AutoAttack's second"),
        "fab-t": Entry(".named:fab_t", "targeted FAB, AutoAttack's third"),
        "square": Entry(".named:square", "random squares, no gradients, AutoAttack's fourth"),
        "apgd-dlr": Entry(".named:apgd_dlr", "Auto-PGD on the DLR loss, 5 restarts"),
        "fab": Entry(".named:fab", "untargeted FAB, 5 restarts"),
        "autoattack": Entry(".named:autoattack", "AutoAttack, its standard version"),
        "autoattack-plus": Entry(".named:autoattack_plus", "AutoAttack's larger ensemble"),
        "apgd-ce+t": Entry(".named:apgd_ce_t", "AutoAttack's first two components"),
        "smoke-ensemble": Entry(".named:smoke_ensemble", "AutoAttack's components with a tenth of the steps"),
        "rays": Entry(".named:rays", "RayS, which sees the predicted class alone"),
    },
    package="rattle.attacks",
    points="rattle.attacks",
)


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
    if counted(name):
        raise RattleError(f"the attack name {name!r} is taken")
    ATTACKS.add(name, make)


def counted(name: str) -> tuple[str, int] | None:
    """A counted attack's family and steps: pgd50 is ("pgd", 50)."""
    match = re.fullmatch(rf"({'|'.join(COUNTED)})(\d*)", name)
    return (match[1], int(match[2] or USUAL_STEPS)) if match else None


def check_attack(name: str) -> None:
    """Raise RattleError if there is no attack of this name."""
    check_type("the attack's name", name, str)
    _, steps = counted(name) or ("", 0)
    if steps < 1 and name not in ATTACKS:
        raise unknown("attack", name, list_attacks())


def get_attack(name: str, threat: Threat, **settings: Any) -> Attack:
    """The attack of this name on this threat, with changed fields; RattleError if there is none.

    >>> import rattle
    >>> get_attack("cw20", rattle.Threat(epsilon=0.1), restarts=5).steps
    20
    """
    from rattle.attacks.ensemble import Ensemble
    from rattle.attacks.pgd import PGD
    from rattle.threat import Threat

    check_attack(name)
    if not isinstance(threat, Threat):
        raise RattleError(f"the threat must be a rattle.Threat, got {type(threat).__name__}")
    family, steps = counted(name) or ("", 0)
    if family:  # step 2 epsilon / K: PGD-20 at epsilon 0.031 then uses 0.0031 (the paper's and TRADES': 0.003)
        attack = PGD(threat=threat, steps=steps, step_size=2 * threat.epsilon / steps, loss=COUNTED[family])
    else:
        attack = ATTACKS[name](threat)
    if settings and (isinstance(attack, Ensemble) or (family and "steps" in settings)):
        meant = f"{family}K has K steps" if family else "its parts are attacks of their own, such as apgd-ce"
        raise RattleError(f"{name} with other {', '.join(settings)} would not be {name}: {meant}")
    return with_fields(attack, settings, name) if settings else attack
