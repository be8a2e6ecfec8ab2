"""TRADES (Zhang et al. 2019), and the paper's extension of it (Algorithm 1): TRADES itself without Taylor terms."""

from dataclasses import dataclass

from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import Taylor, TaylorObjective
from rattle.settings import NonNegative
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class Trades(TaylorObjective):
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms (Algorithm 1, outer minimisation).

    >>> import torch; z, z_adv = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> terms = Trades()(Outputs(z, z_adv), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'clean': 0.24, 'zeroth': 8.166}
    """

    title = "TRADES"
    trade_off = "objective.inv_lambda"
    soft_labels = True
    inv_lambda: NonNegative = 6.0  # 1/lambda, weight of the zeroth term (TRADES' beta)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        zeroth = outputs.mean(kl)
        return {"clean": self.clean_loss(outputs.clean, y), "zeroth": self.inv_lambda * zeroth}

    def clean_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss at x, a scalar."""
        return ce(logits, y).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Trades):
    """TRADES + 1st + 2nd of the authors' release (-released), whose terms only training/released.py computes."""

    needs_run = True
    taylor: Taylor = Taylor(order=2)

    def __post_init__(self) -> None:
        Trades.__post_init__(self)
        if self.taylor.order != 2 or self.taylor.mode != "head":
            raise RattleError("objective.kind Released has objective.taylor.order 2 and mode head, as the release does")


KL_ATTACK = PGD(loss="kl", start="gaussian")  # TRADES' inner maximisation

METHOD = Method(
    objective=Trades(),
    attack=KL_ATTACK,
    awp=AWP(),
)
