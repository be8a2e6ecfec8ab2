"""Mistakes a user can mend: one exception, whose text is the whole message."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
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


def unknown(kind: str, name: str, valid: Iterable[str]) -> RattleError:
    """An error for a name that is not among the valid ones; it names the nearest and, when they are few, all."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listing = f" (one of {', '.join(names)})" if len(names) <= 12 else ""
    return RattleError(f"unknown {kind} {name!r}{hint}{listing}")


def check_choices(settings: Any, where: str) -> None:
    """Refuse a dataclass in which a field typed as a Literal holds another value; `where` precedes the field's name."""
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise RattleError(f"{where}.{field.name} must be one of {', '.join(get_args(hint))}, got {value!r}")


def with_fields(settings: T, changes: Mapping[str, Any], where: str) -> T:
    """A dataclass with fields changed; refuses a name that is no field of it, with the nearest, and a wrong type."""
    if not is_dataclass(settings) or isinstance(settings, type):
        raise RattleError(f"{where} is no dataclass and has no settings to change")
    hints, names = get_type_hints(type(settings)), [field.name for field in fields(settings)]
    for name, value in changes.items():
        if name not in names:
            raise unknown(f"setting of {where}", name, names)
        kind = hints[name]
        wanted = (int, float) if kind is float else kind
        plain = kind in (bool, int, float, str)
        if plain and (not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool)):
            raise RattleError(f"{where}.{name} must be {kind.__name__}, got {value!r}")
    return replace(settings, **changes)
