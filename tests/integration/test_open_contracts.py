"""A stranger's method gets in by one registration, under a name that recipes can spell."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.objectives import Method, register_method
from rattle.objectives.base import Objective, StepContext
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.names import list_recipes


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
    del METHODS.known["smooth"]


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
    with pytest.raises(RattleError, match=r"lower-case letters|a suffix with a meaning in recipes"):
        register_method(name, method)
