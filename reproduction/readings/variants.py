"""Variants of the library's readings: another second-order value, a loss at w and w + u, the release's targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.forward import ForwardSpec, Outputs, PairedForward
from rattle.losses import kl_to_target
from rattle.objectives.base import Method, StepContext
from rattle.objectives.readings.exact import Exact
from rattle.objectives.readings.head import Head, soft_label_term
from rattle.objectives.readings.sampled import Sampled, with_draws
from rattle.objectives.registry import register_method
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades
from rattle.taylor import soft_targets
from rattle.weights import Delta, Noise


class HeadDerivative(Head):
    """`head` whose second term compares the second derivative by the head, not the square of the first."""

    def gaps(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> list[Tensor]:
        first, _ = Head.gaps(self, taylor, outputs, y, context)
        assert outputs.logits is not None
        assert outputs.features is not None
        assert outputs.features_adv is not None
        clean = head_curvature(outputs.features, outputs.logits)
        return [first, context.mean(clean - head_curvature(outputs.features_adv, outputs.logits_adv))]


def head_curvature(features: Tensor, logits: Tensor) -> Tensor:
    """Block sums of d^2 CE / d W_head^2, [C]: over i, k of d^2 / dW_ji dW_jk for class j, which no label enters.

    >>> head_curvature(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2))
    tensor([2.2500, 2.2500])
    """
    with torch.no_grad():
        p = logits.softmax(1)
        return (p * (1 - p) * features.sum(1, keepdim=True).square()).mean(0)


class ExactPairs(Exact):
    """`exact` with -u beside every u: the first derivative changes its sign, the second does not."""

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        (a, b), *rest = outputs.derivatives
        both = (torch.cat([a, -a]), torch.cat([b, -b]))
        return super().terms(taylor, replace(outputs, derivatives=(both, *rest)), y, context)


class SampledPairs(Sampled):
    """`sampled` with -u beside every u."""

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(clean=False, draw=Noise.__call__, along_u=with_pairs)


def with_pairs(forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...]) -> Outputs:
    """The outputs with the logits at w + u and w - u, for every draw."""
    both: list[Delta] = []
    for draw in u:
        both += [draw, {name: -delta for name, delta in draw.items()}]
    return with_draws(forward, outputs, x, x_adv, tuple(both))


class Mixture(Sampled):
    """`sampled` with the loss at w among the draws: with one draw, half of each (m-RWP, Li et al. 2024)."""

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(draw=Noise.__call__, along_u=with_w)


def with_w(forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...]) -> Outputs:
    """The outputs with the logits at w + u for every draw, and those at w."""
    assert outputs.logits is not None
    drawn = with_draws(forward, outputs, x, x_adv, u).sampled
    return replace(outputs, sampled=(*drawn, (outputs.logits, outputs.logits_adv)))


class ReleasedTargets(Head):
    """`head` with the slip of the authors' release: its second-order target for x' comes from the (adv - clean) gap."""

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        first, second = self.gaps(taylor, outputs, y, context)
        terms = {"first": soft_label_term(first, outputs, y)}
        if taylor.order == 2:
            assert outputs.logits is not None
            target = soft_targets(-second, y)
            both = kl_to_target(target, outputs.logits_adv) + kl_to_target(target, outputs.logits)
            terms["second"] = 0.5 * both.mean()
        return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedLoss(Trades):
    """TRADES with the clean term weighted by 1 - eta, as in the authors' release."""

    title = "TRADES, the release's loss"

    def clean_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return (1 - self.taylor.weight) * Trades.clean_loss(self, logits, y)


register_method(
    "trades-released-loss",
    Method(objective=ReleasedLoss(), attack=PGD(loss="kl", start="gaussian")),
    summary="TRADES with the release's weight of the clean term",
    paper="the authors' release",
)
