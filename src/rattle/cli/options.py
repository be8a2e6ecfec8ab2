"""Options from types: tyro reads a dataclass, its comments are the help, and every number may be a fraction (8/255)."""

import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from rattle.cli import names
from rattle.errors import RattleError
from rattle.recipes.schema import number

T = TypeVar("T")
POSITIONALS = {"path": "RUN", "runs": "RUN", "filter": "TEXT"}  # a field's name -> what help calls the argument
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


def dataclasses_of(value: object) -> Iterator[type]:
    """The classes of settings and of the settings in them."""
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in fields(value):
            yield from dataclasses_of(getattr(value, field.name))


@contextmanager
def short_docstrings(settings: object) -> Iterator[None]:
    """Let help of nested settings show the first paragraph of their docstrings: what follows is for readers of code."""
    before = {kind: kind.__doc__ for kind in dataclasses_of(settings)}
    try:
        for kind, text in before.items():
            kind.__doc__ = (text or "").split("\n\n")[0]
        yield
    finally:
        for kind, text in before.items():
            kind.__doc__ = text


def description(options: type) -> str:
    """What help says of a command: the first paragraph of its options' docstring, and every attack if it takes some."""
    about = " ".join((options.__doc__ or "").split("\n\n")[0].split())
    if "attacks" in options.__dataclass_fields__:  # pyright: ignore[reportAttributeAccessIssue]
        about += f" The attacks are {', '.join(names.attacks())}; pgd and cw take any number of steps."
    return textwrap.fill(
        about, min(shutil.get_terminal_size().columns, 120), subsequent_indent="  ", break_on_hyphens=False
    )


@cache
def name_positionals(options: type) -> None:
    """Let help call positional arguments by what they are, RUN, where tyro says STR."""
    for name, hint in get_type_hints(options, include_extras=True).items():
        choices = get_origin(get_args(hint)[0]) is Literal if get_origin(hint) is Annotated else True
        if name in names.positionals(options.__module__, options.__name__) and not choices:
            several = get_origin(get_args(hint)[0]) is tuple
            metavar = POSITIONALS.get(name, name.upper()) + (" ..." if several else "")
            metavar = f"[{metavar}]" if hasattr(options, name) else metavar  # it has a default
            options.__annotations__[name] = Annotated[hint, tyro.conf.arg(metavar=metavar)]


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


def new_file(path: str, overwrite: bool) -> Path:
    """A file to write that is not there yet, or may be replaced; refused before any work is done for it."""
    if Path(path).exists() and not overwrite:
        raise RattleError(f"{path} is there already: --overwrite replaces it, or choose another name")
    return Path(path)


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
