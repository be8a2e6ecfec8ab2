"""Plain adversarial training (Madry et al. 2018), and the paper's terms on top of it (Table 8)."""

from dataclasses import dataclass

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class AT(TaylorObjective):
    """CE(f(x'), y) + Taylor terms; without them the model never sees x.

    >>> import torch; terms = AT()(Outputs(None, torch.tensor([[2.0, 0.0, 0.0]])), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 0.24}
    """

    title = "AT"
    soft_labels = True
    uses = ForwardSpec(clean=False)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {"zeroth": outputs.mean(lambda z, z_adv: ce(z_adv, y))}


METHOD = Method(
    objective=AT(),
    awp=AWP(gamma=0.01, warmup=0),
)
