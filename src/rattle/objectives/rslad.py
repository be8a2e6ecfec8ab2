"""RSLAD (Zi et al. 2021): a robust teacher's probabilities at x take the labels' place, in the inner attack too."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.forward import ForwardSpec, Outputs
from rattle.inputs import logits_of
from rattle.losses import kl
from rattle.objectives.base import InnerAttack, Method, Objective, StepContext, Teacher, Teachers, Terms
from rattle.objectives.trades import KL_ATTACK
from rattle.randomness import Randomness, streams
from rattle.settings import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class RSLAD(Objective):
    """alpha KL(p_T(x) || p(x')) + (1 - alpha) KL(p_T(x) || p(x)), where x' maximises the first.

    >>> z = torch.tensor([[2.0, 0.0]])
    >>> terms = RSLAD()(Outputs(z, -z, taught_clean={"robust": z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 1.269, 'clean': 0.0}
    """

    title = "RSLAD"
    needs_run = True
    uses = ForwardSpec(taught_clean=("robust",))
    alpha: Share = 5 / 6  # weight of x' against x
    teacher: Teacher = Teacher()  # trained by TRADES; a WRN-34-10 in the paper

    @property
    def teachers(self) -> Teachers:
        return {"robust": (self.teacher, "trades")}

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        return partial(away_from, context.teachers["robust"], pgd)

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        taught = outputs.taught_clean["robust"]
        zeroth, clean = kl(taught, outputs.logits_adv).mean(), kl(taught, outputs.clean).mean()
        return {"zeroth": self.alpha * zeroth, "clean": (1 - self.alpha) * clean}


def away_from(
    teacher: nn.Module, pgd: PGD, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None
) -> Tensor:
    """The recipe's attack with a teacher's probabilities at x in place of the model's own: KL(p_T(x) || p(x'))."""
    with torch.no_grad():
        taught = logits_of(teacher, x)
    with attack_mode(model):
        return pgd.ascend(model, x, taught, streams(generator, len(x), x.device))


METHOD = Method(
    objective=RSLAD(),
    attack=KL_ATTACK,
)
