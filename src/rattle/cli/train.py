"""rattle train: a recipe, by name or from YAML, with typed overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from rattle.cli import custom
from rattle.cli.console import Console, say
from rattle.cli.options import parse, take, take_kinds
from rattle.cli.overview import overview
from rattle.errors import RattleError
from rattle.models.registry import find_builder
from rattle.models.user import is_code, refuse_code
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import alternatives, dataclass_members, has_kinds
from rattle.runs import distributed
from rattle.runs.lock import check_folder
from rattle.runs.paths import Run, slugify
from rattle.training.loggers import LogTarget
from rattle.training.loop import fit
from rattle.training.state import TrainState
from rattle.training.teachers import code_of

USAGE = f"""usage: rattle train RECIPE [options]

RECIPE is a name (`rattle recipes` lists them), a YAML file or a run folder; or `custom`, for what is your own.
`rattle train RECIPE --help` documents every setting of that recipe.

  rattle train RUN --resume                 goes on with a run that was stopped
  rattle train RUN --epochs 300 --resume    makes a run longer, a finished one too

{custom.USAGE}"""


@dataclass(frozen=True)
class Options:
    """Train a recipe. Fields that hold one of several kinds are switched by name: --schedule.kind OneCycle,
    --average.kind EMA, --awp.kind AWP, SAM or ASAM (or none)."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: str = ""  # run folder; runs/NAME-seedN when not given
    resume: bool = False  # continue the run in --out, bit for bit; a RUN given in place of the recipe needs no --out
    overwrite: bool = False  # replace the run in --out
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a YAML file or a run names as its model
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
    rest, chosen = take_kinds(none_held_out(args), kinds())
    recipe = replace(recipe, **{name: kind() if kind else None for name, kind in chosen.items()})
    with typed_as(Recipe, "objective", type(recipe.objective)):
        return parse(Options, rest, f"{command} {text}", default=Options(recipe=recipe))


def none_held_out(args: list[str]) -> list[str]:
    """`--data.val-size none`, in any spelling, is 0: hold out nothing."""
    found, rest = take(args, ("data.val-size", "data.val_size"))
    return rest + [f"--{name}={'0' if value.lower() == 'none' else value}" for name, value in found.items()]


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


def folder_of(text: str, recipe: Recipe, resume: bool) -> str:
    """Where to train when no --out is given: a run that is resumed by its folder stays there."""
    given = Path(text).parent if Path(text).name == Run.recipe.name else Path(text)
    if resume and text != "custom" and Run(given).exists():
        return str(given)
    return f"runs/{slugify(recipe.name)}-seed{recipe.seed}"


def check_length(run: Run, recipe: Recipe) -> None:
    """Refuse to make a run longer without having been asked to: its recipe was named, and that one has more epochs."""
    before = resolve(str(run.folder)).epochs if run.exists() else recipe.epochs
    if recipe.epochs > before:
        choice = f"--epochs {before} goes on with it, --epochs {recipe.epochs} makes it longer"
        raise RattleError(f"the run in {run.folder} has {before} epochs, the recipe {recipe.epochs}: {choice}")


def refuse_unsaid(recipes: Sequence[Recipe], args: list[str]) -> None:
    """Refuse code that a YAML file or a run names as its model and the command line, whose words are args, does not."""
    said = {part for word in args for part in (word, word.partition("=")[2])}
    refuse_code([name for recipe in recipes for name in code_of(recipe) if name not in said], args[0])


class TrainConsole(Console):
    """Describes the run before it trains."""

    def begin(self, state: TrainState) -> None:
        self.log(overview(state))


def main(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return
    with distributed.process_group():
        restarts = distributed.any_rank(distributed.restart_count())  # a machine that came back counts none
        with distributed.raise_on_all_ranks():
            options, out, how = read(args, restarts)
            recipe, images = (
                custom.fit_to_images(options.recipe, args) if args[0] == "custom" else (options.recipe, None)
            )
        trusted = options.trust_code  # what a teacher's checkpoint names; the rest is said, see `refuse_unsaid`
        run = fit(recipe, out, data=images, **how, log=options.log, console=TrainConsole(), trust_code=trusted)
        if not distributed.is_main():
            return
    trust = " --trust-code" if is_code(recipe.model) else ""
    say(f"trained into {run.folder}; evaluate it with: rattle evaluate {run.folder} --attacks pgd20 cw20{trust}")


def read(args: list[str], restarts: int | None = None) -> tuple[Options, str, dict[str, Any]]:
    """The options with the recipe to train, the run folder, and whether to resume or overwrite it.

    restarts: how often torchrun has started the job again, on the machine that counts most; None: as this one counts.
    Raises RattleError for what takes no network and no images to refuse.
    """
    if args[0].startswith("-"):
        raise RattleError(f"the recipe comes first: rattle train RECIPE {args[0]} ...")
    text, rest = args[0], args[1:]
    if text == "custom":
        if {"-h", "--help"} & {*rest}:
            print(custom.USAGE)
        base, rest = custom.recipe_of(rest)
    else:
        base = resolve(text)
    options = options_of(base, text, rest)
    recipe = options.recipe
    refuse_unsaid([] if options.trust_code else [recipe], args)
    if ":" in recipe.model and ":" not in base.model and not take(rest, ("width",))[0]:
        recipe = replace(recipe, width=None)  # a width chosen for the recipe's own network means nothing to the user's
    out = options.out or folder_of(text, recipe, options.resume)
    if options.resume and not take(rest, ("epochs",))[0]:
        check_length(Run(Path(out)), recipe)
    # torchrun --max-restarts: resume, and replace nothing
    again = (distributed.restart_count() if restarts is None else restarts) > 0
    how: dict[str, Any] = {"resume": options.resume or again, "overwrite": options.overwrite and not again}
    check_folder(Run(Path(out)), **how)
    check_recipe(recipe, goes_on=how["resume"] and Run(Path(out)).exists())
    return replace(options, recipe=recipe), out, how


def check_recipe(recipe: Recipe, *, goes_on: bool) -> None:
    """Refuse names that nothing has, and in a new run settings that do nothing."""
    distributed.check_device(recipe.device)
    recipe.data.find()
    if ":" not in recipe.model:  # code of the user's runs once, in `fit`
        find_builder(recipe.model)
    if not goes_on:
        recipe.refuse_idle()
