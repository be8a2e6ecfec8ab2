"""Attacks: one a file; `get_attack` turns a name into the attack people mean."""

from rattle.attacks.apgd import APGD
from rattle.attacks.autoattack import AutoAttack
from rattle.attacks.base import Attack
from rattle.attacks.fab import FAB
from rattle.attacks.pgd import PGD
from rattle.attacks.rays import RayS
from rattle.attacks.registry import get_attack, list_attacks
from rattle.attacks.square import Square

__all__ = ["APGD", "FAB", "PGD", "Attack", "AutoAttack", "RayS", "Square", "get_attack", "list_attacks"]
