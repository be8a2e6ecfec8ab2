"""Attacks, one a file; `get_attack` turns a name into an attack, `register_attack` adds one of your own."""

from rattle.attacks.apgd import APGD
from rattle.attacks.autoattack import AttackSequence, AutoAttack
from rattle.attacks.base import Attack, describe
from rattle.attacks.fab import FAB
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.attacks.registry import get_attack, list_attacks, register_attack
from rattle.attacks.square import Square
from rattle.attacks.transfer import Transfer

__all__ = [
    "APGD",
    "FAB",
    "PGD",
    "Attack",
    "AttackSequence",
    "AutoAttack",
    "RayS",
    "Square",
    "Transfer",
    "describe",
    "get_attack",
    "list_attacks",
    "register_attack",
]
