"""MART (Wang et al. 2020): x and x' must agree the more, the less sure the network is of x."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.forward import Outputs
from rattle.losses import ce, kl, of_class, of_others
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import NonNegative
from rattle.weights import AWP

OFFSET = 1e-4  # added to 1 - max p_k in the logarithm, as the authors do: without it the loss has no bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Mart(TaylorObjective):
    """BCE(p(x'), y) + lambda KL(p(x) || p(x')) (1 - p_y(x)) + Taylor terms (Wang et al. 2020, eq. 11).

    BCE = -log p_y(x') - log(1 - max_{k != y} p_k(x')). Nothing is detached: gradients flow through p(x), through the
    weight 1 - p_y(x), and through p(x').

    >>> z = torch.tensor([[2.0, 0.0, 0.0]])
    >>> {name: round(float(value), 3) for name, value in Mart()(Outputs(z, z), torch.tensor([0])).items()}
    {'bce': 0.352, 'zeroth': 0.0}
    """

    title = "MART"
    trade_off = "objective.weight"
    weight: NonNegative = 5.0  # lambda, weight of the zeroth term; 6 in the authors' WideResNet runs

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        def zeroth(z: Tensor, z_adv: Tensor) -> Tensor:
            doubt = 1 - of_class(z.softmax(1), y)
            return self.weight * (kl(z, z_adv) * doubt).mean()

        boosted = outputs.mean(lambda z, z_adv: ce(z_adv, y) - log_rest(z_adv, y))
        return {"bce": boosted, "zeroth": outputs.mean(zeroth)}


def log_rest(z: Tensor, y: Tensor) -> Tensor:
    """log(1 - max_{k != y} p_k + OFFSET), [n]; 1 - p_k itself would be 0 in floats for a sure mistake."""
    wrong = of_others(z.detach(), y).argmax(1)
    rest = of_others(z, wrong).logsumexp(1) - z.logsumexp(1)
    return torch.logaddexp(rest, torch.full_like(rest, math.log(OFFSET)))


METHOD = Method(
    objective=Mart(),
    attack=PGD(loss="ce", start="gaussian"),
    awp=AWP(),
)
