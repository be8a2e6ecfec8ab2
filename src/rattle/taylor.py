"""The contribution: what the first- and second-order Taylor terms compare, in closed form and exactly.

`head` (the paper's Appendix D as its experiments ran it) needs no pass of its own: the gradient of the cross-entropy
by the last linear layer W [C, d] is (p - onehot(y)) h^T, so its row sums follow from features and logits at hand.
`directional` is the expansion taken at its word: derivatives of the logits g along u. `kl_curvature` makes of them the
second derivative of the KL itself; `head_noise_trace` is its mean over noise on the head alone, in closed form.
Pure mathematics: no rank, no optimiser, no settings.
"""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rattle.errors import RattleError, first_line
from rattle.jets import NoRule, derivatives
from rattle.losses import logits_in
from rattle.weights import frozen_bn_stats


def head_gradient(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Row sums of d CE / d W_head, [C], from features [n, d], logits [n, C], y [n] (App. D).

    >>> h, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    >>> head_gradient(h, torch.zeros(1, 2), y)
    tensor([-1.5000,  1.5000])
    """
    with torch.no_grad():  # only targets are made of it, and targets carry no gradient
        residual = logits.softmax(1) - F.one_hot(y, logits.shape[1])
        return (residual * features.sum(1, keepdim=True)).mean(0)


def head_curvature(features: Tensor, logits: Tensor) -> Tensor:
    """Block sums of d^2 CE / d W_head^2, [C]: over i, k of d^2 / dW_ji dW_jk for class j, which no label enters.

    >>> head_curvature(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2))
    tensor([2.2500, 2.2500])
    """
    with torch.no_grad():
        p = logits.softmax(1)
        return (p * (1 - p) * features.sum(1, keepdim=True).square()).mean(0)


def soft_targets(gap: Tensor, mass: float | None = None) -> Tensor:
    """One row of soft labels for each class, [C, C], from the gap [C] between clean and adversarial values (App. D).

    Row k spreads the mass c, 1 - 2/C when not given, over the other classes in proportion to the shifted gap (its row k
    if it is [C, C]) and keeps 1 - c for k (0.8 / 0.2 for 10 classes, 0.98 / 0.02 for 100). Where no other class has any
    gap the row is uniform. Two classes give c = 0: hard labels, and the Taylor terms become cross-entropies.
    """
    classes = gap.shape[-1]
    c = 1 - 2 / classes if mass is None else mass
    shifted = (gap - gap.amin(-1, keepdim=True)).expand(classes, classes)
    others = shifted * (1 - torch.eye(classes, device=gap.device, dtype=gap.dtype))
    all_others = others.sum(1, keepdim=True)
    uniform = torch.full_like(others, 1 / max(classes - 1, 1))
    tiny = torch.finfo(gap.dtype).tiny  # below it a quotient of floats is no share any more
    rows = torch.where(all_others >= tiny, others / all_others.clamp_min(tiny), uniform) * c
    return rows.fill_diagonal_(1 - c)


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


def elementary_norm(x: Tensor, dims: list[int], eps: float) -> Tensor:
    """x less its mean, over its deviation, by operations whose derivatives of every order are right."""
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()


class ElementaryNorms(TorchFunctionMode):
    """In the body, BatchNorm by the batch, LayerNorm and GroupNorm are made of elementary operations.

    torch's own forward rules hold the batch's mean and deviation for constants: second derivatives, and gradients of
    first ones, come out wrong without a word (pytorch/pytorch issues 196699 and 196700; so in torch 2.13).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (F.batch_norm, F.layer_norm, F.group_norm):
            return func(*args, **(kwargs or {}))
        given = inspect.signature(func).bind(*args, **(kwargs or {}))
        given.apply_defaults()
        x, weight, bias, eps = (given.arguments[name] for name in ("input", "weight", "bias", "eps"))
        channels = (1, -1, *[1] * (x.ndim - 2))  # the shape of what each channel is scaled by
        if func is F.batch_norm:
            if not given.arguments["training"]:
                return func(*args, **(kwargs or {}))
            x = elementary_norm(x, [0, *range(2, x.ndim)], eps)
        elif func is F.layer_norm:
            channels = (-1,) if weight is None else weight.shape
            x = elementary_norm(x, [*range(-len(given.arguments["normalized_shape"]), 0)], eps)
        else:
            x = elementary_norm(x.reshape(len(x), given.arguments["num_groups"], -1), [2], eps).view_as(x)
        x = x if weight is None else x * weight.view(channels)
        return x if bias is None else x + bias.view(channels)


def directional(model: nn.Module, x: Tensor, u: Mapping[str, Tensor], order: int) -> list[Tensor]:
    """[g'(w)^T u] or, for order 2, [g'(w)^T u, u^T g''(w) u], each [n, C]; differentiable by w (Section 4).

    BatchNorm normalises as the model's mode says; its running statistics do not move.
    """
    with frozen_bn_stats(model):
        try:
            return derivatives(model, x, u, order)
        except NoRule:
            return nested(model, x, u, order)


def nested(model: nn.Module, x: Tensor, u: Mapping[str, Tensor], order: int) -> list[Tensor]:
    """`directional` by torch.func alone, for any model that it can differentiate."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    along, fixed = {k: parameters[k] for k in u}, {k: p for k, p in parameters.items() if k not in u}
    u = dict(u)

    def g(w: dict[str, Tensor]) -> Tensor:
        return logits_in(functional_call(model, {**fixed, **w}, (x,)))

    def first(w: dict[str, Tensor]) -> Tensor:
        return jvp(g, (w,), (u,))[1]

    try:
        with ElementaryNorms(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`torch.jit.script` is deprecated", DeprecationWarning
            )  # torch's own call
            return [first(along)] if order == 1 else list(jvp(first, (along,), (u,)))
    except RattleError:
        raise
    except Exception as reason:  # whatever a model does that forward-mode differentiation does not know
        raise RattleError(
            "this reading of the Taylor terms needs torch.func, which cannot differentiate this model "
            f"({first_line(reason)}); set objective.taylor.mode head or sampled"
        ) from reason
