"""Frozen dataclasses to plain data and back, strictly: what is saved is what ran, and a typo never passes silently."""

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args, get_origin

from rattle.errors import RattleError, unknown
from rattle.settings import Plain, check_value, types_of

T = TypeVar("T")
OPEN: dict[Any, Callable[[], Sequence[type]]] = {}  # protocol -> the dataclasses that are registered for it now


def to_plain(value: Any) -> Any:
    """Dataclasses become dicts; where several kinds are possible the dict says which under `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = types_of(type(value))
        plain = {}
        for field in dataclasses.fields(value):
            entry = to_plain(getattr(value, field.name))
            if isinstance(entry, dict) and has_kinds(hints[field.name]):
                entry = {"kind": type(getattr(value, field.name)).__name__, **entry}
            plain[field.name] = entry
        return plain
    return [to_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def replace_at(settings: T, path: str, value: Any) -> T:
    """The dataclass with one nested field changed: `replace_at(recipe, "objective.taylor.eta", 0.1)`.

    A part of the recipe may be given as plain data.
    """
    name, _, rest = path.partition(".")
    if rest:
        value = replace_at(getattr(settings, name), rest, value)
    elif isinstance(value, dict):
        value = convert(types_of(type(settings))[name], value, path)
    return dataclasses.replace(settings, **{name: value})  # type: ignore[type-var]


def flatten(plain: Any, prefix: str = "") -> Plain:
    """Nested plain settings by their dotted names.

    >>> flatten({"objective": {"order": 2}, "awp": None})
    {'objective.order': 2, 'awp': None}
    """
    if not isinstance(plain, dict):
        return {prefix: plain}
    found = {}
    for key, value in plain.items():
        found |= flatten(value, f"{prefix}.{key}".lstrip("."))
    return found


def changes(before: Any, after: Any, *, but: Sequence[str] = ()) -> str:
    """The settings in which two dataclasses differ, except those of the dotted names `but`; empty if there are none.

    >>> from rattle.weights import SAM
    >>> changes(SAM(rho=0.05), SAM(rho=0.1, warmup=5), but=["warmup"])
    'rho 0.05 -> 0.1'
    """
    old, new = flatten(to_plain(before)), flatten(to_plain(after))
    changed = [name for name in old | new if old.get(name) != new.get(name) and name not in but]
    return ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in changed)


def dataclass_members(hint: Any) -> list[type]:
    """The dataclasses among the alternatives of a type; for an open type, those that are registered for it."""
    members = []
    for member in alternatives(hint):
        members.extend(OPEN[member]() if member in OPEN else (member,))
    return [member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member)]


def has_kinds(hint: Any) -> bool:
    """Whether a field of that type says under `kind` which dataclass it holds."""
    return any(member in OPEN for member in alternatives(hint)) or len(dataclass_members(hint)) > 1


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union else (hint,)


def from_plain(kind: type[T], plain: Any, where: str = "") -> T:
    """The dataclass that the plain data describe; unknown keys and ill-typed values are refused with their place."""
    if not isinstance(plain, dict):
        raise RattleError(f"{where or kind.__name__}: expected settings, got {plain!r}")
    hints, settings = types_of(kind), {}
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key, value in plain.items():
        place = f"{where}.{key}".lstrip(".")
        if key not in names:
            raise unknown("setting", place, [f"{where}.{name}".lstrip(".") for name in names])
        settings[key] = convert(hints[key], value, place)
    return kind(**settings)


def convert(hint: Any, value: Any, where: str) -> Any:
    """One value of a given type."""
    members = alternatives(hint)
    if value is None and type(None) in members:
        return None
    if isinstance(value, bool) and bool in members:
        return value
    if kinds := dataclass_members(hint):
        return from_plain(*choose(kinds, value, where, named=has_kinds(hint)), where)
    for member in members:
        if get_origin(member) is tuple:
            if not isinstance(value, (list, tuple)):
                raise RattleError(f"{where} must be a list such as [{value!r}], got {value!r}")
            return tuple(convert(get_args(member)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if get_origin(member) is dict:
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                raise RattleError(f"{where} must be numbers by name, got {value!r}")
            return {key: convert(get_args(member)[1], entry, f"{where}.{key}") for key, entry in value.items()}
        if member is float and isinstance(value, (int, str)) and not isinstance(value, bool):
            value = parse_number(value, where)
    check_value(where, value, hint)
    return value


def parse_number(value: int | str, where: str = "value") -> float:
    """A float from a whole number, a decimal, or a fraction such as 8/255.

    >>> parse_number("8/255") == 8 / 255
    True
    """
    try:
        above, slash, below = str(value).partition("/")
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ArithmeticError):
        raise RattleError(f"{where} must be a number such as 0.03 or 8/255, got {value!r}") from None


def epsilon_text(epsilon: float) -> str:
    """A radius the way it is usually written: in 255ths where that is a whole number, except for multiples of 0.2.

    >>> epsilon_text(8 / 255), epsilon_text(0.2)
    ('8/255', '0.2')
    """
    pixels = round(epsilon * 255)
    whole = abs(epsilon * 255 - pixels) < 1e-6
    return f"{pixels}/255" if whole and pixels % 51 else f"{epsilon:.4g}"


def ball_text(threat: Any) -> str:
    """A threat in a few words, such as linf 8/255."""
    return f"{threat.norm} {epsilon_text(threat.epsilon)}"


def trade_off_text(setting: str, value: float) -> str:
    """A value of a trade-off setting, by its dotted name."""
    return epsilon_text(value) if setting.endswith("epsilon") else f"{value:g}"


def choose(kinds: list[type], value: Any, where: str, *, named: bool) -> tuple[type, Any]:
    """Which of several dataclasses a dict describes, and the dict without its `kind`."""
    if not named or not isinstance(value, dict):
        return kinds[0], value
    by_name = {kind.__name__: kind for kind in kinds}
    name = str(value.get("kind"))
    if name not in by_name:
        error = unknown(f"{where}.kind", name, by_name)
        raise RattleError(f"{error}; --plugin FILE.py registers your own") if where == "objective" else error
    return by_name[name], {key: entry for key, entry in value.items() if key != "kind"}
