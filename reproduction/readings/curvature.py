"""The second derivative of the KL itself: what noise on the weights adds to the zeroth term, to second order.

With eta 1/lambda, `trace` and `head-noise` are what the zeroth term gains on average when u moves the weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, PairedForward, at_least_float32
from rattle.objectives.base import StepContext
from rattle.objectives.readings import Reading
from rattle.objectives.taylor_terms import Taylor
from rattle.taylor import directional
from rattle.weights import Delta, Noise, filter_rms, frozen_bn_stats
from reproduction.readings.jets import NoRule, derivatives


class Trace(Reading):
    """E_u of u^T H u by draws of u, H the second derivative of KL(p(x) || p(x')) by the weights (Hutchinson)."""

    orders = (2,)

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(draw=Noise.__call__, along_u=with_jets)

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        assert outputs.logits is not None, "needs() asks for the logits at x"
        first, second = outputs.derivatives
        draws = len(first[0]) // len(outputs.logits)
        z, z_adv = outputs.logits.repeat(draws, 1), outputs.logits_adv.repeat(draws, 1)
        return {"second": kl_curvature(z, z_adv, first, second).mean()}


class HeadNoise(Reading):
    """The same for noise on the head's weights alone, in closed form."""

    orders = (2,)

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(features=True, draw=std_of_noise, along_u=with_variance)

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        z, h, h_adv = outputs.logits, outputs.features, outputs.features_adv
        assert z is not None
        assert h is not None
        assert h_adv is not None
        ((variance, _),) = outputs.derivatives
        return {"second": head_noise_trace(h, h_adv, z, outputs.logits_adv, variance).mean()}


def along(model: nn.Module, x: Tensor, u: Delta) -> list[Tensor]:
    """[g'(w)^T u, u^T g''(w) u] of the logits g, by jets or, where a layer has no rule there, by nested jvp."""
    try:
        with frozen_bn_stats(model):
            return derivatives(model, x, u, 2)
    except NoRule:
        return directional(model, x, u, 2)


def with_jets(forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...]) -> Outputs:
    """The outputs with both derivatives of the logits at x and x', those of all draws stacked."""
    at_x, at_x_adv = ([along(forward.model, images, draw) for draw in u] for images in (x, x_adv))
    pairs = []
    for k in range(2):
        clean, adv = torch.cat([each[k] for each in at_x]), torch.cat([each[k] for each in at_x_adv])
        pairs.append((at_least_float32(clean), at_least_float32(adv)))
    return replace(outputs, derivatives=tuple(pairs))


def std_of_noise(noise: Noise, model: nn.Module, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """In place of a draw of u its standard deviation for each filter (each row of a matrix), [out, 1, ...]."""
    found = {}
    for name, p in model.named_parameters():
        if noise.moves(p):
            rms = filter_rms(p.detach())
            found[name] = noise.sigma * (rms if noise.scale == "filter" else torch.ones_like(rms))
    return found


def with_variance(forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...]) -> Outputs:
    """The outputs with the variance of the noise on each row of the head, [C], in the place of derivatives."""
    head = forward.head[0]
    (name,) = (name for name, p in forward.model.named_parameters() if head is not None and p is head.weight)
    if name not in u[0]:
        raise RattleError(f"objective.taylor.mode head-noise needs noise on {name}")
    variance = u[0][name].flatten().square()
    return replace(outputs, derivatives=((variance, variance),))


def kl_curvature(z: Tensor, z_adv: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """u^T H u of KL(p || p') for each image, [n], from the logits and their derivatives along u at x and x'.

    For u ~ N(0, sigma^2) half of it has the mean (sigma^2 / 2) tr H, what noise adds to the KL (Hutchinson).
    """
    (a, b), (a2, b2), log_p, log_q = first, second, z.log_softmax(1), z_adv.log_softmax(1)
    p, q = log_p.exp(), log_q.exp()
    ratio = log_p - log_q
    ratio = ratio - (p * ratio).sum(1, keepdim=True)  # log p/p' less its mean, which is the KL
    a, b = a - (p * a).sum(1, keepdim=True), b - (q * b).sum(1, keepdim=True)
    by_z = p * (ratio * (a * a + a2) + a * a - 2 * a * b)
    return (by_z + q * b * b + (q - p) * b2).sum(1)


def head_noise_trace(h: Tensor, h_adv: Tensor, z: Tensor, z_adv: Tensor, variance: Tensor) -> Tensor:
    """The mean of `kl_curvature` over Gaussian noise on the head's weights alone, [n], in closed form.

    Such noise moves logit k by N(0, variance_k |h|^2), at x and x' with the covariance variance_k h.h'. h, h_adv: the
    head's inputs [n, d]; z, z_adv: the logits [n, C]; variance: of the noise on each class's row, [C].
    """
    log_p, log_q = z.log_softmax(1), z_adv.log_softmax(1)
    p, q = log_p.exp(), log_q.exp()
    ratio = log_p - log_q
    ratio = ratio - (p * ratio).sum(1, keepdim=True)
    square, product, square_adv = ((s * t).sum(1, keepdim=True) for s, t in ((h, h), (h, h_adv), (h_adv, h_adv)))
    by_z = square * p * (1 - 2 * p) * ratio + (square - 2 * product) * p * (1 - p)
    return ((by_z + square_adv * q * (1 - q)) * variance).sum(1)
