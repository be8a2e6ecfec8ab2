"""ReBAT (Wang et al. 2023): AT whose predictions stay near those of the average of its own weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, Reduce, Teacher, check_weights, unreduced
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
        check_weights(self, "weight")

    @property
    def needs(self) -> ForwardSpec:
        return replace(self.taylor.needs(clean=False), taught_adv=("average",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"average": (Teacher(), "average")}

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        draws, average = outputs.draws_adv, outputs.taught_adv.get("average")
        zeroth = torch.stack([ce(z_adv, y).mean() for z_adv in draws]).mean()
        pull = [kl(average, z_adv).mean() for z_adv in draws] if average is not None else [torch.zeros_like(zeroth)]
        own = {"zeroth": zeroth, "average": self.weight * torch.stack(pull).mean()}
        return own | self.taylor(outputs, y, reduce=reduce)


METHOD = Method(
    objective=ReBAT(),
    attack=PGD(loss="ce", start="uniform"),
    average=EMA(decay=0.999, start=0.525),  # from epoch 105 of 200
    rate_factor=1 / 1.5,
)
