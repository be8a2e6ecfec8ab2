"""Standard training: no adversary. A baseline, and the teacher that some methods need."""

from dataclasses import dataclass

from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import ONE_STEP, Method, Objective, StepContext, Terms
from rattle.randomness import Randomness
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard(Objective):
    """CE(f(x), y)."""

    title = "Standard"
    trade_off = ""
    soft_labels = True
    uses = ForwardSpec(clean=False)  # x' is x: one forward is enough
    unused = ONE_STEP

    def attack(self, pgd: PGD, context: StepContext) -> Attack:
        return NoAttack(threat=pgd.threat)

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {"clean": ce(outputs.logits_adv, y).mean()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttack:
    """The images as they are."""

    threat: Threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        return x


METHOD = Method(
    objective=Standard(),
)
