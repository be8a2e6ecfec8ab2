"""What few methods override: settings that change, an attack of their own, prepared batches, a state, teachers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from rattle.attacks import PGD, Attack
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.models.registry import create_model
from rattle.objectives import Method, register_method
from rattle.objectives.base import Batch, Moment, Objective, StepContext, Teacher
from rattle.objectives.registry import METHODS
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.training.loop import fit
from support.training import tiny

MOMENTS: list[Moment] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything(Objective):
    """Overrides every method of an objective at once."""

    title: ClassVar[str] = "Everything"
    needs_run: ClassVar[bool] = True
    smoothing: float = 0.0
    before: Teacher = Teacher(model="cnn", width=4)

    @property
    def needs(self) -> ForwardSpec:
        return ForwardSpec(clean=True, taught_clean=("along", "before"), taught_adv=("before",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"along": (Teacher(model="cnn-plain", width=8), "cotrained"), "before": (self.before, "standard")}

    def state(self, *, images: int, classes: int, batch: torch.Size) -> dict[str, Tensor]:
        return {"seen": torch.zeros(images)}

    def attack(self, pgd: PGD, context: StepContext) -> Attack:
        MOMENTS.append(context.moment)
        return replace(pgd, steps=1)

    def prepare(self, batch: Batch, context: StepContext) -> Batch:
        context.memory["seen"] = context.memory["seen"] + context.draws.uniform(1).squeeze(1)
        soft = torch.nn.functional.one_hot(batch.y, 10).to(batch.x.dtype) * (1 - self.smoothing) + self.smoothing / 10
        return replace(batch, y=soft, extra=(batch.x + batch.x_adv) / 2)

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        assert outputs.extra is not None
        assert not outputs.taught_clean["before"].requires_grad
        pulled = (outputs.logits_adv - outputs.taught_clean["along"]).square().mean()
        kept = (outputs.logits_adv - outputs.taught_adv["before"]).square().mean()
        own = ce(outputs.taught_clean["along"], y).mean()
        return {"soft": ce(outputs.extra, y).mean(), "pulled": pulled, "kept": 0.1 * kept, "teacher": own}


@pytest.fixture
def recipe() -> Iterator[Recipe]:
    register_method("everything", Method(objective=Everything(), attack=PGD(steps=2)))
    yield tiny("everything")
    del METHODS.known["everything"]


@pytest.fixture
def whole(recipe: Recipe, tmp_path: Path) -> Run:
    MOMENTS.clear()
    return fit(recipe, tmp_path / "whole")


def test_everything_is_trained_saved_and_remembered(whole: Run, recipe: Recipe) -> None:
    assert [(moment.epoch, moment.step) for moment in MOMENTS] == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert {moment.fraction for moment in MOMENTS} == {0.0, 0.5}
    tensors = read_checkpoint(whole.checkpoint("last")).tensors
    assert any(name.startswith("teachers.along.") for name in tensors)
    assert not any(name.startswith("teachers.before.") for name in tensors)
    assert any(name.startswith("teacher_optimizer.along.") for name in tensors)
    seen = tensors["memory.seen"]
    assert len(seen) == 192  # every training image
    assert ((seen > 0) & (seen < 2)).sum() == 192  # each was drawn once in each of two epochs
    fresh = create_model("cnn-plain", classes=10, channels=1, width=8).state_dict()
    trained = {name.removeprefix("teachers.along."): v for name, v in tensors.items() if name.startswith("teachers.")}
    assert trained.keys() == fresh.keys()
    teacher = Run(whole.folder.with_name("whole-teacher-before"))
    assert Recipe.from_yaml(teacher.recipe.read_text()).method == "Standard"
    assert load(whole)(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_a_teacher_that_is_code_runs_by_the_user_s_word_alone(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path)!r}, 'executed').touch()\n")
    code = f"{tmp_path / 'evil.py'}:build"
    file = tmp_path / "recipe.yaml"
    file.write_text(replace(recipe, objective=Everything(before=Teacher(model=code))).to_yaml())
    with pytest.raises(RattleError, match=r"recipe\.yaml names code to run as its model: .*evil\.py:build"):
        fit(str(file), tmp_path / "run")
    assert not (tmp_path / "executed").exists()
