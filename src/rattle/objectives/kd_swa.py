"""KD + SWA (Chen et al. 2021): AT smoothed by a standard and a robust teacher at x', and by averaged weights."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, StepContext, Teacher, Teachers, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import NonNegative, Positive
from rattle.weights import SWA


@dataclass(frozen=True, slots=True, kw_only=True)
class KD(TaylorObjective):
    """l1 CE(f(x'), y) + l2 KD(f(x'), f_std(x')) + l3 KD(f(x'), f_adv(x')) + Taylor terms.

    KD(z, z_T) = T^2 CE(softmax(z_T / T), softmax(z / T)), of two logits at the temperature T.

    >>> import torch; z = torch.tensor([[2.0, 0.0]])
    >>> terms = KD()(Outputs(None, z, taught_adv={"standard": z, "robust": -z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 0.038, 'standard': 0.233, 'robust': 2.506}
    """

    title = "KD"
    needs_run = True
    uses = ForwardSpec(clean=False, taught_adv=("standard", "robust"))
    ce_weight: NonNegative = 0.3  # lambda_1, weight of the cross-entropy
    standard_weight: NonNegative = 0.1  # lambda_2, weight of the standard teacher
    robust_weight: NonNegative = 0.6  # lambda_3, weight of the robust teacher
    temperature: Positive = 2.0  # T, temperature of the distillation
    standard_teacher: Teacher = Teacher()  # trained without an adversary
    robust_teacher: Teacher = Teacher()  # trained by AT

    @property
    def teachers(self) -> Teachers:
        return {"standard": (self.standard_teacher, "standard"), "robust": (self.robust_teacher, "at")}

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        t = self.temperature

        def distilled(teacher: str) -> Tensor:
            target = (outputs.taught_adv[teacher] / t).softmax(1)
            return t**2 * outputs.mean(lambda z, z_adv: ce(z_adv / t, target))

        hard = outputs.mean(lambda z, z_adv: F.cross_entropy(z_adv, y))
        return {
            "zeroth": self.ce_weight * hard,
            "standard": self.standard_weight * distilled("standard"),
            "robust": self.robust_weight * distilled("robust"),
        }


METHOD = Method(
    objective=KD(),
    drops=(0.25, 0.75),  # epochs 50 and 150 of 200, so that the average begins after the first
    average=SWA(),
)
