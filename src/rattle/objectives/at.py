"""Plain adversarial training (Madry et al. 2018), and the paper's terms on top of it (Table 8)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, Reduce, unreduced
from rattle.objectives.taylor_terms import Taylor
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class AT:
    """CE(f(x'), y) + Taylor terms; without them the model never sees x.

    >>> terms = AT()(Outputs(None, torch.tensor([[2.0, 0.0, 0.0]])), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 0.24}
    """

    title: ClassVar[str] = "AT"
    soft_labels: ClassVar[bool] = True
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms

    @property
    def needs(self) -> ForwardSpec:
        return self.taylor.needs(clean=False)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        zeroth = torch.stack([ce(z_adv, y).mean() for z_adv in outputs.draws_adv]).mean()
        return {"zeroth": zeroth} | self.taylor(outputs, y, reduce=reduce)


METHOD = Method(
    objective=AT(),
    attack=PGD(loss="ce", start="uniform"),
    awp=AWP(gamma=0.01, warmup=0),
)
