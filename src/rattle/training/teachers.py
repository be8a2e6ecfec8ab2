"""The teachers of an objective: networks trained first, given, or trained together with the model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rattle.errors import RattleError
from rattle.models.user import is_code
from rattle.objectives.base import Objective, Teacher, Teachers
from rattle.objectives.registry import get_method
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.runs.paths import Run
from rattle.runs.progress import Console, StoppedBySignal
from rattle.weights import Noise

# In place of a method's name: trained by the objective together with the model; the average of the run's own weights.
COTRAINED, AVERAGE = "cotrained", "average"


def teachers_of(objective: Objective) -> Teachers:
    """By name: the teacher, and the method that trains it first or COTRAINED; without AVERAGE, which is no network."""
    return {name: teacher for name, teacher in objective.teachers.items() if teacher[1] != AVERAGE}


def cotrained(objective: Objective) -> list[str]:
    """The names of the teachers that are trained together with the model."""
    return [name for name, (each, how) in teachers_of(objective).items() if how == COTRAINED and each.weights is None]


def code_of(recipe: Recipe) -> list[str]:
    """The networks of a recipe and of its teachers that are code, see `refuse_code`."""
    teachers = (teacher.model for teacher, _ in teachers_of(recipe.objective).values())
    return [name for name in (recipe.model, *teachers) if name is not None and is_code(name)]


def train_teachers(
    recipe: Recipe,
    run: Run,
    fit: Callable[..., Run],
    resume: bool,
    overwrite: bool,
    console: Console,
) -> dict[str, Path]:
    """Train the teachers that must be there before the run and have no weights; where their weights are then.

    They are runs of their own beside the run, RUN-teacher-NAME: resumed and reused like any other. fit: trains a
    recipe into a folder; resume, overwrite: what happens to the run; a longer run keeps the teacher it began with.
    """
    found = {}
    for name, (own, wanted) in trained_first(recipe, run).items():
        if resume and run.checkpoint("last").exists() and not own.exists():
            raise RattleError(
                f"{run.folder} learned from the teacher in {own.folder}, which is not there: if the run was renamed, "
                "rename its teacher's folder too"
            )
        begun = resolve(str(own.folder)) if own.exists() else wanted
        wanted = replace(wanted, epochs=begun.epochs) if resume else wanted
        other = replace(begun, data=wanted.data) != wanted  # images given in Python have another name in every run
        if other and not overwrite:
            raise RattleError(
                f"the teacher {name!r} belongs in {own.folder}, which holds a run of another recipe: "
                "--overwrite replaces both, or give that run as the teacher's weights"
            )
        console.log(f"training the teacher {name!r} first: {wanted.method} into {own.folder}")
        try:
            fit(wanted, own.folder, resume=not other, overwrite=other)
        except StoppedBySignal as stop:  # resuming the run resumes its teacher
            raise StoppedBySignal(stop.number, str(run.folder), trust=bool(code_of(recipe))) from stop
        # `best` has the best robust accuracy, which means nothing for a network trained without an adversary.
        _, method = teachers_of(recipe.objective)[name]
        found[name] = own.checkpoint("last" if method == "standard" else "best")
    if found:
        console.log(f"now the run itself: {recipe.method} into {run.folder}")
    return found


def trained_first(recipe: Recipe, run: Run) -> dict[str, tuple[Run, Recipe]]:
    """By name, the teachers that must be there before the run and have no weights: their runs and recipes."""
    found = {}
    for name, (teacher, method) in teachers_of(recipe.objective).items():
        if teacher.weights is None and method != COTRAINED:
            base, attack = get_method(method), recipe.attack
            wanted = replace(  # the same data and schedule, no extras
                network_recipe(recipe, teacher),
                name=f"{recipe.name}-teacher-{name}",
                objective=base.objective,
                attack=replace(base.attack, threat=attack.threat, steps=attack.steps, step_size=attack.step_size),
                noise=Noise(sigma=0),
                noise_samples=1,
                awp=None,
                average=None,
                init=None,
                head=None,
                keep_checkpoints="none",
            )
            found[name] = Run(Path(f"{run.folder}-teacher-{name}")), wanted
    return found


def network_recipe(recipe: Recipe, teacher: Teacher) -> Recipe:
    """The recipe with the teacher's network."""
    if teacher.model is not None:
        return replace(recipe, model=teacher.model, width=teacher.width)
    if recipe.model.startswith("python:"):
        raise RattleError(
            "it would have the network of the module given in Python, which cannot be built again: "
            "name another network in the objective's teacher, or give its weights"
        )
    return recipe
