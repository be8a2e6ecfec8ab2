"""Drop-ins: the interfaces of tools that people use today, on this library's parts."""

from rattle.compat.autoattack import AutoAttack

__all__ = ["AutoAttack"]
