"""ReBAT (Wang et al. 2023): AT whose predictions stay near those of the average of its own weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, StepContext, Teacher, Teachers, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import NonNegative
from rattle.weights import EMA


@dataclass(frozen=True, slots=True, kw_only=True)
class ReBAT(TaylorObjective):
    """CE(f(x'), y) + weight KL(p_average(x') || p(x')) + Taylor terms; the average is a constant.

    Until the recipe's `average` begins (its `start`), it is AT.
    """

    title = "ReBAT"
    trade_off = "objective.weight"
    needs_run = True
    uses = ForwardSpec(clean=False, taught_adv=("average",))
    weight: NonNegative = 1.0  # weight of the divergence from the average: lambda, beta in the authors' code

    @property
    def teachers(self) -> Teachers:
        return {"average": (Teacher(), "average")}

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        zeroth = outputs.mean(lambda z, z_adv: ce(z_adv, y))
        pull = torch.zeros_like(zeroth)
        if "average" in outputs.taught_adv:
            pull = outputs.mean(lambda z, z_adv: kl(outputs.taught_adv["average"], z_adv))
        return {"zeroth": zeroth, "average": self.weight * pull}


METHOD = Method(
    objective=ReBAT(),
    average=EMA(decay=0.999, start=0.525),  # from epoch 105 of 200
    rate_factor=1 / 1.5,
)
