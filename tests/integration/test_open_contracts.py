"""A stranger's method gets in by one registration: trained by name, resumed, evaluated, tabulated and reported."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch import Tensor
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.objectives import Method, register_method
from rattle.objectives.base import Objective, StepContext
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.names import list_recipes
from rattle.recipes.recipe import Recipe

SIZES = ["--width", "4", "--data.train-size", "128", "--batch-size", "64", "--threads", "1", "--epochs", "2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed(Objective):
    """AT with smoothed labels."""

    title: ClassVar[str] = "AT, smoothed"
    smoothing: float = 0.1  # mass taken from the true class

    @property
    def needs(self) -> ForwardSpec:
        return ForwardSpec(clean=False)

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        return {"smoothed": F.cross_entropy(outputs.logits_adv, y, label_smoothing=self.smoothing)}


@pytest.fixture
def smoothed() -> Iterator[Method]:
    method = Method(objective=Smoothed(), attack=PGD(steps=2))
    register_method("smooth", method, paper="Szegedy et al. 2016")
    yield method
    del METHODS["smooth"]


def test_a_method_registered_at_run_time_is_a_method_like_any_other(
    smoothed: Method, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    command = ["train", "digits-linf-cnn-smooth", *SIZES, "--objective.smoothing", "0.2", "--out", run]
    assert main(command) == 0
    assert main([*command, "--resume"]) == 0
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe.objective == Smoothed(smoothing=0.2)
    assert main(["evaluate", run, "--attacks", "pgd5", "--n", "40"]) == 0
    capsys.readouterr()
    assert main(["table", run]) == 0
    assert "AT, smoothed" in capsys.readouterr().out
    assert main(["report", run, "--no-compute"]) == 0
    assert "AT, smoothed" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_recipes_list_and_refuse_what_the_method_has(smoothed: Method) -> None:
    assert "digits-linf-cnn-smooth" in list_recipes()
    assert "digits-linf-cnn-smooth-2nd" not in list_recipes()
    for suffix in ("-awp", "-2nd"):
        with pytest.raises(RattleError, match=f"smooth has no {suffix} variant"):
            get_recipe(f"digits-linf-cnn-smooth{suffix}")
    with pytest.raises(RattleError, match="the authors released trades-2nd and trades-awp-2nd"):
        get_recipe("digits-linf-cnn-smooth-released")


@pytest.mark.parametrize("name", ["Mine", "my method", "mine-awp", "mine-2nd"])
def test_a_name_that_recipes_could_not_spell_is_refused(name: str) -> None:
    method = Method(objective=Smoothed(), attack=PGD())
    with pytest.raises(RattleError, match=r"lower-case letters|a suffix that recipes give a meaning to"):
        register_method(name, method)
