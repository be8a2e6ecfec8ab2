"""Adversarial logit pairing (ALP, Kannan et al. 2018): the logits at x and x' are pulled together."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.losses import ce
from rattle.objectives.base import Method, Reduce, check_weights
from rattle.objectives.taylor_terms import PairObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class ALP(PairObjective):
    """1/2 [CE(f(x), y) + CE(f(x'), y)] + lambda mean (f(x) - f(x'))^2 + Taylor terms (Kannan et al. 2018, eq. 1).

    The mean is over images and classes. The authors' inner attack is PGD towards the least likely class, ours climbs
    the cross-entropy (untargeted); their forward pass normalises x and x' as one batch, ours each by its own.

    >>> from rattle.forward import Outputs
    >>> z, z_adv = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> {name: round(float(value), 3) for name, value in ALP()(Outputs(z, z_adv), torch.tensor([0])).items()}
    {'clean': 0.12, 'zeroth': 1.12, 'pairing': 1.333}
    """

    title: ClassVar[str] = "ALP"
    weight: float = 0.5  # lambda, weight of the pairing

    def __post_init__(self) -> None:
        check_weights(self, "weight")

    def terms_at(self, z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        return {
            "clean": 0.5 * ce(z, y).mean(),
            "zeroth": 0.5 * ce(z_adv, y).mean(),
            "pairing": self.weight * torch.square(z - z_adv).mean(),
        }


METHOD = Method(
    objective=ALP(),
    attack=PGD(loss="ce", start="uniform"),
)
