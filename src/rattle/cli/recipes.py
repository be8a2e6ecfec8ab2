"""rattle recipes: the named recipes, or the trained models of the zoo, one line each."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.recipes.catalog import describe, get_recipe, list_recipes, parts_of
from rattle.recipes.idle import idle_settings
from rattle.runs.zoo import entry, list_zoo


@dataclass(frozen=True)
class Options:
    """List the named recipes, or print one as YAML. Any model name may stand where preact18 does."""

    filter: Annotated[str, tyro.conf.Positional] = ""  # list only names that contain this, e.g. cifar10-l2
    zoo: bool = False  # list the trained models in the package instead, with what was measured of them
    yaml: bool = False  # print the one recipe of that name as YAML, to save and edit


def main(args: list[str]) -> None:
    options = parse(Options, args, "recipes")
    if options.yaml:
        say(get_recipe(options.filter).to_yaml(), end="")
        return
    names, line = (list_zoo(), zoo_line) if options.zoo else (list_recipes(), describe)
    found = [name for name in names if options.filter.removeprefix("zoo:") in name]
    if not found and not options.zoo and parts_of(options.filter):
        found = [options.filter]  # spelled out though not listed: -sam, -fast, another network
    if not found:
        what, command = (
            ("model of the zoo", "rattle recipes --zoo") if options.zoo else ("recipe's name", "rattle recipes")
        )
        raise RattleError(f"no {what} contains {options.filter!r}; `{command}` lists all")
    width = max(map(len, found)) + len("zoo:" if options.zoo else "")
    for name in found:
        say(f"{'zoo:' * options.zoo + name:<{width}}  {line(name)}")
    if options.filter in found and not options.zoo:
        print("\nsettings that do nothing in it:")
        for setting, reason in idle_settings(get_recipe(options.filter)).items():
            say(f"  --{setting:<24} {reason}")


def zoo_line(name: str) -> str:
    """The recorded accuracies of a model of the zoo."""
    found = entry(name)
    accuracies = {"clean": found["clean"], **found["attacks"]}
    text = ", ".join(f"{key} {100 * value['accuracy']:.1f}" for key, value in accuracies.items())
    return f"{text} (%, n {found['n']})"
