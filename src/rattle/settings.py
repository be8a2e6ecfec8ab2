"""Checked settings: a frozen dataclass says its bounds in its annotations, and one function refuses what is outside.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Noise:
        sigma: NonNegative = 0.01

        def __post_init__(self) -> None:
            check_settings(self, "noise")

Imports no torch.
"""

import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rattle.errors import RattleError, unknown

T = TypeVar("T")
Plain = dict[str, Any]  # plain data by name, as YAML and JSON hold it
MOST = 10**6  # the largest count: more is a slip, and would never end or not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a number may be; for a tuple, each of its numbers."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        limits = {">=": self.least, ">": self.above, "<=": self.most, "<": self.below}
        return " and ".join(f"{sign} {limit:,}" for sign, limit in limits.items() if math.isfinite(limit))


Positive = Annotated[float, Bound(above=0)]
NonNegative = Annotated[float, Bound(least=0)]
Share = Annotated[float, Bound(least=0, most=1)]  # a fraction, 0 and 1 included
PositiveShare = Annotated[float, Bound(above=0, most=1)]
Between = Annotated[float, Bound(above=0, below=1)]  # a fraction, 0 and 1 excluded
BelowOne = Annotated[float, Bound(least=0, below=1)]  # a fraction, 0 included
OneOrMore = Annotated[float, Bound(least=1)]
Count = Annotated[int, Bound(least=1, most=MOST)]
CountOrZero = Annotated[int, Bound(least=0, most=MOST)]

NUMBER_TYPES = {int: Integral, float: Real, str: str, bool: bool}  # what counts as one: numpy's numbers too


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name, without their bounds."""
    return get_type_hints(kind)


@cache
def bounds_of(kind: type) -> dict[str, Bound]:
    """The bounds of a dataclass's fields by name, found anywhere in the annotation: `Positive | None` has one."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if bound := find_bound(hint):
            found[name] = bound
    return found


def find_bound(hint: Any) -> Bound | None:
    if get_origin(hint) is Literal:
        return None
    for part in get_args(hint):
        if isinstance(part, Bound):
            return part
        if inner := find_bound(part):
            return inner
    return None


def check_settings(settings: Any, where: str) -> None:
    """Raise RattleError if a field of a dataclass has another type than it says, is not finite, or is out of bounds.

    where: what precedes the field's name in the message; "" for nothing.
    """
    hints, bounds = types_of(type(settings)), bounds_of(type(settings))
    prefix = f"{where}." if where else ""
    for field in fields(settings):
        name, value = prefix + field.name, getattr(settings, field.name)
        check_value(name, value, hints[field.name])
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise RattleError(f"{name} must be finite, got {number}")
            bound = bounds.get(field.name)
            if bound and number is not None and number not in bound:
                raise RattleError(f"{name} must be {bound}, got {value}")


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise RattleError if a value is none of a Literal's, or not of the one plain type that the hint allows."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in options:
        return
    kinds = [kind for kind in options if kind is not NoneType]
    if all(map(is_dataclass, kinds)) and not isinstance(value, tuple(kinds)):
        names = " or ".join(f"{kind.__module__}.{kind.__name__}" for kind in kinds)
        raise RattleError(f"{name} must be {names}, got {type(value).__name__}")
    if len(kinds) != 1:
        return
    (kind,) = kinds
    if get_origin(kind) is Literal and (not isinstance(value, str) or value not in get_args(kind)):
        raise RattleError(f"{name} must be one of {', '.join(map(str, get_args(kind)))}, got {value!r}")
    if kind in NUMBER_TYPES:
        check_type(name, value, kind)


def check_type(name: str, value: object, kind: type) -> None:
    """Raise RattleError if a value is not of this kind (int, float, str or bool), or an int beyond 64 bits."""
    wrong = not isinstance(value, NUMBER_TYPES[kind]) or (isinstance(value, bool) and kind is not bool)
    if wrong or (isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63):
        raise RattleError(f"{name} must be {kind.__name__}, got {reprlib.repr(value)}")
    if isinstance(value, str) and value.encode("utf-8", "replace").decode() != value:
        raise RattleError(f"{name} must be UTF-8 text, got {value!r}: rename the file or folder")


def with_fields(settings: T, changes: Mapping[str, Any], where: str) -> T:
    """A dataclass with fields changed; an unknown name is refused with the nearest valid one."""
    if not is_dataclass(settings) or isinstance(settings, type):
        raise RattleError(f"{where} is no dataclass and has no settings to change")
    hints, names = types_of(type(settings)), [field.name for field in fields(settings)]
    for name, value in changes.items():
        if name not in names:
            for part in names:
                if hasattr(getattr(settings, part), name):
                    kind = type(getattr(settings, part)).__name__
                    raise RattleError(f"{where} has no setting {name!r}, its {part} has: {part}={kind}({name}=...)")
            raise unknown(f"setting of {where}", name, names)
        if hints[name] in NUMBER_TYPES:
            check_type(f"{where}.{name}", value, hints[name])
    return replace(settings, **changes)


def check_cores(name: str, value: int | None, *, each: int = 1) -> None:
    """Raise RattleError for more threads or processes than `each` for every core: they would starve the machine."""
    cores = os.cpu_count() or 1
    if value is not None and value > each * cores:
        raise RattleError(f"{name} {value:,} is too many for the {cores} cores of this machine: at most {each * cores}")
