"""DKL, the improved KL loss (IKL-AT, Cui et al. 2023), and its generalisation (GKL): TRADES' term taken apart."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Method, Reduce, StepContext, averaged, check_weights, label_rows, unreduced
from rattle.objectives.taylor_terms import Taylor
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class DKL:
    """CE(f(x), y) + beta/4 sum_jk w_j w_k (D_jk(x) - D_jk(x'))^2 + alpha CE(f(x'), p(x)) + Taylor terms.

    D_jk(x) = f_j(x) - f_k(x). w is what the class y looked like in the epoch before: the mean over its images of the
    softmax at `temperature`, to the power `gamma`; 1/C in the first epoch. p(x) is a constant in the last term.
    """

    title: ClassVar[str] = "DKL"
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    alpha: float = 4.0  # weight of the soft cross-entropy
    beta: float = 20.0  # weight of the squared differences
    temperature: float = 4.0  # of the softmax in w
    gamma: float = 1.0  # power of w: 1 is IKL, less (0.2, with temperature 1) is GKL

    def __post_init__(self) -> None:
        check_weights(self, "alpha", "beta", "gamma")
        if not self.temperature > 0:
            raise RattleError(f"objective.temperature must be > 0, got {self.temperature}")

    @property
    def needs(self) -> ForwardSpec:
        return self.taylor.needs(clean=True)

    def initial_class_memory(self, classes: int) -> dict[str, Tensor]:
        # Sums over batches of the softmax of each class, in even and in odd epochs; which epoch is being summed.
        return {"sums": torch.zeros(2, classes, classes), "epoch": torch.full((1,), -1.0)}

    def remember(self, outputs: Outputs, y: Tensor, context: StepContext, *, reduce: Reduce) -> None:
        assert outputs.logits is not None, "needs() asks for the logits at x"
        p = (outputs.logits.detach() / self.temperature).softmax(1)
        sums, counted = (context.memory.tensors[name] for name in ("sums", "epoch"))
        epoch = context.moment.epoch
        so_far = torch.where(counted == epoch, sums[epoch % 2], 0.0)  # the first step of an epoch forgets older ones
        sums[epoch % 2] = so_far + reduce(label_rows(y, len(p.T), p.dtype).T @ p / len(y)).to(
            sums.dtype
        )  # on any number of ranks the same
        counted.fill_(epoch)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        classes = outputs.logits_adv.shape[1]
        return self.terms(outputs, y, outputs.logits_adv.new_zeros(classes, classes), reduce)

    def terms_in(
        self, context: StepContext, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced
    ) -> dict[str, Tensor]:
        return self.terms(outputs, y, context.memory.tensors["sums"][(context.moment.epoch + 1) % 2], reduce)

    def terms(self, outputs: Outputs, y: Tensor, sums: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        """The terms; sums: those of the epoch before, [C, C], with zeros for a class that had no images."""
        seen = sums.sum(1, keepdim=True)
        means = torch.where(seen > 0, sums / seen.clamp_min(1e-12), 1 / len(sums)).to(outputs.logits_adv)
        w = (label_rows(y, len(means), means.dtype) @ means) ** self.gamma

        def terms_at(z: Tensor, z_adv: Tensor) -> dict[str, Tensor]:
            return {
                "clean": ce(z, y).mean(),
                "zeroth": self.beta * pairwise(z - z_adv, w, reduce),
                "soft": self.alpha * ce(z_adv, z.detach().softmax(1)).mean(),
            }

        return averaged(terms_at, outputs.pairs) | self.taylor(outputs, y, reduce=reduce)


def pairwise(gap: Tensor, w: Tensor, reduce: Reduce) -> Tensor:
    """1/4 sum_jk w_j w_k (gap_j - gap_k)^2 over sum_jk w_j w_k, both summed over images; [n, C] and never [n, C, C].

    The sum over pairs is 2 |w| sum_j w_j (gap_j - m)^2, |w| the sum of w and m the mean of gap by w.
    """
    size = w.sum(1)
    mean = (w * gap).sum(1) / size
    spread = (w * (gap - mean[:, None]).square()).sum(1)
    return (0.5 * size * spread).mean() / reduce(size.square().mean())


METHOD = Method(
    objective=DKL(),
    attack=PGD(loss="kl", start="gaussian"),
    awp=AWP(gamma=0.005, warmup=10),
    ramp=1.0,
)
