"""The paper's contribution as settings of an objective: the first- and second-order Taylor terms, in every reading."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rattle.errors import RattleError, check_choices
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import kl, kl_to_target
from rattle.objectives.base import Reduce, averaged, unreduced
from rattle.taylor import head_gradient, soft_targets

Mode = Literal["head", "released", "exact", "sampled"]
PUBLISHED_ETA = {1: 0.3, 2: 0.2}  # the paper's best for each order (Table 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taylor:
    """eta first + (eta/2) second (Algorithm 1, outer minimisation); order 0 adds nothing."""

    order: int = 0  # terms used: 0 (none), 1 (first), 2 (first and second)
    eta: float | None = None  # eta, weight of the first term; the paper's best when not given: 0.3 at order 1, 0.2 at 2
    mode: Mode = "head"  # reading of the terms: head | released | exact | sampled (docs/method.md)
    second_factor: float = 0.5  # second term's weight over eta; 0.4 in the release's ResNet-18 AWP script

    def __post_init__(self) -> None:
        check_choices(self, "objective.taylor")
        if self.order not in (0, 1, 2):
            raise RattleError(f"objective.taylor.order must be 0, 1 or 2, got {self.order}")
        if self.order == 0 and (self.eta is not None or self.mode != "head"):
            setting = f"eta {self.eta:g}" if self.eta is not None else f"mode {self.mode}"
            raise RattleError(
                f"objective.taylor.{setting} does nothing at order 0: set objective.taylor.order to 1 or 2"
            )
        if self.eta is not None and not self.eta >= 0:
            raise RattleError(f"objective.taylor.eta must be >= 0, got {self.eta}")
        if not self.second_factor >= 0:
            raise RattleError(f"objective.taylor.second_factor must be >= 0, got {self.second_factor}")

    @property
    def weight(self) -> float:
        """eta, with the paper's value filled in."""
        return PUBLISHED_ETA.get(self.order, 0.0) if self.eta is None else self.eta

    def needs(self, *, clean: bool) -> ForwardSpec:
        """What the forward passes have to provide; `clean` says whether the objective itself uses the logits at x."""
        head = self.order > 0 and self.mode in ("head", "released")
        return ForwardSpec(
            clean=clean or head,
            features=head,
            derivatives=self.order if self.mode == "exact" else 0,
            sampled=self.mode == "sampled",
        )

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        """The terms by name, weighted."""
        if self.order == 0 or self.mode == "sampled":
            return {}  # sampled: the zeroth term itself is averaged over u
        weights = {"first": self.weight, "second": self.weight * self.second_factor}
        if self.mode == "exact":
            values = [kl(at_x, at_x_adv).mean() for at_x, at_x_adv in outputs.derivatives]
        else:
            values = self.head_terms(outputs, y, reduce)
        return {name: weights[name] * value for name, value in zip(weights, values, strict=False)}

    def head_terms(self, outputs: Outputs, y: Tensor, reduce: Reduce) -> list[Tensor]:
        """1/2 [KL(T+[y] || p(x')) + KL(T-[y] || p(x))] for |r| and for r^2, r the head gradient's row sums (App. D)."""
        z, z_adv, h, h_adv = outputs.logits, outputs.logits_adv, outputs.features, outputs.features_adv
        if z is None or h is None or h_adv is None:
            raise RattleError("the Taylor terms head and released need logits and features of x and x'")
        # Averaged over ranks before abs and square, so that N ranks compute what one process would.
        r, r_adv = reduce(torch.stack([head_gradient(h, z, y), head_gradient(h_adv, z_adv, y)]))
        terms = []
        for value in (torch.abs, torch.square)[: self.order]:
            gap = value(r) - value(r_adv)
            minus, plus = soft_targets(-gap), soft_targets(gap)
            if self.mode == "released" and value is torch.square:
                plus = minus  # the release's slip: its second-order target for x' comes from the (adv - clean) gap too
            terms.append(0.5 * (kl_to_target(plus[y], z_adv) + kl_to_target(minus[y], z)).mean())
        return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PairObjective:
    """An objective of terms that each compare the logits at x and x', averaged over u where it is drawn, to which the
    paper's terms are added. A method defines `terms_at` and its settings."""

    taylor: Taylor = Taylor()  # the paper's first- and second-order terms

    @property
    def needs(self) -> ForwardSpec:
        return self.taylor.needs(clean=True)

    def terms_at(self, z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        """The method's own terms of the logits at x and x', [n, C], and the labels."""
        raise NotImplementedError

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        own = averaged(lambda z, z_adv: self.terms_at(z, z_adv, y, reduce), outputs.pairs)
        return own | self.taylor(outputs, y, reduce=reduce)
