"""TRADES (Zhang et al. 2019) and the paper's extension of it: order 0 is TRADES itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives import taylor_terms as terms
from rattle.objectives.base import Reduce, unreduced
from rattle.objectives.taylor_terms import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Trades:
    """clean + (1/lambda) zeroth + eta first + (eta/2) second (Algorithm 1, outer minimisation).

    >>> z, z_adv = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> parts = Trades()(Outputs(z, z_adv), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in parts.items()}
    {'clean': 0.24, 'zeroth': 8.166}
    """

    order: int = 0  # Taylor terms used: 0 (TRADES), 1 (+ first), 2 (+ first + second)
    eta: float = 0.3  # eta, weight of the first term; the paper's best: 0.3 for order 1, 0.2 for order 2
    inv_lambda: float = 6.0  # 1/lambda, weight of the zeroth term (TRADES' beta)
    mode: Mode = "head"  # reading of the Taylor terms: head | released | exact | sampled (docs/method.md)
    clean_weight: Literal["one", "one-minus-eta"] = "one"  # weight of the clean term: the paper's | the release's
    second_factor: float = 0.5  # second term's weight over eta; 0.4 in the release's ResNet-18 AWP script

    def __post_init__(self) -> None:
        terms.check(self)
        if not self.inv_lambda >= 0:
            raise RattleError(f"objective.inv_lambda must be >= 0, got {self.inv_lambda}")
        if self.clean_weight not in ("one", "one-minus-eta"):
            raise RattleError(f"objective.clean_weight must be one or one-minus-eta, got {self.clean_weight!r}")

    @property
    def need(self) -> ForwardSpec:
        return terms.need(self, clean=True)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        assert outputs.logits is not None, "need() asks for the logits at x"
        clean = ce(outputs.logits, y).mean() * (1 if self.clean_weight == "one" else 1 - self.eta)
        pairs = outputs.sampled or ((outputs.logits, outputs.logits_adv),)  # E_u by Monte Carlo, or at w alone
        zeroth = torch.stack([kl(z, z_adv).mean() for z, z_adv in pairs]).mean()
        named = {"clean": clean, "zeroth": self.inv_lambda * zeroth}
        return named | terms.taylor_terms(self, outputs, y, reduce)
