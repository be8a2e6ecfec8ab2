"""Guided adversarial training (Sriramanan et al. 2020): one step of an attack that the clean softmax guides."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.forward import Outputs
from rattle.inputs import check_batch, input_gradient, logits_of
from rattle.losses import ce
from rattle.objectives.base import ONE_STEP, InnerAttack, Method, Moment, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.randomness import Randomness, streams
from rattle.settings import NonNegative
from rattle.threat import Threat

START = 0.5  # length of the random start, over epsilon; the step has length epsilon
LATE_FACTOR, LATE_FROM = 4.0, 0.86  # l is multiplied from that fraction of the run on: 86 of the published 100 epochs


def squared_distance(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """||p(x) - p(x')||^2 of each image, [n]."""
    return (logits.softmax(1) - logits_adv.softmax(1)).square().sum(1)


def guided_step(
    threat: Threat, weight: float, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None
) -> Tensor:
    """One step up CE(f(x'), y) + weight ||p(x) - p(x')||^2, from a random point near x."""
    x, y = check_batch(x, y, soft=True)
    direction = streams(generator, len(x), x.device).normal(*x.shape[1:]).to(x.dtype)  # l_inf: its signs
    start = threat.ascend(x, direction, START * threat.epsilon).clamp(0, 1).requires_grad_()
    with attack_mode(model):
        logits = logits_of(model, start)
        loss = ce(logits, y).sum()
        if weight:  # without it there is no need of the clean forward
            with torch.no_grad():
                clean = logits_of(model, x)
            loss = loss + weight * squared_distance(clean, logits).sum()
        gradient = input_gradient(loss, start)
    return threat.project(threat.ascend(start.detach(), gradient, threat.epsilon), x)


@dataclass(frozen=True, slots=True, kw_only=True)
class GAT(TaylorObjective):
    """CE(f(x), y) + l ||p(x) - p(x')||^2 + Taylor terms, x' of one guided step."""

    title = "GAT"
    trade_off = "objective.weight"
    soft_labels = True
    unused = ONE_STEP
    weight: NonNegative = 10.0  # l, weight of the guide in every second step of the run; 0 in the others

    def weight_at(self, moment: Moment) -> float:
        return self.weight * LATE_FACTOR if moment.fraction >= LATE_FROM else self.weight

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        return partial(guided_step, pgd.threat, self.weight_at(context.moment) if context.moment.step % 2 else 0.0)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        weight = self.weight_at(context.moment)
        return {
            "clean": outputs.mean(lambda z, z_adv: ce(z, y)),
            "zeroth": outputs.mean(lambda z, z_adv: weight * squared_distance(z, z_adv).mean()),
        }


# The attack of the recipe gives the threat alone, and the attack that chooses the best checkpoint its steps.
METHOD = Method(
    objective=GAT(),
)
