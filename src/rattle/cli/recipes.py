"""rattle recipes: the methods by group and how a recipe's name is built; the names; or the models of the zoo."""

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.models.registry import list_models
from rattle.objectives.registry import METHOD_GROUPS, METHODS
from rattle.recipes.names import DATASETS, TIMM, list_recipes, split_method, split_recipe
from rattle.runs import zoo

COLUMN = 18  # where texts begin: after the longest name of a method
WIDTH = 80


@dataclass(frozen=True)
class Options:
    """List the methods and how the name of a recipe is built; with TEXT the recipes whose names contain it.
    Any model name can replace preact18."""

    filter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = ""  # a part of names, or a name
    all: bool = False  # list every name
    zoo: bool = False  # list the trained models in the package instead, with their measured accuracies
    yaml: bool = False  # print the one recipe of that name as YAML, to save and edit


def main(args: list[str]) -> None:
    options = parse(Options, args, "recipes")
    if options.yaml:
        split_recipe(options.filter)
        from rattle.recipes.catalog import get_recipe

        say(get_recipe(options.filter).to_yaml(), end="")
    elif options.zoo:
        print_names(zoo.list_zoo(), options.filter.removeprefix("zoo:"), zoo_line, "zoo:")
    elif options.filter and is_recipe(options.filter):
        from rattle.recipes.catalog import describe_recipe

        say(f"{options.filter}  {describe_recipe(options.filter)}")
    elif options.filter or options.all:
        print_names(list_recipes(), options.filter, recipe_line)
    else:
        print("\n".join([*method_lines(), *name_lines()]))


def print_names(names: list[str], text: str, line: Callable[[str], str], prefix: str = "") -> None:
    """The names that contain a text, a line each."""
    found = [name for name in names if text in name]
    if not found:
        what = "model of the zoo" if prefix else "recipe's name"
        command = "rattle recipes --zoo" if prefix else "rattle recipes --all"
        raise RattleError(f"no {what} contains {text!r}; `{command}` lists all")
    width = max(map(len, found))
    for name in found:
        say(f"{prefix}{name:<{width}}  {line(name)}")


def is_recipe(name: str) -> bool:
    try:
        split_recipe(name)
    except RattleError:
        return False
    return True


def recipe_line(name: str) -> str:
    """What a recipe's method is."""
    method, _ = split_method(split_recipe(name)[3])
    entry = METHODS.entry(method)
    return f"{entry.summary} ({entry.paper})"


def method_lines() -> Iterator[str]:
    """The methods by group, a line each."""
    for group, heading in METHOD_GROUPS.items():
        yield heading
        for name, entry in METHODS.entries.items():
            if entry.group == group:
                yield entry_line(name, f"{entry.summary} ({entry.paper})")
        yield ""


def name_lines() -> list[str]:
    """How a recipe's name is built."""
    rows = {
        "DATASET": ", ".join(DATASETS),
        "NORM": "linf, l2",
        "MODEL": f"{', '.join(list_models())}; cnn for the digits; {', '.join(TIMM)} of timm",
        "METHOD": "one of the above, and then, each if wanted:",
        "  -awp": "adversarial weight perturbation (Wu et al. 2020), on many methods",
        "  -sam, -asam": "sharpness-aware minimisation in its place, on any method",
        "  -1st, -2nd": "the paper's Taylor terms, on most methods",
        "  -released": "trades-2nd and trades-awp-2nd as the authors released them",
        "  -fast": "about a third of the cost",
    }
    return [
        "A recipe is named DATASET-NORM-MODEL-METHOD: cifar10-linf-preact18-trades-2nd",
        *(entry_line(name, text) for name, text in rows.items()),
        "",
        "rattle recipes TEXT   the names that contain TEXT; --all: every name",
        "rattle recipes NAME   what that recipe trains, and what does nothing in it",
        "rattle train NAME     trains it; each method: docs/methods/index.md",
    ]


def entry_line(name: str, text: str) -> str:
    """A name, and what it stands for beside it."""
    first = f"  {name}".ljust(COLUMN)
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * COLUMN, break_on_hyphens=False)


def zoo_line(name: str) -> str:
    """The recorded accuracies of a model of the zoo."""
    found = zoo.entry(name)
    accuracies = {"clean": found["clean"], **found["attacks"]}
    text = ", ".join(f"{key} {100 * value['accuracy']:.1f}" for key, value in accuracies.items())
    return f"{text} (%, n {found['n']})"
