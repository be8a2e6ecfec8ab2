"""ReBAT (Wang et al. 2023): AT whose predictions stay near those of the average of its own weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, Reduce, Teacher, unreduced
from rattle.objectives.taylor_terms import Taylor
from rattle.weights import EMA


@dataclass(frozen=True, slots=True, kw_only=True)
class ReBAT:
    """CE(f(x'), y) + weight KL(p_average(x') || p(x')) + Taylor terms; the average is a constant.

    Until the recipe's `average` begins (its `start`), it is AT.
    """

    title: ClassVar[str] = "ReBAT"
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    weight: float = 1.0  # of the divergence from the average (the paper's lambda, beta in the authors' code)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise RattleError(f"objective.weight must be >= 0, got {self.weight}")

    @property
    def needs(self) -> ForwardSpec:
        return replace(self.taylor.needs(clean=False), taught_adv=("average",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"average": (Teacher(), "average")}

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        zeroth, average = ce(outputs.logits_adv, y).mean(), outputs.taught_adv.get("average")
        pull = zeroth.new_zeros(()) if average is None else kl(average.detach(), outputs.logits_adv).mean()
        return {"zeroth": zeroth, "average": self.weight * pull} | self.taylor(outputs, y, reduce=reduce)


METHOD = Method(
    name="rebat",
    objective=ReBAT(),
    attack=PGD(loss="ce", start="uniform"),
    paper="Wang et al. 2023",
    average=EMA(decay=0.999, start=0.525),  # from epoch 105 of 200
    rate_factor=1 / 1.5,
)
