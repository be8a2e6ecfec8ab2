"""Mistakes that can be told without torch, so that they are told at once: names of options, recipes, attacks, runs.

Refuses only what the command itself would refuse; everything else is left to it.
"""

import re
import sys
from itertools import takewhile
from pathlib import Path

from rattle.cli import names
from rattle.errors import RattleError, unknown
from rattle.paper.tables import table

PLAIN = r"[A-Za-z0-9][A-Za-z0-9+-]*"  # a name, not a path, a file of one's own or something with settings
TRAINS = ("train", "sweep")  # commands whose first word is a recipe


def check(command: str, args: list[str]) -> None:
    """Raise RattleError for what is mistyped; `args` are the words after the command."""
    if "torch" in sys.modules or not args or {"-h", "--help"} & {*args}:  # with torch here, the command is fast itself
        return
    try:
        look(command, args)
    except RattleError:
        raise
    except (LookupError, OSError, ValueError, AssertionError):  # the source is not there, or reads otherwise
        return


def look(command: str, args: list[str]) -> None:
    """`check`, whatever is imported already."""
    first = args[0]
    if command in TRAINS and not first.startswith("-"):
        check_recipe(first)
    if command == "recipes" and args == [first.lstrip("-")] and not is_listed(first):
        raise RattleError(f"no recipe's name contains {first!r}; `rattle recipes --all` lists all")
    if command == "paper" and first.isascii() and first.isdecimal():
        table(int(first))  # raises RattleError if there is none
    if command == "data":
        check_data(args)
    if command == "data" or first == "custom":  # these have options of their own
        return
    check_options(command, args)
    for name in values(args, "--attacks"):
        if re.fullmatch(PLAIN, name) and not names.is_attack(name):
            raise unknown("attack", name, names.attacks())
    given = list(takewhile(lambda word: not word.startswith("-"), args))
    fields = names.positionals(f"rattle.cli.{command}")
    if fields[:1] == ["path"]:
        check_paths(given[:1], "run or checkpoint")
    if fields == ["runs"]:
        check_paths(given, "run folder")
    if command == "transfer":
        check_paths(values(args, "--from") + values(args, "--to"), "run or checkpoint")


def check_recipe(text: str) -> None:
    if Path(text).suffix in (".yaml", ".yml") and not Path(text).is_file():
        raise RattleError(f"there is no recipe file {text}")
    if re.fullmatch(PLAIN, text) and "-" in text and not names.is_recipe(text) and not Path(text).exists():
        raise unknown("recipe", text, names.recipes())


def check_data(args: list[str]) -> None:
    sources, downloads = names.keys("rattle.data.registry", "SOURCES"), names.keys("rattle.data.urls", "URLS")
    if not args[0].startswith("-") and args[0] not in ("get", "show"):
        raise unknown("rattle data", args[0], ["get", "show"])
    if args[0] == "get" and not {*args[1:2]} <= {*sources, *downloads} and re.fullmatch(PLAIN, args[1]):
        raise unknown("dataset to download", args[1], downloads)


def check_options(command: str, args: list[str]) -> None:
    valid = [*names.options(f"rattle.cli.{command}")]
    if command == "sweep":
        valid += names.options("rattle.cli.train")
    ours = command in TRAINS and names.is_recipe(args[0])  # its objective is one of the package's
    opened = tuple(name.removesuffix("*") for name in valid if name.endswith("*") and not ours)
    for word in args:
        option = word.partition("=")[0].replace("_", "-")
        known = {option, f"{option}.kind"} & {*valid} or option.startswith(("--tyro-", *opened))
        known = known or ("--attacks" in valid and names.is_attack(option[2:].partition(".")[0]))  # --pgd20.step-size
        if option.startswith("--") and not known:
            raise unknown(f"option of rattle {command}", option, [name for name in valid if not name.endswith("*")])


def check_paths(given: list[str], kind: str) -> None:
    for path in given:
        if ":" not in path and not Path(path).exists():  # hub and zoo names have a colon
            raise RattleError(f"there is no {kind} {path}")


def values(args: list[str], option: str) -> list[str]:
    """The words that follow an option."""
    found: list[str] = []
    for at, word in enumerate(args):
        if word == option:
            found += takewhile(lambda word: not word.startswith("--"), args[at + 1 :])
        elif word.startswith(f"{option}="):
            found.append(word.partition("=")[2])
    return found


def is_listed(text: str) -> bool:
    """Whether `rattle recipes` has something to print: a recipe of that name, or names that contain it."""
    return names.is_recipe(text) or any(text in name for name in names.recipes())
