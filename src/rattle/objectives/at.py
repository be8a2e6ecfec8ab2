"""Plain adversarial training (Madry et al. 2018), and the paper's terms on top of it (Table 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives import taylor_terms as terms
from rattle.objectives.base import Reduce, unreduced
from rattle.objectives.taylor_terms import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class AT:
    """CE(f(x'), y) + eta first + (eta/2) second; order 0 never looks at x.

    >>> parts = AT()(Outputs(None, torch.tensor([[2.0, 0.0, 0.0]])), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in parts.items()}
    {'zeroth': 0.24}
    """

    order: int = 0  # Taylor terms used: 0 (plain AT), 1 (+ first), 2 (+ first + second)
    eta: float = 0.3  # eta, weight of the first term; the paper's best: 0.3 for order 1, 0.2 for order 2
    mode: Mode = "head"  # reading of the Taylor terms: head | released | exact | sampled (docs/method.md)
    second_factor: float = 0.5  # second term's weight over eta; 0.4 in the release's ResNet-18 AWP script

    def __post_init__(self) -> None:
        terms.check(self)

    @property
    def need(self) -> ForwardSpec:
        return terms.need(self, clean=False)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        looks = [z_adv for _, z_adv in outputs.sampled] or [outputs.logits_adv]  # E_u by Monte Carlo, or at w alone
        named = {"zeroth": torch.stack([ce(z_adv, y).mean() for z_adv in looks]).mean()}
        return named | terms.taylor_terms(self, outputs, y, reduce)
