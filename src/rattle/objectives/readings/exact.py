"""The expansion itself (Section 4): derivatives of the logits along u, compared between x and x'."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rattle.forward import ForwardSpec, Outputs, PairedForward, at_least_float32
from rattle.losses import kl_of_small
from rattle.objectives.base import StepContext, Terms
from rattle.objectives.readings import Reading
from rattle.objectives.taylor_terms import Taylor
from rattle.taylor import directional
from rattle.weights import Delta, Noise


class Exact(Reading):
    """KL(softmax g'(x)^T u || softmax g'(x')^T u) and the same of u^T g'' u, the mean over the draws of u."""

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(clean=False, draw=Noise.__call__, along_u=partial(with_derivatives, order=taylor.order))

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        terms = {"first": kl_of_small(*outputs.derivatives[0]).mean()}
        if taylor.order == 2:
            terms["second"] = kl_of_small(*outputs.derivatives[1]).mean()
        return terms


def with_derivatives(
    forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...], *, order: int
) -> Outputs:
    """The outputs with the directional derivatives of the logits at x and x', each order's of all draws stacked."""
    at_x = [directional(forward.model, x, draw, order) for draw in u]
    at_x_adv = [directional(forward.model, x_adv, draw, order) for draw in u]
    pairs = []
    for k in range(order):
        clean, adv = torch.cat([each[k] for each in at_x]), torch.cat([each[k] for each in at_x_adv])
        pairs.append((at_least_float32(clean), at_least_float32(adv)))
    return replace(outputs, derivatives=tuple(pairs))


EXACT = Exact()
