"""Projected gradient descent (Madry et al. 2018): FGSM, PGD-K, CW-K and the TRADES inner loop are settings of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_batch, logits_of
from rattle.attacks.batchnorm import attack_mode
from rattle.errors import RattleError
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
    loss: Literal["ce", "kl", "cw"] = "ce"  # to climb: cross-entropy | KL(p(x) || p(x')), as TRADES | CW margin
    start: Literal["gaussian", "uniform", "none"] = "uniform"  # x + 0.001 N(0, I) | uniform in the ball | x itself
    restarts: int = 1  # independent starts; the worst point of each image is kept

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RattleError(f"attack.steps must be >= 1, got {self.steps}")
        if self.restarts < 1:
            raise RattleError(f"attack.restarts must be >= 1, got {self.restarts}")
        if not self.step_size >= 0:
            raise RattleError(f"attack.step_size must be >= 0, got {self.step_size}")
        if self.loss not in ("ce", "kl", "cw"):
            raise RattleError(f"attack.loss must be ce, kl or cw, got {self.loss!r}")
        if self.start not in ("gaussian", "uniform", "none"):
            raise RattleError(f"attack.start must be gaussian, uniform or none, got {self.start!r}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        check_batch(x, y)
        draws = streams(generator, x)
        with attack_mode(model):
            with torch.no_grad():  # the clean target does not move while x' does: once, not at every step
                reference = logits_of(model, x) if self.loss == "kl" else y
            best = self.climb(model, x, reference, draws)
            if self.restarts == 1:
                return best
            with torch.no_grad():
                highest = self.height(logits_of(model, best), reference)
                for _ in range(self.restarts - 1):
                    x_adv = self.climb(model, x, reference, draws)
                    height = self.height(logits_of(model, x_adv), reference)
                    higher = height > highest
                    best[higher], highest[higher] = x_adv[higher], height[higher]
            return best

    def climb(self, model: nn.Module, x: Tensor, reference: Tensor, draws: ImageStreams) -> Tensor:
        """One run of `steps` steps."""
        x_adv = self.first_point(x, draws)
        for _ in range(self.steps):
            with torch.enable_grad():
                x_adv = x_adv.detach().requires_grad_()
                loss = self.height(logits_of(model, x_adv), reference).sum()
                (gradient,) = torch.autograd.grad(loss, x_adv)
            x_adv = self.threat.project(self.threat.ascend(x_adv.detach(), gradient, self.step_size), x)
        return x_adv.detach()

    def first_point(self, x: Tensor, draws: ImageStreams) -> Tensor:
        if self.start == "gaussian":
            return x + 0.001 * draws.normal(*x.shape[1:]).to(x.dtype)
        return self.threat.random_start(x, draws) if self.start == "uniform" else x

    def height(self, logits: Tensor, reference: Tensor) -> Tensor:
        """The loss being climbed, [n]; `reference` is the clean logits for kl, the labels otherwise."""
        return {"ce": losses.ce, "cw": losses.cw, "kl": lambda z, clean: losses.kl(clean, z)}[self.loss](
            logits, reference
        )
