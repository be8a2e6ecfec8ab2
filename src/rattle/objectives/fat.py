"""Friendly adversarial training (Zhang et al. 2020): the attack on an image stops soon after it is misclassified."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch, input_gradient, logits_of
from rattle.objectives.at import AT
from rattle.objectives.base import InnerAttack, Method, StepContext
from rattle.randomness import Randomness, streams
from rattle.settings import CountOrZero


def early_stopped_pgd(
    pgd: PGD, model: nn.Module, x: Tensor, y: Tensor, *, tau: int, omega: float, generator: Randomness = None
) -> Tensor:
    """PGD that each image leaves tau steps after it is misclassified; the others continue as a smaller batch.

    omega: std of the Gaussian noise added at every step.
    """
    x, y = check_batch(x, y)
    draws, threat = streams(generator, len(x), x.device), pgd.threat
    with attack_mode(model):
        with torch.no_grad():
            reference = logits_of(model, x) if pgd.loss == "kl" else y
        x_adv = threat.project(pgd.start_point(x, draws), x)
        found, row = torch.empty_like(x_adv), torch.arange(len(x), device=x.device)
        left = torch.full_like(row, tau)
        for _ in range(pgd.steps):
            point = x_adv.detach().requires_grad_()
            logits = logits_of(model, point)
            wrong = logits.argmax(1) != y
            live, left = ~wrong | (left > 0), left - wrong.long()
            found[row[~live]] = point.detach()[~live]
            if not bool(live.any()):
                return found
            gradient = input_gradient(pgd.sample_losses(logits, reference).sum(), point)
            row, x, y, reference, left = (value[live] for value in (row, x, y, reference, left))
            draws = draws[live]
            x_adv = threat.ascend(point.detach()[live], gradient[live], pgd.step_size)
            if omega:
                x_adv = x_adv + omega * draws.normal(*x.shape[1:]).to(x.dtype)
            x_adv = threat.project(x_adv, x)
        found[row] = x_adv
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FAT(AT):
    """CE(f(x'), y) + Taylor terms, x' of early-stopped PGD."""

    title = "FAT"
    soft_labels = False  # a class decides what is misclassified
    unused = ("restarts",)
    raise_at = (50 / 120, 90 / 120)  # fractions of the run at which tau grows by 1
    omega = 0.001  # std of the Gaussian noise added at every step of the attack
    tau: CountOrZero = 0  # steps that the attack still makes at a misclassified point, in the first epoch

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        passed = sum(context.moment.fraction >= fraction for fraction in self.raise_at)
        return partial(early_stopped_pgd, pgd, tau=self.tau + passed, omega=self.omega)


METHOD = Method(
    objective=FAT(),
)
