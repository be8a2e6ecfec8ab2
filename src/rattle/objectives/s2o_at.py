"""AT with second-order statistics of weights (S2O, Jin et al. 2022): soft labels from how logits vary together."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.losses import ce, kl_to_target
from rattle.objectives.base import Method, Reduce, check_fractions
from rattle.objectives.taylor_terms import PairObjective
from rattle.taylor import soft_targets
from rattle.weights import AWP


def second_order(z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> Tensor:
    """1/2 [KL(T[y] || p(x)) + KL(T'[y] || p(x'))], T the soft labels of A = mean z z^T, T' those of z' (S2O's code).

    Row k of T spreads 1 - 2/C over the other classes j in proportion to max_i |A_ki| - |A_kj|, and keeps 2/C for k: a
    class whose logit varies with that of k gets little. T carries no gradient.
    """
    if z.shape[1] < 3:
        raise RattleError(
            f"S2O needs 3 classes, got {z.shape[1]}: with two its soft labels are the labels; choose at or trades"
        )
    with torch.no_grad():  # averaged over ranks before abs, so that N ranks compute what one process would
        moments = reduce(torch.stack([each.T @ each / len(each) for each in (z, z_adv)]))
        rows, rows_adv = (soft_targets(-moment.abs())[y] for moment in moments)
    return 0.5 * (kl_to_target(rows, z) + kl_to_target(rows_adv, z_adv)).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class S2OAT(PairObjective):
    """(1 - share) CE(f(x'), y) + share 1/2 [KL(T[y] || p(x)) + KL(T'[y] || p(x'))] + Taylor terms.

    >>> from rattle.forward import Outputs
    >>> z = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> {name: round(float(value), 3) for name, value in S2OAT()(Outputs(z, z), torch.tensor([0, 1])).items()}
    {'zeroth': 0.432, 'statistics': 0.007}
    """

    title: ClassVar[str] = "AT-S2O"
    share: float = 0.1  # weight of the soft labels; the labels have the rest

    def __post_init__(self) -> None:
        check_fractions(self, "share")

    def terms_at(self, z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        return {
            "zeroth": (1 - self.share) * ce(z_adv, y).mean(),
            "statistics": self.share * second_order(z, z_adv, y, reduce),
        }


METHOD = Method(
    objective=S2OAT(),
    attack=PGD(loss="ce", start="uniform"),
    awp=AWP(gamma=0.01, warmup=0),
)
