"""Options from types: tyro reads a dataclass, its comments are the help, and every number may be a fraction (8/255)."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, TypeVar

import tyro

from rattle.cli.help import description, for_readers, name_positionals
from rattle.errors import RattleError
from rattle.recipes.schema import number

T = TypeVar("T")
ATTACK_SETTING = re.compile(r"--([A-Za-z][\w+-]*)\.([\w.-]+)(?:=(.*))?")  # --pgd40.step-size, --pgd40.step-size=0.01
FRACTIONS = tyro.constructors.ConstructorRegistry()


@FRACTIONS.primitive_rule
def fractions(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Floats are written as 0.031 or 8/255."""
    if info.type is not float:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER",
        instance_from_str=lambda words: number(words[0]),
        is_instance=lambda value: isinstance(value, (int, float)),
        str_from_instance=lambda value: [f"{value:.6g}"],
    )


def parse(options: type[T], args: list[str], command: str, *, default: T | None = None) -> T:
    """The options of a command; a mistyped one names the nearest and exits with code 2."""
    name_positionals(options)
    asked = bool({"-h", "--help"} & {*args})
    settings = {
        "args": args,
        "prog": f"rattle {command}",
        "description": description(options),
        "config": (tyro.conf.AvoidSubcommands, *((tyro.conf.DisallowNone,) if asked else ())),  # INT, not {None}|INT
    }
    with FRACTIONS, for_readers(default or options) if asked else nullcontext():
        return tyro.cli(options, **settings) if default is None else tyro.cli(options, default=default, **settings)


def take(args: list[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Pull `--name VALUE` and `--name=VALUE` out of the arguments; the values by name, and the arguments left.

    >>> take(["--epochs", "3", "--norm=l2", "--method", "at"], ("method", "norm"))
    ({'norm': 'l2', 'method': 'at'}, ['--epochs', '3'])
    """
    rest, found, words = [], {}, iter(args)
    for word in words:
        option, sign, value = word.partition("=")
        if option.removeprefix("--") not in names or not option.startswith("--"):
            rest.append(word)
            continue
        value = value if sign else next(words, "")
        if not value or value.startswith("--"):
            raise RattleError(f"{option} needs a value")
        found[option.removeprefix("--")] = value
    return found, rest


def take_kinds(args: list[str], choices: dict[str, dict[str, type | None]]) -> tuple[list[str], dict[str, type | None]]:
    """Pull `--field.kind NAME` out of the arguments: it chooses among the classes a field may hold."""
    rest, chosen, words = [], {}, iter(args)
    for word in words:
        option, _, value = word.partition("=")
        name = option.removeprefix("--").removesuffix(".kind").replace("-", "_")
        if not (option.endswith(".kind") and name in choices):
            rest.append(word)
            continue
        value = value or next(words, "")
        kinds = {kind.lower(): member for kind, member in choices[name].items()}
        if value.lower() not in kinds:
            raise RattleError(f"{option} must be one of {', '.join(choices[name])}, got {value!r}")
        chosen[name] = kinds[value.lower()]
    return rest, chosen


def take_attack_settings(args: list[str], options: type) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Pull `--ATTACK.FIELD VALUE` out of the arguments, as {attack: {field: value}}; a field alone is true.

    options: the dataclass of the command; dotted options that begin with a field of it, as --threat.epsilon, are left.
    """
    own, rest, found = {field.name for field in fields(options)}, [], {}
    words = list(args)
    while words:
        word = words.pop(0)
        match = ATTACK_SETTING.fullmatch(word)
        if match is None or match[1].replace("-", "_") in own:
            rest.append(word)
            continue
        value = match[3]
        if value is None:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        found.setdefault(match[1], {})[match[2].replace("-", "_")] = value
    return rest, found


def typed(text: str, kind: Any, where: str) -> Any:
    """What was written for a field of this type; what cannot be read as one stays text, for the field to refuse."""
    if kind is float:
        return number(text, where)
    if kind is int and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text) if kind is bool else text
