"""Guided adversarial training (Sriramanan et al. 2020): one step of an attack that the clean softmax guides."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.attacks.base import attack_mode
from rattle.errors import RattleError
from rattle.inputs import check_batch, logits_of
from rattle.losses import ce
from rattle.objectives.base import ONE_STEP, Method, Moment, Reduce, StepContext
from rattle.objectives.taylor_terms import PairObjective
from rattle.randomness import Randomness, streams
from rattle.threat import Threat


def squared_distance(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """||p(x) - p(x')||^2 of each image, [n]."""
    return (logits.softmax(1) - logits_adv.softmax(1)).square().sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """The weight l of ||p(x) - p(x')||^2, and the step of the attack that climbs it."""

    weight: float = 10.0  # l; the attack has it in every second step of the run, and 0 in the others
    late_factor: float = 4.0  # what l is multiplied by late in the run
    late_from: float = 0.86  # fraction of the run from which it is: after 86 of the published 100 epochs
    noise: float = 0.5  # length of the random start, over epsilon
    step: float = 1.0  # length of the step, over epsilon

    def __post_init__(self) -> None:
        for name in ("weight", "late_factor", "noise"):
            if not getattr(self, name) >= 0:
                raise RattleError(f"objective.guide.{name} must be >= 0, got {getattr(self, name)}")
        if not 0 <= self.late_from <= 1:
            raise RattleError(f"objective.guide.late_from is a fraction from 0 to 1, got {self.late_from}")
        if not self.step > 0:
            raise RattleError(f"objective.guide.step must be > 0, got {self.step}")

    def at(self, moment: Moment) -> "Guide":
        late = moment.fraction >= self.late_from
        return replace(self, weight=self.weight * (self.late_factor if late else 1), late_factor=1.0)

    def attack(self, threat: Threat, moment: Moment) -> Attack:
        weight = self.weight if moment.step % 2 else 0.0
        return GuidedStep(threat=threat, weight=weight, noise=self.noise, step=self.step)


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
class GAT(PairObjective):
    """CE(f(x), y) + l ||p(x) - p(x')||^2 + Taylor terms, x' of one guided step."""

    title: ClassVar[str] = "GAT"
    soft_labels: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ONE_STEP
    guide: Guide = Guide()  # the weight l and the attack

    def at(self, moment: Moment) -> "GAT":
        return replace(self, guide=self.guide.at(moment))

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return self.guide.attack(attack.threat, context.moment)

    def inner_passes(self, steps: int) -> tuple[int, int]:
        return 2, 1  # with the guide's forward, which every second step has

    def terms_at(self, z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        return {"clean": ce(z, y).mean(), "zeroth": self.guide.weight * squared_distance(z, z_adv).mean()}


# The attack of the recipe gives the threat alone, and the attack that chooses the best checkpoint its steps.
METHOD = Method(
    objective=GAT(),
    attack=PGD(),
)
