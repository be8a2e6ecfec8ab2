"""AT with second-order statistics of weights (S2O, Jin et al. 2022): soft labels from how logits vary together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import Outputs
from rattle.losses import ce, kl_to_target
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import Between
from rattle.taylor import soft_targets
from rattle.weights import AWP


def second_order(outputs: Outputs, y: Tensor, context: StepContext) -> Tensor:
    """1/2 [KL(T[y] || p(x)) + KL(T'[y] || p(x'))], T the soft labels of A = mean z z^T, T' those of z' (S2O's code).

    Row k of T spreads 1 - 2/C over the other classes j in proportion to max_i |A_ki| - |A_kj|, and keeps 2/C for k: a
    class whose logit varies with that of k gets little. T carries no gradient.
    """
    classes = outputs.logits_adv.shape[1]
    if classes < 3:
        raise RattleError(
            f"S2O needs 3 classes, got {classes}: with two its soft labels are the labels; choose at or trades"
        )

    def term(z: Tensor, z_adv: Tensor) -> Tensor:
        with torch.no_grad():  # averaged over ranks before abs, so that N ranks compute what one process would
            moments = torch.stack([z.T @ z / len(z), z_adv.T @ z_adv / len(z_adv)])
            moment, moment_adv = context.mean(moments)
            rows, rows_adv = soft_targets(-moment.abs(), y), soft_targets(-moment_adv.abs(), y)
        return 0.5 * (kl_to_target(rows, z) + kl_to_target(rows_adv, z_adv)).mean()

    return outputs.mean(term)


@dataclass(frozen=True, slots=True, kw_only=True)
class S2OAT(TaylorObjective):
    """(1 - share) CE(f(x'), y) + share 1/2 [KL(T[y] || p(x)) + KL(T'[y] || p(x'))] + Taylor terms.

    >>> z = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> {name: round(float(value), 3) for name, value in S2OAT()(Outputs(z, z), torch.tensor([0, 1])).items()}
    {'zeroth': 0.432, 'statistics': 0.007}
    """

    title = "AT-S2O"
    smooths = True
    share: Between = 0.1  # weight of the soft labels; the labels have the rest

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {
            "zeroth": outputs.mean(lambda z, z_adv: (1 - self.share) * ce(z_adv, y).mean()),
            "statistics": self.share * second_order(outputs, y, context),
        }


METHOD = Method(
    objective=S2OAT(),
    awp=AWP(gamma=0.01, warmup=0),
)
