"""The paper's contribution as settings of an objective: the first- and second-order Taylor terms, in every reading."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, Statistics
from rattle.losses import kl_of_small, kl_to_target
from rattle.objectives.base import Reduce, averaged, unreduced
from rattle.settings import check_settings
from rattle.taylor import head_curvature, head_gradient, head_noise_trace, kl_curvature, soft_targets

Mode = Literal["head", "released", "smoothing", "exact", "trace", "head-noise", "sampled"]
SECOND_ORDER = ("trace", "head-noise")  # readings of the second term alone: over u, the first is zero on average
USED_BY: dict[str, tuple[Mode, ...]] = {  # settings of some readings only
    "second_value": ("head",),
    "mass": ("head", "released", "smoothing"),
    "statistics": ("released",),
    "antithetic": ("exact", "sampled"),
    "temperature": ("exact",),
    "share": ("sampled",),
}
PUBLISHED_ETA = {1: 0.3, 2: 0.2}  # the paper's best for each order (Table 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taylor:
    """eta first + (eta/2) second (Algorithm 1, outer minimisation); order 0 adds nothing."""

    order: int = 0  # terms used: 0 (none), 1 (first), 2 (first and second)
    eta: float | None = None  # eta, weight of the first term; the paper's best when not given: 0.3 at order 1, 0.2 at 2
    mode: Mode = "head"  # reading of the terms: head | released | smoothing | exact | trace | head-noise | sampled
    second_factor: float = 0.5  # second term's weight over eta; 0.4 in the release's ResNet-18 AWP script
    second_value: Literal["squared", "derivative"] = "squared"  # what it compares (head): r^2 | the second derivative
    mass: float | None = None  # c, of a soft label on other classes (head, released, smoothing); 1 - 2/C when not given
    statistics: Statistics = "ca"  # order in which BatchNorm's move, c by x, a by x' (released); 8 in its TRADES script
    antithetic: bool = False  # every u of the outer step comes with -u (exact, sampled)
    temperature: float = 1.0  # that the derivatives of the logits are divided by (exact)
    share: float = 1.0  # of the loss at w + u, the rest at w (sampled): between 0 and 1 it is m-RWP

    def __post_init__(self) -> None:
        check_settings(self, "objective.taylor")
        if self.order not in (0, 1, 2):
            raise RattleError(f"objective.taylor.order must be 0, 1 or 2, got {self.order}")
        if self.order == 0 and (self.eta is not None or self.mode != "head"):
            setting = f"eta {self.eta:g}" if self.eta is not None else f"mode {self.mode}"
            raise RattleError(
                f"objective.taylor.{setting} does nothing at order 0: set objective.taylor.order to 1 or 2"
            )
        if self.mode in SECOND_ORDER and self.order == 1:
            raise RattleError(f"objective.taylor.mode {self.mode} is a second-order term: set objective.taylor.order 2")
        self.check_idle()
        if self.eta is not None and not self.eta >= 0:
            raise RattleError(f"objective.taylor.eta must be >= 0, got {self.eta}")
        if not self.second_factor >= 0:
            raise RattleError(f"objective.taylor.second_factor must be >= 0, got {self.second_factor}")

    def check_idle(self) -> None:
        """Refuse a setting that its reading does not look at, or cannot take."""
        for field in fields(self):
            value, modes = getattr(self, field.name), USED_BY.get(field.name)
            if modes and value != field.default and (self.mode not in modes or self.order == 0):
                raise RattleError(
                    f"objective.taylor.{field.name} {value} does nothing in mode {self.mode} of order {self.order}: "
                    f"it is for {' and '.join(modes)}"
                )
        if not self.temperature > 0:
            raise RattleError(f"objective.taylor.temperature must be > 0, got {self.temperature}")
        if self.mass is not None and not 0 <= self.mass <= 1:
            raise RattleError(f"objective.taylor.mass must lie from 0 to 1, got {self.mass}")
        if not 0 < self.share <= 1:
            raise RattleError(f"objective.taylor.share must be above 0 and at most 1, got {self.share}")

    @property
    def weight(self) -> float:
        """eta, with the paper's value filled in."""
        return PUBLISHED_ETA.get(self.order, 0.0) if self.eta is None else self.eta

    def needs(self, *, clean: bool) -> ForwardSpec:
        """What the forward passes have to provide; `clean` says whether the objective itself uses the logits at x."""
        mode = self.mode if self.order else None
        return ForwardSpec(
            clean=clean or mode not in (None, "exact", "sampled"),
            features=mode in ("head", "released", "head-noise"),
            derivatives=self.order if mode in ("exact", "trace") else 0,
            sampled=mode == "sampled",
            antithetic=self.antithetic,
            share=self.share,
            statistics=self.statistics,
            head_noise=mode == "head-noise",
        )

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        """The terms by name, weighted."""
        if self.order == 0 or self.mode == "sampled":
            return {}  # sampled: the zeroth term itself is averaged over u
        weights = {"first": self.weight, "second": self.weight * self.second_factor}
        if self.mode in SECOND_ORDER:
            return {"second": weights["second"] * self.curvature(outputs)}
        values = self.exact_terms(outputs) if self.mode == "exact" else self.head_terms(outputs, y, reduce)
        return {name: weights[name] * value for name, value in zip(weights, values, strict=False)}

    def exact_terms(self, outputs: Outputs) -> list[Tensor]:
        """KL between the softmaxes of the derivatives at x and x', for each order; a mean over the draws of u."""
        found = []
        for order, (at_x, at_x_adv) in enumerate(outputs.derivatives, 1):
            a, b = at_x / self.temperature, at_x_adv / self.temperature
            if self.antithetic and order == 1:  # along -u the first derivative changes its sign, the second does not
                a, b = torch.cat([a, -a]), torch.cat([b, -b])
            found.append(kl_of_small(a, b).mean())
        return found

    def curvature(self, outputs: Outputs) -> Tensor:
        """E_u of u^T H u, H the second derivative of KL(p(x) || p(x')) by the weights: with eta 1/lambda, half of it is
        what the zeroth term gains on average when u moves the weights, to second order."""
        z, z_adv, h, h_adv = outputs.logits, outputs.logits_adv, outputs.features, outputs.features_adv
        assert z is not None
        if self.mode == "trace":
            first, second = outputs.derivatives
            draws = len(first[0]) // len(z)
            return kl_curvature(z.repeat(draws, 1), z_adv.repeat(draws, 1), first, second).mean()
        assert h is not None
        assert h_adv is not None
        assert outputs.head_variance is not None
        return head_noise_trace(h, h_adv, z, z_adv, outputs.head_variance).mean()

    def head_terms(self, outputs: Outputs, y: Tensor, reduce: Reduce) -> list[Tensor]:
        """1/2 [KL(T+[y] || p(x')) + KL(T-[y] || p(x))] for |r| and for r^2, r the head gradient's row sums (App. D)."""
        terms = []
        for order, gap in enumerate(self.gaps(outputs, y, reduce), 1):
            minus, plus = soft_targets(-gap, self.mass), soft_targets(gap, self.mass)
            if self.mode == "released" and order == 2:
                plus = minus  # the release's slip: its second-order target for x' comes from the (adv - clean) gap too
            assert outputs.logits is not None
            plus, minus = (rows[y] if y.ndim == 1 else y @ rows for rows in (plus, minus))  # soft labels are weights
            to_adv, to_clean = kl_to_target(plus, outputs.logits_adv), kl_to_target(minus, outputs.logits)
            terms.append(0.5 * (to_adv + to_clean).mean())
        return terms

    def gaps(self, outputs: Outputs, y: Tensor, reduce: Reduce) -> list[Tensor]:
        """What the head's derivatives at x and x' differ by, [C], for each order; nothing for constant rows."""
        z, z_adv, h, h_adv = outputs.logits, outputs.logits_adv, outputs.features, outputs.features_adv
        if self.mode == "smoothing":
            return [z_adv.new_zeros(z_adv.shape[1])] * self.order
        if z is None or h is None or h_adv is None:
            raise RattleError("the Taylor terms head and released need logits and features of x and x'")
        # Averaged over ranks before abs and square, so that N ranks compute what one process would.
        r, r_adv = reduce(torch.stack([head_gradient(h, z, y), head_gradient(h_adv, z_adv, y)]))
        found = [r.abs() - r_adv.abs(), r.square() - r_adv.square()]
        if self.second_value == "derivative" and self.order == 2:
            found[1] = reduce(head_curvature(h, z) - head_curvature(h_adv, z_adv))
        return found[: self.order]


def without_taylor(objective: Any) -> Any:
    """The objective without the paper's terms; its clean term has the weight 1."""
    changes: dict[str, Any] = {"clean_weight": "one"} if hasattr(objective, "clean_weight") else {}
    return replace(objective, taylor=Taylor(), **changes)


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
