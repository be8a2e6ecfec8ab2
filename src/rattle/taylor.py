"""The contribution: what the first- and second-order Taylor terms compare, in closed form and exactly.

`head_gradient` (the paper's Appendix D as its experiments ran it) needs no pass of its own: the gradient of the
cross-entropy by the last linear layer W [C, d] is (p - onehot(y)) h^T, so its row sums follow from the available
features and logits. `directional` is the expansion itself: derivatives of the logits g along u.
Pure mathematics: no rank, no optimiser, no settings.
"""

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rattle.errors import RattleError, first_line
from rattle.losses import logits_in
from rattle.weights import Delta, Tensors, frozen_bn_stats


def head_gradient(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Row sums of d CE / d W_head, [C], from features [n, d], logits [n, C], y [n] (App. D).

    >>> h, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    >>> head_gradient(h, torch.zeros(1, 2), y)
    tensor([-1.5000,  1.5000])
    """
    with torch.no_grad():  # only targets are made of it, and targets carry no gradient
        residual = logits.softmax(1) - F.one_hot(y, logits.shape[1])
        return (residual * features.sum(1, keepdim=True)).mean(0)


def soft_targets(gap: Tensor, y: Tensor) -> Tensor:
    """The soft label of each class in y, [n, C], from the gap [C] between clean and adversarial values (App. D).

    That of class k spreads the mass c = 1 - 2/C over the other classes in proportion to the shifted gap (its row k if
    it is [C, C]) and keeps 1 - c for k (0.8 / 0.2 for 10 classes, 0.98 / 0.02 for 100). Where no other class has any
    gap it is uniform. Two classes give c = 0: hard labels, and the Taylor terms become cross-entropies.
    """
    classes = gap.shape[-1]
    c = 1 - 2 / classes
    shifted = gap - gap.amin(-1, keepdim=True)
    others = (shifted if gap.ndim == 1 else shifted[y]).expand(len(y), classes).scatter(1, y[:, None], 0.0)
    all_others = others.sum(1, keepdim=True)
    tiny = torch.finfo(gap.dtype).tiny  # below it a quotient of floats is no share any more
    shares = torch.where(all_others >= tiny, others / all_others.clamp_min(tiny), 1 / max(classes - 1, 1))
    return (c * shares).scatter(1, y[:, None], 1 - c)


def elementary_norm(x: Tensor, dims: list[int], eps: float) -> Tensor:
    """x less its mean, over its std, by operations whose derivatives of every order are right."""
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()


class ElementaryNorms(TorchFunctionMode):
    """In the body, BatchNorm by the batch, LayerNorm and GroupNorm are made of elementary operations.

    torch's own forward rules take the batch's mean and std for constants: second derivatives, and gradients of
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


def directional(model: nn.Module, x: Tensor, u: Delta, order: int) -> list[Tensor]:
    """[g'(w)^T u] or, for order 2, [g'(w)^T u, u^T g''(w) u], each [n, C]; differentiable by w (Section 4).

    BatchNorm normalises as the model's mode says; its running statistics do not move.
    """
    fixed: Tensors = dict(model.named_parameters())
    moving = {name: fixed.pop(name) for name in u}
    u = dict(u)

    def g(w: Tensors) -> Tensor:
        return logits_in(functional_call(model, {**fixed, **w}, (x,)))

    def first(w: Tensors) -> Tensor:
        return jvp(g, (w,), (u,))[1]

    try:
        with frozen_bn_stats(model), ElementaryNorms(), warnings.catch_warnings():
            # torch's own call
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
            return [first(moving)] if order == 1 else list(jvp(first, (moving,), (u,)))
    except RattleError:
        raise
    except Exception as reason:  # whatever a model does that forward-mode differentiation does not know
        raise RattleError(
            "this mode of the Taylor terms needs torch.func, which cannot differentiate this model "
            f"({first_line(reason)}); set objective.taylor.mode head or sampled"
        ) from reason
