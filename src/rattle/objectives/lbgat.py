"""LBGAT (Cui et al. 2021): the logits at x' follow those at x of a plain network that is trained along."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, Reduce, Teacher, check_weights, unreduced
from rattle.objectives.taylor_terms import Taylor


@dataclass(frozen=True, slots=True, kw_only=True)
class LBGAT:
    """MSE(z(x'), z_T(x)) + CE(z_T(x), y) + beta KL(p(x) || p(x')) + Taylor terms; T learns from the first two.

    >>> z = torch.tensor([[2.0, 0.0]])
    >>> terms = LBGAT()(Outputs(z, -z, taught_clean={"natural": z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'guided': 8.0, 'teacher': 0.127, 'zeroth': 9.139}
    """

    title: ClassVar[str] = "LBGAT"
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    beta: float = 6.0  # weight of the KL term, as in TRADES: 6 or 0 in the paper
    teacher: Teacher = Teacher()  # trained along; a ResNet-18 beside a WRN-34-10 in the paper

    def __post_init__(self) -> None:
        check_weights(self, "beta")

    @property
    def needs(self) -> ForwardSpec:
        # x also where beta is 0, as the authors do: BatchNorm's statistics come from both.
        return replace(self.taylor.needs(clean=True), taught_clean=("natural",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"natural": (self.teacher, "cotrained")}

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        taught = outputs.taught_clean["natural"]  # not detached: the teacher is also pulled towards the model
        terms = {
            "guided": torch.stack([F.mse_loss(z_adv, taught) for _, z_adv in outputs.pairs]).mean(),
            "teacher": ce(taught, y).mean(),
        }
        if self.beta:
            terms["zeroth"] = self.beta * torch.stack([kl(z, z_adv).mean() for z, z_adv in outputs.pairs]).mean()
        return terms | self.taylor(outputs, y, reduce=reduce)


METHOD = Method(
    objective=LBGAT(),
    attack=PGD(loss="kl", start="gaussian"),
)
