"""rattle train: a recipe, by name or from YAML, with typed overrides."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Annotated, get_type_hints

import tyro

from rattle.cli.console import Console
from rattle.cli.options import parse, take_kinds
from rattle.errors import RattleError
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import alternatives, dataclass_members, has_kinds
from rattle.runs import distributed
from rattle.runs.paths import slugify
from rattle.training.loggers import LogTarget
from rattle.training.loop import fit

USAGE = """usage: rattle train RECIPE [options]

RECIPE is a name (`rattle recipes` lists them), a YAML file or a run folder.
`rattle train RECIPE --help` documents every setting of that recipe.
"""


@dataclass(frozen=True)
class Options:
    """Train a recipe. Fields that hold one of several kinds are switched by name: --schedule.kind OneCycle,
    --average.kind EMA, --awp.kind AWP (or none)."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: str = ""  # run folder; runs/NAME-seedN when not given
    resume: bool = False  # continue the run in --out, bit for bit
    overwrite: bool = False  # replace the run in --out
    log: LogTarget = "tensorboard"  # where the figures go besides metrics.jsonl; wandb is an extra, offline


def kinds() -> dict[str, dict[str, type | None]]:
    """For each field of a recipe that holds one of several classes, their names."""
    found: dict[str, dict[str, type | None]] = {}
    hints = get_type_hints(Recipe)
    for field in fields(Recipe):
        members = dataclass_members(hints[field.name])
        optional = type(None) in alternatives(hints[field.name])
        if has_kinds(hints[field.name]) or (members and optional):
            found[field.name] = {m.__name__: m for m in members} | ({"none": None} if optional else {})
    return found


def options_of(recipe: Recipe, text: str, args: list[str], command: str = "train") -> Options:
    rest, chosen = take_kinds(args, kinds())
    recipe = replace(recipe, **{name: kind() if kind else None for name, kind in chosen.items()})
    with typed_as(Recipe, "objective", type(recipe.objective)):
        return parse(Options, rest, f"{command} {text}", default=Options(recipe=recipe))


@contextmanager
def typed_as(settings: type, field: str, kind: type) -> Iterator[None]:
    """Let the parser see the class that an open field holds now: its fields are the options."""
    declared = settings.__annotations__[field]
    settings.__annotations__[field] = kind
    try:
        yield
    finally:
        settings.__annotations__[field] = declared


def recipe_with(recipe: Recipe, text: str, args: list[str], command: str) -> Recipe:
    """A recipe with the settings that are given as on the command line."""
    return options_of(recipe, text, args, command).recipe


def main(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return
    if args[0].startswith("-"):
        raise RattleError(f"the recipe comes first: rattle train RECIPE {args[0]} ...")
    options = options_of(resolve(args[0]), args[0], args[1:])
    recipe = options.recipe
    if ":" in recipe.model and not any(word.partition("=")[0] == "--width" for word in args[1:]):
        recipe = replace(recipe, width=None)  # a width chosen for the recipe's own network means nothing to the user's
    out = options.out or f"runs/{slugify(recipe.name)}-seed{recipe.seed}"
    with distributed.process_group():
        again = distributed.restart_count() > 0  # torchrun --max-restarts: resume, and replace nothing
        how = {"resume": options.resume or again, "overwrite": options.overwrite and not again}
        run = fit(recipe, out, **how, log=options.log, console=Console())
        if not distributed.is_main():
            return
    print(f"trained into {run.folder}; evaluate it with: rattle evaluate {run.folder} --attacks pgd20 cw20")
