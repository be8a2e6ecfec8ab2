"""Standard training: no adversary. A baseline, and the teacher that some methods need."""

from dataclasses import dataclass

from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import ONE_STEP, InnerAttack, Method, Objective, StepContext, Terms
from rattle.randomness import Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard(Objective):
    """CE(f(x), y)."""

    title = "Standard"
    trade_off = ""
    soft_labels = True
    uses = ForwardSpec(clean=False)  # x' is x: one forward is enough
    unused = ONE_STEP

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        return unattacked

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {"clean": ce(outputs.logits_adv, y).mean()}


def unattacked(model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
    """The images as they are."""
    return x


METHOD = Method(
    objective=Standard(),
)
