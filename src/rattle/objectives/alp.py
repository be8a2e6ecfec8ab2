"""Adversarial logit pairing (ALP, Kannan et al. 2018): the logits at x and x' are pulled together."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rattle.forward import Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class ALP(TaylorObjective):
    """1/2 [CE(f(x), y) + CE(f(x'), y)] + lambda mean (f(x) - f(x'))^2 + Taylor terms (Kannan et al. 2018, eq. 1).

    The mean is over images and classes. The authors' inner attack is PGD towards the least likely class, ours climbs
    the cross-entropy (untargeted); their forward pass normalises x and x' as one batch, ours each by its own.

    >>> import torch; z, z_adv = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> {name: round(float(value), 3) for name, value in ALP()(Outputs(z, z_adv), torch.tensor([0])).items()}
    {'clean': 0.12, 'zeroth': 1.12, 'pairing': 1.333}
    """

    title = "ALP"
    trade_off = "objective.weight"
    weight: NonNegative = 0.5  # lambda, weight of the pairing

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {
            "clean": outputs.mean(lambda z, z_adv: 0.5 * ce(z, y)),
            "zeroth": outputs.mean(lambda z, z_adv: 0.5 * ce(z_adv, y)),
            "pairing": outputs.mean(lambda z, z_adv: self.weight * F.mse_loss(z_adv, z)),
        }


METHOD = Method(
    objective=ALP(),
)
