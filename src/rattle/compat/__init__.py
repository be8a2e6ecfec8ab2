"""The former name of rattle.integrations."""

from rattle.integrations import AutoAttack as AutoAttack
