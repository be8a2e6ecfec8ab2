"""rattle train: a recipe, by name or from YAML, with typed overrides."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rattle.cli import custom
from rattle.cli.console import Console, say
from rattle.cli.options import is_given, parse, take_options, usage_first
from rattle.errors import RattleError
from rattle.models.registry import check_network_name
from rattle.recipes.names import check_recipe
from rattle.runs.paths import Run, slugify

if TYPE_CHECKING:
    from rattle.recipes.recipe import Recipe

USAGE = f"""usage: rattle train RECIPE [options]

RECIPE is a name (`rattle recipes` lists them), a YAML file or a run folder; or `custom`, for images and networks of
your own. `rattle train RECIPE --help` documents every setting of that recipe.

  rattle train RUN --resume                 resumes a run that was stopped
  rattle train RUN --epochs 300 --resume    makes a run longer, a finished one too

{custom.USAGE}"""


@dataclass(frozen=True)
class Options:
    """Train a recipe. Fields that hold one of several kinds are switched by name: --schedule.kind OneCycle,
    --average.kind EMA, --awp.kind AWP, SAM or ASAM (or none)."""

    out: str = ""  # run folder; runs/NAME-seedN when not given
    resume: bool = False  # continue the run in --out, bit for bit; a RUN given in place of the recipe needs no --out
    overwrite: bool = False  # replace the run in --out
    mean: tuple[float, ...] = ()  # normalisation of the weights of --init, per channel, if they were trained with one
    std: tuple[float, ...] = ()  # std per channel, with --mean
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a YAML file or a run names as its model
    log: Literal["tensorboard", "wandb", "mlflow", "none"] = (
        "tensorboard"  # besides metrics.jsonl; wandb, mlflow: extras
    )


def main(args: list[str]) -> None:
    usage_first(args, USAGE, Options, "train RECIPE")
    if "WORLD_SIZE" not in os.environ:  # ranks refuse together, below
        if args[0] == "custom":
            custom.check_names(args[1:])
        else:
            check_recipe(args[0])
    from rattle.cli.overview import overview
    from rattle.models.user import is_code
    from rattle.runs import distributed
    from rattle.training.loop import fit

    with distributed.process_group():
        restarts = distributed.any_rank(distributed.restart_count())  # a machine that came back counts none
        with distributed.raise_on_all_ranks():
            options, recipe, out = read_arguments(args, resume=restarts > 0)
            images = None
            if args[0] == "custom":
                recipe, images = custom.fit_to_images(recipe, args)
        console = Console()
        console.begin = lambda state: console.log(overview(state))
        run = fit(
            recipe,
            out,
            data=images,
            resume=options.resume,
            overwrite=options.overwrite,
            log=options.log,
            console=console,
            trust_code=options.trust_code,
        )
        if not distributed.is_main():
            return
    trust = " --trust-code" if is_code(recipe.model) else ""
    say(f"trained into {run.folder}; evaluate it with: rattle evaluate {run.folder} --attacks pgd20 cw20{trust}")


def read_arguments(args: list[str], *, resume: bool = False) -> tuple[Options, Recipe, str]:
    """The options, the recipe and the run folder; raises RattleError for what takes no images to refuse.

    resume: torchrun has started the job again (--max-restarts), so resume and overwrite nothing.
    """
    from rattle.recipes.catalog import resolve
    from rattle.runs.lock import check_folder

    text, rest = args[0], args[1:]
    if text == "custom":
        base, rest = custom.custom_recipe(rest)
    else:
        base = resolve(text)
    options, recipe = with_options(base, rest, f"train {text}")
    if options.mean or options.std:
        if len(options.mean) != len(options.std):
            raise RattleError("--mean and --std go together: a number for each channel")
        recipe = replace(recipe, normalise=(*options.mean, *options.std))
    refuse_unsaid([] if options.trust_code else [recipe], args)
    if ":" in recipe.model and ":" not in base.model and not is_given(rest, "width"):
        recipe = replace(recipe, width=None)  # a width chosen for the recipe's own network means nothing to the user's
    out = options.out or folder_of(text, recipe, options.resume)
    run = Run(Path(out))
    if options.resume and run.exists() and not is_given(rest, "epochs"):
        check_length(run, recipe)
    if resume:
        options = replace(options, resume=True, overwrite=False)
    check_folder(run, resume=options.resume, overwrite=options.overwrite)
    recipe.data.check()
    check_network_name(recipe.model)
    if not (options.resume and run.exists()):
        recipe.refuse_idle()
    return options, recipe, out


def with_options(recipe: Recipe, args: list[str], command: str) -> tuple[Options, Recipe]:
    """The command's own options, and the recipe with the settings that are given."""
    from rattle.recipes.recipe import Recipe

    choices = kinds()
    chosen, rest = take_options(args, choices)
    for option, value in chosen.items():
        members = choices[option]
        name = next((name for name in members if name.lower() == value.lower()), None)
        if name is None:
            raise RattleError(f"--{option} must be one of {', '.join(members)}, got {value!r}")
        recipe = replace(recipe, **{option.removesuffix(".kind"): members[name]()})
    no_prefix = tyro.conf.arg(name="")
    command_line = make_dataclass(
        "CommandLine", [("own", Annotated[Options, no_prefix]), ("recipe", Annotated[Recipe, no_prefix])]
    )
    command_line.__doc__ = Options.__doc__
    parsed: Any = parse(command_line, rest, command, default=command_line(Options(), recipe))
    return parsed.own, parsed.recipe


def kinds() -> dict[str, dict[str, Callable[[], object]]]:
    """The options that choose what a field of a recipe holds, such as average.kind, with what they choose by name."""
    from rattle.recipes.recipe import Recipe
    from rattle.recipes.schema import alternatives, dataclass_members, has_kinds
    from rattle.settings import types_of

    found: dict[str, dict[str, Callable[[], object]]] = {}
    for name, hint in types_of(Recipe).items():
        members = dataclass_members(hint)
        optional = type(None) in alternatives(hint)
        if has_kinds(hint) or (members and optional):
            found[f"{name}.kind"] = {member.__name__: member for member in members}
            if optional:
                found[f"{name}.kind"]["none"] = lambda: None
    return found


def folder_of(text: str, recipe: Recipe, resume: bool) -> str:
    """Where to train when no --out is given: a run that is resumed by its folder stays there."""
    given = Path(text).parent if Path(text).name == Run.recipe.name else Path(text)
    if resume and text != "custom" and Run(given).exists():
        return str(given)
    return f"runs/{slugify(recipe.name)}-seed{recipe.seed}"


def check_length(run: Run, recipe: Recipe) -> None:
    """Refuse to make a run longer without having been asked to: its recipe was named, and that one has more epochs."""
    from rattle.recipes.catalog import resolve

    before = resolve(str(run.folder)).epochs
    if recipe.epochs > before:
        choice = f"--epochs {before} resumes it, --epochs {recipe.epochs} makes it longer"
        raise RattleError(f"the run in {run.folder} has {before} epochs, the recipe {recipe.epochs}: {choice}")


def refuse_unsaid(recipes: Sequence[Recipe], args: list[str]) -> None:
    """Refuse code that a YAML file or a run names as its model and the command line, whose words are args, does not."""
    from rattle.models.user import refuse_code
    from rattle.training.teachers import code_of

    said = {part for word in args for part in (word, word.partition("=")[2])}
    for recipe in recipes:
        refuse_code([name for name in code_of(recipe) if name not in said], args[0])
