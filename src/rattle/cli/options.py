"""Options from types: tyro reads a dataclass, its comments are the help, and every number may be a fraction (8/255).

Imports no torch, like the top of every file here: names and paths are checked before the library is imported.
"""

import os
from argparse import SUPPRESS, ArgumentError, ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from rattle.attacks.registry import check_attack
from rattle.errors import RattleError
from rattle.recipes.schema import epsilon_text, parse_number

T = TypeVar("T")
RunPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunPaths = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
FRACTIONS = tyro.constructors.ConstructorRegistry()


@FRACTIONS.primitive_rule
def fractions(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Floats are written as 0.031 or 8/255."""
    if info.type is not float:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER",
        instance_from_str=lambda words: parse_number(words[0]),
        is_instance=lambda value: isinstance(value, (int, float)),
        str_from_instance=lambda value: [text if "/" in (text := epsilon_text(value)) else f"{value:.6g}"],
    )


@FRACTIONS.primitive_rule
def normalisation_option(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """--normalise by the training images, or --normalise MEANS STDS."""
    if info.type != bool | tuple[float, ...]:
        return None

    def read(words: list[str]) -> bool | tuple[float, ...]:
        if words in ([], ["True"], ["False"]):
            return words != ["False"]
        return tuple(map(parse_number, words))

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="[True | False | MEANS STDS]",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, bool | tuple),
        str_from_instance=lambda value: [f"{each:.6g}" for each in value] if isinstance(value, tuple) else [str(value)],
    )


def parse(options: type[T], args: list[str], command: str, *, default: T | None = None) -> T:
    """The options of a command; a mistyped one names the nearest and exits with code 2."""
    config: list[Any] = [tyro.conf.AvoidSubcommands]
    if "--help" in args or "-h" in args:
        config.append(tyro.conf.DisallowNone)  # INT, not {None}|INT
    settings: dict[str, Any] = {"args": args, "prog": f"rattle {command}", "config": config}
    if default is not None:
        settings["default"] = default
    with FRACTIONS:
        return tyro.cli(options, **settings)


def usage_first(args: list[str], usage: str, options: type, command: str) -> None:
    """Print how a command with a free form is called, and its own options, where that is asked or nothing is given."""
    if not args or args[0] in ("-h", "--help"):
        print(usage)
        parse(options, ["--help"], command)


def check_exists(*paths: str) -> None:
    """Refuse paths of runs, checkpoints and results where nothing is; hf:OWNER/NAME and zoo:NAME are no paths.

    The ranks of a torchrun job find out together, later.
    """
    for path in paths:
        if "WORLD_SIZE" not in os.environ and ":" not in path and not Path(path).exists():
            raise RattleError(f"there is no run, checkpoint or folder of results {path}")


def check_attacks(names: Iterable[str]) -> None:
    """Refuse names of attacks that do not exist, and none at all."""
    if not names:
        raise RattleError("--attacks needs at least one name, such as pgd20 or autoattack")
    for name in names:
        check_attack(name)


def given(options: object, *names: str) -> dict[str, Any]:
    """Those of these options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def is_given(args: list[str], name: str) -> bool:
    """Whether an option is among the arguments, in any spelling."""
    return any(word.partition("=")[0].replace("_", "-") == f"--{name}" for word in args)


def take_options(
    args: list[str], names: Iterable[str], *, alone: str | None = None
) -> tuple[dict[str, str], list[str]]:
    """Pull `--name VALUE` and `--name=VALUE` out of the arguments; the values by name, and the arguments left.

    alone: the value of a name that is given without one, which is refused when this is None.

    >>> take_options(["--epochs", "3", "--norm=l2", "--method", "at"], ("method", "norm"))
    ({'norm': 'l2', 'method': 'at'}, ['--epochs', '3'])
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=SUPPRESS)
    for name in names:
        parser.add_argument(f"--{name}", dest=name, const=alone, nargs=None if alone is None else "?")
    try:
        found, rest = parser.parse_known_args(args)
    except ArgumentError as mistake:
        raise RattleError(str(mistake)) from None
    return vars(found), rest
