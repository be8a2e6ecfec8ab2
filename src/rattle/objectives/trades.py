"""TRADES (Zhang et al. 2019), and the paper's extension of it (Algorithm 1): TRADES itself without Taylor terms."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, Reduce, check_weights, unreduced
from rattle.objectives.taylor_terms import Taylor
from rattle.settings import check_settings
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class Trades:
    """clean + (1/lambda) zeroth + eta first + (eta/2) second (Algorithm 1, outer minimisation).

    >>> z, z_adv = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> terms = Trades()(Outputs(z, z_adv), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'clean': 0.24, 'zeroth': 8.166}
    """

    title: ClassVar[str] = "TRADES"
    soft_labels: ClassVar[bool] = True
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    inv_lambda: float = 6.0  # 1/lambda, weight of the zeroth term (TRADES' beta)
    clean_weight: Literal["one", "one-minus-eta"] = "one"  # weight of the clean term: the paper's | the release's

    def __post_init__(self) -> None:
        check_settings(self, "objective")
        check_weights(self, "inv_lambda")
        if self.clean_weight == "one-minus-eta" and self.taylor.order == 0:
            raise RattleError("objective.clean_weight one-minus-eta does nothing without Taylor terms")

    @property
    def needs(self) -> ForwardSpec:
        return self.taylor.needs(clean=True)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        assert outputs.logits is not None, "needs() asks for the logits at x"
        clean = self.clean_loss(outputs.logits, y) * (1 if self.clean_weight == "one" else 1 - self.taylor.weight)
        zeroth = torch.stack([kl(z, z_adv).mean() for z, z_adv in outputs.pairs]).mean()
        return {"clean": clean, "zeroth": self.inv_lambda * zeroth} | self.taylor(outputs, y, reduce=reduce)

    def clean_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss at x, a scalar."""
        return ce(logits, y).mean()


METHOD = Method(
    objective=Trades(),
    attack=PGD(loss="kl", start="gaussian"),
    awp=AWP(gamma=0.005, warmup=10),
)
