"""rattle recipes: the methods by group and how a recipe's name is built; the names; or the models of the zoo."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.models.registry import list_models
from rattle.objectives.base import GROUPS
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import SETTINGS, TIMM, describe, get_recipe, list_recipes, parts_of
from rattle.recipes.idle import idle_settings
from rattle.runs.zoo import entry, list_zoo

COLUMN = 18  # where texts begin: after the longest name of a method
WIDTH = 80


@dataclass(frozen=True)
class Options:
    """Tell the methods and how the name of a recipe is built; with TEXT list the recipes whose names contain it, or
    print one as YAML. Any model name may stand where preact18 does."""

    filter: Annotated[str, tyro.conf.Positional] = ""  # list the names that contain this, e.g. cifar10-l2
    all: bool = False  # list every name
    zoo: bool = False  # list the trained models in the package instead, with what was measured of them
    yaml: bool = False  # print the one recipe of that name as YAML, to save and edit


def read(args: list[str]) -> Options:
    """The options; raises RattleError for a recipe that is not there."""
    options = parse(Options, args, "recipes")
    if options.yaml:
        get_recipe(options.filter)
    return options


def main(args: list[str]) -> None:
    options = read(args)
    if options.yaml:
        say(get_recipe(options.filter).to_yaml(), end="")
        return
    if not (options.filter or options.all or options.zoo):
        print("\n".join([*method_lines(), *name_lines()]))
        return
    names, line = (list_zoo(), zoo_line) if options.zoo else (list_recipes(), describe)
    found = [name for name in names if options.filter.removeprefix("zoo:") in name]
    if not found and not options.zoo and parts_of(options.filter):
        found = [options.filter]  # spelled out though not listed: -sam, -fast, another network
    if not found:
        what, command = (
            ("model of the zoo", "rattle recipes --zoo") if options.zoo else ("recipe's name", "rattle recipes --all")
        )
        raise RattleError(f"no {what} contains {options.filter!r}; `{command}` lists all")
    width = max(map(len, found)) + len("zoo:" if options.zoo else "")
    for name in found:
        say(f"{'zoo:' * options.zoo + name:<{width}}  {line(name)}")
    if options.filter in found and not options.zoo:
        print("\nsettings that do nothing in it:")
        for setting, reason in idle_settings(get_recipe(options.filter)).items():
            say(f"  --{setting:<24} {reason}")


def method_lines() -> Iterator[str]:
    """The methods by group, a line each."""
    for group, heading in GROUPS.items():
        members = [method for method in METHODS.values() if method.group == group]
        yield from [heading, *(entry_line(m.name, f"{m.summary} ({m.paper})".strip()) for m in members), ""]


def name_lines() -> list[str]:
    """How a recipe's name is built."""
    taylor = [name for name, method in METHODS.items() if not hasattr(method.objective, "taylor")]
    awp = [name for name, method in METHODS.items() if method.awp]
    norms = dict.fromkeys(norm for setting in SETTINGS.values() for norm in setting.step_sizes)
    rows = {
        "DATASET": ", ".join(SETTINGS),
        "NORM": ", ".join(norms),
        "MODEL": f"{', '.join(list_models())}; cnn for the digits; {', '.join(TIMM)} of timm",
        "METHOD": "one of the above, and then, each if wanted:",
        "  -awp": f"adversarial weight perturbation (Wu et al. 2020): {', '.join(awp)}",
        "  -sam, -asam": "sharpness-aware minimisation in its place, on any method",
        "  -1st, -2nd": f"the paper's Taylor terms; not for {', '.join(taylor)}",
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
    found = entry(name)
    accuracies = {"clean": found["clean"], **found["attacks"]}
    text = ", ".join(f"{key} {100 * value['accuracy']:.1f}" for key, value in accuracies.items())
    return f"{text} (%, n {found['n']})"
