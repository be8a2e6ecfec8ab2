"""Attacks, one a file; `get_attack` turns a name into an attack, `register_attack` adds one of your own."""

from typing import TYPE_CHECKING

from rattle.registry import lazy_names

if TYPE_CHECKING:
    from rattle.attacks.apgd import APGD as APGD
    from rattle.attacks.autoattack import AutoAttack as AutoAttack
    from rattle.attacks.base import Attack as Attack
    from rattle.attacks.base import describe_attack as describe_attack
    from rattle.attacks.ensemble import AttackSequence as AttackSequence
    from rattle.attacks.ensemble import Ensemble as Ensemble
    from rattle.attacks.fab import FAB as FAB
    from rattle.attacks.pgd import PGD as PGD
    from rattle.attacks.rays import RayS as RayS
    from rattle.attacks.registry import get_attack as get_attack
    from rattle.attacks.registry import list_attacks as list_attacks
    from rattle.attacks.registry import register_attack as register_attack
    from rattle.attacks.square import Square as Square
    from rattle.attacks.transfer import Transfer as Transfer

__getattr__ = lazy_names(
    __name__,
    {
        "apgd": ["APGD"],
        "autoattack": ["AutoAttack"],
        "base": ["Attack", "describe_attack"],
        "ensemble": ["AttackSequence", "Ensemble"],
        "fab": ["FAB"],
        "pgd": ["PGD"],
        "rays": ["RayS"],
        "registry": ["get_attack", "list_attacks", "register_attack"],
        "square": ["Square"],
        "transfer": ["Transfer"],
    },
)
