"""Adversarial vertex mixup (Lee et al. 2020): images and soft labels between x and a point beyond x'."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Batch, Method, Objective, StepContext, Terms
from rattle.settings import OneOrMore, Share
from rattle.threat import per_image


@dataclass(frozen=True, slots=True, kw_only=True)
class AVMixup(Objective):
    """CE(f(x^), y^) with x^ = a x + (1 - a) x_av, y^ = a phi(y, lambda1) + (1 - a) phi(y, lambda2), a ~ U[0, 1).

    The vertex is x_av = clip(x + gamma (x' - x)); phi(y, lambda) has mass lambda on y, the rest evenly on the others.
    """

    title = "AVMixup"
    smooths = True
    needs_run = True
    uses = ForwardSpec(clean=False)
    gamma: OneOrMore = 2.0  # length of the vertex over that of the perturbation
    lambda1: Share = 1.0  # mass on the true class at x
    lambda2: Share = 0.1  # mass on the true class at the vertex; the published 0.1 is uniform over 10 classes

    def prepare(self, batch: Batch, context: StepContext) -> Batch:
        x, y = batch.x, batch.y
        a = context.draws.uniform(1).to(x.dtype)  # Beta(1, 1)
        a_x = per_image(a, x)
        vertex = (x + self.gamma * (batch.x_adv - x)).clamp(0, 1)
        soft = smoothed(y, self.lambda1, context.classes, x.dtype)
        rest = smoothed(y, self.lambda2, context.classes, x.dtype)
        return Batch(x=x, x_adv=a_x * x + (1 - a_x) * vertex, y=a * soft + (1 - a) * rest)

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {"mixed": ce(outputs.logits_adv, y).mean()}


def smoothed(y: Tensor, mass: float, classes: int, dtype: torch.dtype) -> Tensor:
    """Soft labels [n, C]: `mass` on the true class, the rest evenly on the others.

    >>> smoothed(torch.tensor([0, 2]), 0.5, 3, torch.float32).tolist()
    [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]
    """
    others = torch.full((len(y), classes), (1 - mass) / (classes - 1), dtype=dtype, device=y.device)
    return others.scatter_(1, y[:, None], mass)


METHOD = Method(
    objective=AVMixup(),
)
