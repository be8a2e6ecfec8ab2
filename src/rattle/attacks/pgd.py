"""Projected gradient descent (Madry et al. 2018): FGSM, PGD-K, CW-K and the TRADES inner loop are settings of it."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import attack_mode, check_at_least
from rattle.attacks.keeping import kept
from rattle.inputs import check_batch, check_labels, logits_of
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class PGD:
    """x' <- project(x' + step_size * steepest(grad loss)), `steps` times (Algorithm 1, inner maximisation).

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> x_adv = PGD(steps=20)(model, x, y)
    >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
    True
    """

    threat: Threat = Threat()
    steps: int = 10  # K
    step_size: float = 2 / 255  # eta_s
    loss: Literal["ce", "kl", "cw"] = "ce"  # maximised: cross-entropy | KL(p(x) || p(x')), as TRADES | CW margin
    start: Literal["gaussian", "uniform", "none"] = "uniform"  # x + 0.001 N(0, I) | uniform in the ball | x itself
    restarts: int = 1  # independent starts; the point of highest loss of each image is returned
    box_first: bool = False  # clip to [0, 1] before the projection to the l_2 ball too, as the authors' release

    def __post_init__(self) -> None:
        check_at_least(self, steps=1, restarts=1, step_size=0)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y, soft=self.loss != "cw")
        draws = streams(generator, x)
        with attack_mode(model):
            with torch.no_grad():  # the clean logits do not change while x' does: once, not at every step
                reference = logits_of(model, x) if self.loss == "kl" else y
            best = SimpleNamespace(x_adv=x, draws=draws)
            for restart in kept("restarts", range(self.restarts), best):
                x_adv = self.ascend(model, x, reference, draws)
                if restart:
                    with torch.no_grad():
                        loss, lead = (self.sample_losses(logits_of(model, z), reference) for z in (x_adv, best.x_adv))
                    x_adv = torch.where((loss > lead).view(-1, *[1] * (x.ndim - 1)), x_adv, best.x_adv)
                best.x_adv = x_adv
            return best.x_adv

    def ascend(self, model: nn.Module, x: Tensor, reference: Tensor, draws: ImageStreams) -> Tensor:
        """One run of `steps` steps."""
        point = SimpleNamespace(x_adv=self.start_point(x, draws))
        for step in kept("steps", range(self.steps), point):
            x_adv = point.x_adv.detach().requires_grad_()
            logits = logits_of(model, x_adv)
            if step == 0 and self.loss != "kl":
                check_labels(logits, reference)
            (gradient,) = torch.autograd.grad(self.sample_losses(logits, reference).sum(), x_adv)
            x_adv = self.threat.ascend(x_adv.detach(), gradient, self.step_size)
            point.x_adv = self.threat.project(x_adv.clamp_(0, 1) if self.box_first else x_adv, x)
        return point.x_adv.detach()

    def start_point(self, x: Tensor, draws: ImageStreams) -> Tensor:
        """Where the first step begins: x, x + 0.001 N(0, I), or anywhere in the ball."""
        if self.start == "gaussian":
            return x + 0.001 * draws.normal(*x.shape[1:]).to(x.dtype)
        return self.threat.random_start(x, draws) if self.start == "uniform" else x

    def sample_losses(self, logits: Tensor, reference: Tensor) -> Tensor:
        """The loss of each image, [n]; `reference` is the clean logits for kl, the labels otherwise."""
        losses.refuse_one_logit(logits)
        if self.loss == "kl":
            return losses.kl(reference, logits)
        return losses.cw(logits, reference) if self.loss == "cw" else losses.ce(logits, reference)
