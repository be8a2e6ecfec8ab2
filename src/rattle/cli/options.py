"""Options from types: tyro reads a dataclass, its comments are the help, and every number may be a fraction (8/255)."""

from typing import TypeVar

import tyro

from rattle.cli.help import description, name_positionals, short_docstrings
from rattle.errors import RattleError
from rattle.recipes.schema import number

T = TypeVar("T")
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
    settings = {
        "args": args,
        "prog": f"rattle {command}",
        "description": description(options),
        "config": (tyro.conf.AvoidSubcommands,),
    }
    with FRACTIONS, short_docstrings(default):
        return tyro.cli(options, **settings) if default is None else tyro.cli(options, default=default, **settings)


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
