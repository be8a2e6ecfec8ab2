"""Mistakes a user can mend: one exception, whose text is the whole message."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class RattleError(ValueError):
    """Something the caller can put right. The command line prints it as one sentence and exits with code 2."""

    told = False  # another rank of the job prints it


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type when it has no message.

    >>> first_line(AssertionError())
    'AssertionError'
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, a device's, or the host's, of which torch and oneDNN tell in own words."""
    words = ("out of memory", "allocate memory", "could not create a primitive", "can't start new thread")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def unknown(kind: str, name: str, valid: Iterable[str]) -> RattleError:
    """An error for a name that is not among the valid ones; it names the nearest and, when they are few, all."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listing = f" (one of {', '.join(names)})" if len(names) <= 12 else ""
    return RattleError(f"unknown {kind} {name!r}{hint}{listing}")


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name, read once: settings are made anew at every step of a training."""
    return get_type_hints(kind)


def check_choices(settings: Any, where: str) -> None:
    """Refuse a dataclass in which a field typed as a Literal, a number, text or bool holds something else; `where`
    precedes the field's name."""
    hints = types_of(type(settings))
    for field in fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        if get_origin(hint) is Literal and (not isinstance(value, str) or value not in get_args(hint)):
            raise RattleError(f"{where}.{field.name} must be one of {', '.join(get_args(hint))}, got {value!r}")
        kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
        if len(kinds) == 1 and kinds[0] in KINDS and not (value is None and NoneType in get_args(hint)):
            check_type(f"{where}.{field.name}", value, kinds[0])


KINDS = {int: Integral, float: Real, str: str, bool: bool}  # what counts as one: numpy's numbers too


def check_type(name: str, value: object, kind: type) -> None:
    """Refuse a value that is not of this kind (int, float, str or bool), and a whole number that no tensor holds."""
    wrong = not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind is not bool)
    if wrong or (isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63):
        raise RattleError(f"{name} must be {kind.__name__}, got {reprlib.repr(value)}")


def with_fields(settings: T, changes: Mapping[str, Any], where: str) -> T:
    """A dataclass with fields changed; refuses a name that is no field of it, with the nearest, and a wrong type."""
    if not is_dataclass(settings) or isinstance(settings, type):
        raise RattleError(f"{where} is no dataclass and has no settings to change")
    hints, names = types_of(type(settings)), [field.name for field in fields(settings)]
    for name, value in changes.items():
        if name not in names:
            raise unknown(f"setting of {where}", name, names)
        if hints[name] in KINDS:
            check_type(f"{where}.{name}", value, hints[name])
    return replace(settings, **changes)
