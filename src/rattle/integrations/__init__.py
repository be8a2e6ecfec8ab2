"""Interfaces of other tools, on this library's parts."""

from rattle.integrations.autoattack import AutoAttack

__all__ = ["AutoAttack"]
