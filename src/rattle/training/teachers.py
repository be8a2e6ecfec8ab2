"""The teachers of an objective: networks trained first, given, or trained along with the model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from rattle.data import Dataset
from rattle.errors import RattleError
from rattle.models.user import is_code
from rattle.objectives.base import HasTeachers, Objective, Teacher
from rattle.objectives.registry import get_method
from rattle.recipes.recipe import Recipe
from rattle.runs.load import build_model, load_model, open_checkpoint, resolve_checkpoint
from rattle.runs.paths import Run
from rattle.weights import Noise

ALONG = "along"  # in place of a method's name: trained by the objective itself


def teachers_of(objective: Objective) -> Mapping[str, tuple[Teacher, str]]:
    """By name: the teacher, and the method that trains it first or ALONG."""
    return objective.teachers if isinstance(objective, HasTeachers) else {}


def code_of(recipe: Recipe) -> list[str]:
    """The networks of a recipe and of its teachers that are code, see `refuse_code`."""
    teachers = (teacher.model for teacher, _ in teachers_of(recipe.objective).values())
    return [name for name in (recipe.model, *teachers) if name is not None and is_code(name)]


def train_teachers(recipe: Recipe, run: Run, data: Dataset, fit: Callable[..., Run]) -> dict[str, Path]:
    """Where the weights of the teachers are that are not trained along; those that have none are trained first.

    They are runs of their own beside the run, RUN-teacher-NAME: resumed and reused like any other.
    """
    found = {}
    for name, (teacher, method) in teachers_of(recipe.objective).items():
        if teacher.weights is not None:
            found[name] = resolve_checkpoint(teacher.weights)
        elif method != ALONG:
            folder = run.folder.with_name(f"{run.folder.name}-teacher-{name}")
            own = {"data": data} if recipe.data.name.startswith("memory:") else {}
            found[name] = fit(teacher_recipe(recipe, name, teacher, method), folder, resume=True, **own).checkpoint(
                "last"
            )
    return found


def teacher_recipe(recipe: Recipe, name: str, teacher: Teacher, method: str) -> Recipe:
    """The recipe that trains a teacher: the same data and schedule, another method, no extras."""
    base = get_method(method)
    attack = {"threat": recipe.attack.threat, "steps": recipe.attack.steps, "step_size": recipe.attack.step_size}
    return replace(
        network_recipe(recipe, name, teacher),
        name=f"{recipe.name}-teacher-{name}",
        objective=base.objective,
        attack=replace(base.attack, **attack),
        noise=Noise(sigma=0),
        noise_samples=1,
        awp=None,
        average=None,
        init=None,
        head=None,
        keep_checkpoints=None,
    )


def network_recipe(recipe: Recipe, name: str, teacher: Teacher) -> Recipe:
    """The recipe with the teacher's network."""
    if teacher.model is not None:
        return replace(recipe, model=teacher.model, width=teacher.width)
    if recipe.model.startswith("python:"):
        raise RattleError(
            f"the teacher {name!r} would have the network of the module given in Python, which cannot be built again: "
            "name another network in the objective's teacher, or give its weights"
        )
    return recipe


def build_teacher(name: str, teacher: Teacher, recipe: Recipe, data: Dataset, weights: Path | None) -> nn.Module:
    """A frozen network with its weights or, without any, a new one to be trained along."""
    if weights is None:
        return build_model(network_recipe(recipe, name, teacher), classes=len(data.classes), channels=data.channels)
    saved = open_checkpoint(weights)
    if is_code(saved.recipe.model):  # nothing runs but what the recipe itself names, see `code_of`
        saved = replace(saved, trust_code=saved.recipe.model == network_recipe(recipe, name, teacher).model)
    network = load_model(saved)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network
