"""DKL, the improved KL loss (IKL-AT, Cui et al. 2023), and its generalisation (GKL): TRADES' term taken apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.forward import Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, StepContext, Terms, label_rows
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.objectives.trades import KL_ATTACK
from rattle.settings import NonNegative, Positive
from rattle.weights import AWP, Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class DKL(TaylorObjective):
    """CE(f(x), y) + beta/4 sum_jk w_j w_k (D_jk(x) - D_jk(x'))^2 + alpha CE(f(x'), p(x)) + Taylor terms.

    D_jk(x) = f_j(x) - f_k(x). w is what the class y looked like in the epoch before: the mean over its images of the
    softmax at `temperature`, to the power `gamma`; 1/C in the first epoch. p(x) is a constant in the last term.
    """

    title = "DKL"
    trade_off = "objective.beta"
    needs_run = True
    alpha: NonNegative = 4.0  # weight of the soft cross-entropy
    beta: NonNegative = 20.0  # weight of the squared differences
    temperature: Positive = 4.0  # temperature of the softmax in w
    gamma: NonNegative = 1.0  # power of w: 1 is IKL, less (0.2, with temperature 1) is GKL

    def state(self, *, images: int, classes: int, batch: torch.Size) -> Tensors:
        # Sums over batches of the softmax of each class, in even and in odd epochs; which epoch is being summed.
        return {"sums": torch.zeros(2, classes, classes), "epoch": torch.full((1,), -1.0)}

    def remember(self, outputs: Outputs, y: Tensor, context: StepContext) -> None:
        p = (outputs.clean.detach() / self.temperature).softmax(1)
        sums, counted = context.memory.tensors["sums"], context.memory.tensors["epoch"]
        epoch = context.moment.epoch
        so_far = torch.where(counted == epoch, sums[epoch % 2], 0.0)  # the first step of an epoch forgets older ones
        added = context.mean(label_rows(y, p.shape[1], p.dtype).T @ p / len(y))
        sums[epoch % 2] = so_far + added.to(sums.dtype)
        counted.fill_(epoch)

    def class_means(self, outputs: Outputs, context: StepContext) -> Tensor:
        """The mean softmax of each class in the epoch before, [C, C]; 1/C for a class that had no images."""
        classes = outputs.logits_adv.shape[1]
        if "sums" not in context.memory.tensors:  # outside of a run
            return outputs.logits_adv.new_full((classes, classes), 1 / classes)
        sums = context.memory.tensors["sums"][(context.moment.epoch + 1) % 2]
        seen = sums.sum(1, keepdim=True)
        return torch.where(seen > 0, sums / seen.clamp_min(1e-12), 1 / classes).to(outputs.logits_adv)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        means = self.class_means(outputs, context)
        w = (label_rows(y, len(means), means.dtype) @ means) ** self.gamma
        return {
            "clean": outputs.mean(lambda z, z_adv: ce(z, y)),
            "zeroth": outputs.mean(lambda z, z_adv: self.beta * pairwise(z - z_adv, w, context)),
            "soft": outputs.mean(lambda z, z_adv: self.alpha * ce(z_adv, z.detach().softmax(1)).mean()),
        }


def pairwise(gap: Tensor, w: Tensor, context: StepContext) -> Tensor:
    """1/4 sum_jk w_j w_k (gap_j - gap_k)^2 over sum_jk w_j w_k, both summed over images; [n, C] and never [n, C, C].

    The sum over pairs is 2 |w| sum_j w_j (gap_j - m)^2, |w| the sum of w and m the mean of gap by w.
    """
    size = w.sum(1)
    mean = (w * gap).sum(1) / size
    spread = (w * (gap - mean[:, None]).square()).sum(1)
    return (0.5 * size * spread).mean() / context.mean(size.square().mean())


METHOD = Method(
    objective=DKL(),
    attack=KL_ATTACK,
    awp=AWP(),
    ramp=1.0,
)
