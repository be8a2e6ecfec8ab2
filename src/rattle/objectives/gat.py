"""Guided adversarial training (Sriramanan et al. 2020): one step of an attack that the clean softmax guides."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.attacks.base import attack_mode
from rattle.forward import Outputs
from rattle.inputs import check_batch, logits_of
from rattle.losses import ce
from rattle.objectives.base import ONE_STEP, Method, Moment, StepContext
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.randomness import Randomness, streams
from rattle.settings import NonNegative, Positive, Share, check_settings
from rattle.threat import Threat


def squared_distance(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """||p(x) - p(x')||^2 of each image, [n]."""
    return (logits.softmax(1) - logits_adv.softmax(1)).square().sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """The weight l of ||p(x) - p(x')||^2, and the step of the attack that climbs it."""

    weight: NonNegative = 10.0  # l; the attack has it in every second step of the run, and 0 in the others
    late_factor: NonNegative = 4.0  # what l is multiplied by late in the run
    late_from: Share = 0.86  # fraction of the run from which it is: after 86 of the published 100 epochs
    noise: NonNegative = 0.5  # length of the random start, over epsilon
    step: Positive = 1.0  # length of the step, over epsilon

    def __post_init__(self) -> None:
        check_settings(self, "objective.guide")

    def at(self, moment: Moment) -> Self:
        late = moment.fraction >= self.late_from
        return replace(self, weight=self.weight * (self.late_factor if late else 1), late_factor=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedStep:
    """One step up CE(f(x'), y) + weight ||p(x) - p(x')||^2, from a random point near x."""

    threat: Threat
    weight: float = 10.0  # of the guide
    noise: float = 0.5  # length of the random start, over epsilon
    step: float = 1.0  # length of the step, over epsilon

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y, soft=True)
        threat, epsilon = self.threat, self.threat.epsilon
        direction = streams(generator, x).normal(*x.shape[1:]).to(x.dtype)  # l_inf: its signs
        start = threat.ascend(x, direction, self.noise * epsilon).clamp(0, 1).requires_grad_()
        with attack_mode(model):
            logits = logits_of(model, start)
            loss = ce(logits, y).sum()
            if self.weight:  # without it there is no need of the clean forward
                with torch.no_grad():
                    clean = logits_of(model, x)
                loss = loss + self.weight * squared_distance(clean, logits).sum()
            (gradient,) = torch.autograd.grad(loss, start)
        return threat.project(threat.ascend(start.detach(), gradient, self.step * epsilon), x)


@dataclass(frozen=True, slots=True, kw_only=True)
class GAT(TaylorObjective):
    """CE(f(x), y) + l ||p(x) - p(x')||^2 + Taylor terms, x' of one guided step."""

    title: ClassVar[str] = "GAT"
    soft_labels: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ONE_STEP
    guide: Guide = Guide()  # the weight l and the attack

    def at(self, moment: Moment) -> Self:
        return replace(self, guide=self.guide.at(moment))

    def attack(self, pgd: PGD, context: StepContext) -> Attack:
        weight = self.guide.weight if context.moment.step % 2 else 0.0
        return GuidedStep(threat=pgd.threat, weight=weight, noise=self.guide.noise, step=self.guide.step)

    def inner_passes(self, pgd: PGD) -> tuple[int, int]:
        return 2, 1  # with the guide's forward, which every second step has

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        return {
            "clean": outputs.mean(lambda z, z_adv: ce(z, y).mean()),
            "zeroth": outputs.mean(lambda z, z_adv: self.guide.weight * squared_distance(z, z_adv).mean()),
        }


# The attack of the recipe gives the threat alone, and the attack that chooses the best checkpoint its steps.
METHOD = Method(
    objective=GAT(),
    attack=PGD(),
)
