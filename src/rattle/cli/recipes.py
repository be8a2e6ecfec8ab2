"""rattle recipes: the named recipes, one line each."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.recipes.catalog import describe, get_recipe, list_recipes


@dataclass(frozen=True)
class Options:
    """List the named recipes, or print one as YAML. Any model name may stand where preact18 does."""

    filter: Annotated[str, tyro.conf.Positional] = ""  # list only names that contain this, e.g. cifar10-l2
    yaml: bool = False  # print the one recipe of that name as YAML, to save and edit


def main(args: list[str]) -> None:
    options = parse(Options, args, "recipes")
    if options.yaml:
        print(get_recipe(options.filter).to_yaml(), end="")
        return
    found = [name for name in list_recipes() if options.filter in name]
    if not found:
        raise RattleError(f"no recipe's name contains {options.filter!r}; `rattle recipes` lists all")
    width = max(map(len, found))
    for name in found:
        print(f"{name:<{width}}  {describe(name)}")
