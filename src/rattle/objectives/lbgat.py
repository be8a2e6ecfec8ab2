"""LBGAT (Cui et al. 2021): the logits at x' follow those at x of a plain network that is trained along."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, StepContext, Teacher, Teachers, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.objectives.trades import KL_ATTACK
from rattle.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class LBGAT(TaylorObjective):
    """MSE(z(x'), z_T(x)) + CE(z_T(x), y) + beta KL(p(x) || p(x')) + Taylor terms; T learns from the first two.

    The model sees x also where beta is 0, as the authors' does: BatchNorm's statistics come from both.

    >>> import torch; z = torch.tensor([[2.0, 0.0]])
    >>> terms = LBGAT()(Outputs(z, -z, taught_clean={"natural": z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'guided': 8.0, 'teacher': 0.127, 'zeroth': 9.139}
    """

    title = "LBGAT"
    trade_off = "objective.beta"
    needs_run = True
    uses = ForwardSpec(taught_clean=("natural",))
    beta: NonNegative = 6.0  # weight of the KL term, as in TRADES: 6 or 0 in the paper
    teacher: Teacher = Teacher()  # trained along; a ResNet-18 beside a WRN-34-10 in the paper

    @property
    def teachers(self) -> Teachers:
        return {"natural": (self.teacher, "cotrained")}

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        taught = outputs.taught_clean["natural"]  # not detached: the teacher is also pulled towards the model
        terms = {
            "guided": outputs.mean(lambda z, z_adv: F.mse_loss(z_adv, taught)),
            "teacher": ce(taught, y).mean(),
        }
        if self.beta:
            terms["zeroth"] = self.beta * outputs.mean(kl)
        return terms


METHOD = Method(
    objective=LBGAT(),
    attack=KL_ATTACK,
)
