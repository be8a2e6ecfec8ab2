"""Projected gradient descent (Madry et al. 2018): FGSM, PGD-K, CW-K and the TRADES inner loop are settings of it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch, check_labels, input_gradient, logits_of
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.settings import Count, NonNegative, check_settings
from rattle.threat import Threat, per_image


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
    steps: Count = 10  # K, number of steps
    step_size: NonNegative = 2 / 255  # eta_s, length of a step
    loss: Literal["ce", "kl", "cw"] = "ce"  # cross-entropy | KL(p(x) || p(x')), as TRADES | CW margin
    start: Literal["gaussian", "uniform", "none"] = "uniform"  # x + 0.001 N(0, I) | uniform in the ball | x itself
    restarts: Count = 1  # independent starts; the point of highest loss of each image is returned

    def __post_init__(self) -> None:
        check_settings(self, "attack")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y, soft=self.loss != "cw")
        draws = streams(generator, len(x), x.device)
        with attack_mode(model):
            reference = y
            if self.loss == "kl":  # the clean logits do not change while x' does: once, not at every step
                with torch.no_grad():
                    reference = logits_of(model, x)
            best = self.ascend(model, x, reference, draws)
            for _ in range(self.restarts - 1):
                x_adv = self.ascend(model, x, reference, draws)
                with torch.no_grad():
                    loss = self.sample_losses(logits_of(model, x_adv), reference)
                    best_loss = self.sample_losses(logits_of(model, best), reference)
                best = torch.where(per_image(loss > best_loss, x), x_adv, best)
            return best

    def ascend(self, model: nn.Module, x: Tensor, reference: Tensor, draws: ImageStreams) -> Tensor:
        """One run of `steps` steps."""
        x_adv = self.start_point(x, draws)
        for step in range(self.steps):
            x_adv = x_adv.detach().requires_grad_()
            logits = logits_of(model, x_adv)
            if step == 0 and self.loss != "kl":
                check_labels(logits, reference)
            gradient = input_gradient(self.sample_losses(logits, reference).sum(), x_adv)
            x_adv = self.threat.ascend(x_adv.detach(), gradient, self.step_size)
            x_adv = self.threat.project(x_adv, x)
        return x_adv

    def start_point(self, x: Tensor, draws: ImageStreams) -> Tensor:
        """Where the first step begins: x, x + 0.001 N(0, I), or anywhere in the ball."""
        if self.start == "gaussian":
            return x + 0.001 * draws.normal(*x.shape[1:]).to(x.dtype)
        if self.start == "uniform":
            return self.threat.random_start(x, draws)
        return x

    def sample_losses(self, logits: Tensor, reference: Tensor) -> Tensor:
        """The loss of each image, [n]; `reference` is the clean logits for kl, the labels otherwise."""
        losses.refuse_one_logit(logits)
        if self.loss == "kl":
            return losses.kl(reference, logits)
        if self.loss == "cw":
            return losses.cw(logits, reference)
        return losses.ce(logits, reference)
