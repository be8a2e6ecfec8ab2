"""The contribution: what the first- and second-order Taylor terms compare, in closed form and exactly.

`head` (the paper's Appendix D as its experiments ran it) needs no pass of its own: the gradient of the cross-entropy
by the last linear layer W [C, d] is (p - onehot(y)) h^T, so its row sums follow from features and logits at hand.
`directional` is the expansion taken at its word: derivatives of the logits g along u.
Pure mathematics: no rank, no optimiser, no settings.
"""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from rattle.errors import RattleError, first_line
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


def soft_targets(gap: Tensor) -> Tensor:
    """One row of soft labels for each class, [C, C], from the gap [C] between clean and adversarial values (App. D).

    Row k spreads c = 1 - 2/C over the other classes in proportion to the shifted gap (its row k if it is [C, C]) and
    keeps 1 - c for k (0.8 / 0.2 for 10 classes, 0.98 / 0.02 for 100). Where no other class has any gap the row is
    uniform. Two classes give c = 0: the rows are hard labels, and the Taylor terms become cross-entropies.
    """
    classes = gap.shape[-1]
    c = 1 - 2 / classes
    shifted = (gap - gap.amin(-1, keepdim=True)).expand(classes, classes)
    others = shifted * (1 - torch.eye(classes, device=gap.device, dtype=gap.dtype))
    mass = others.sum(1, keepdim=True)
    uniform = torch.full_like(others, 1 / max(classes - 1, 1))
    tiny = torch.finfo(gap.dtype).tiny  # below it a quotient of floats is no share any more
    rows = torch.where(mass >= tiny, others / mass.clamp_min(tiny), uniform) * c
    return rows.fill_diagonal_(1 - c)


def directional(model: nn.Module, x: Tensor, u: Mapping[str, Tensor], order: int) -> list[Tensor]:
    """[g'(w)^T u] or, for order 2, [g'(w)^T u, u^T g''(w) u], each [n, C]; differentiable by w (Section 4).

    BatchNorm normalises as the model's mode says; its running statistics do not move.
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    along, fixed = {k: parameters[k] for k in u}, {k: p for k, p in parameters.items() if k not in u}
    u = dict(u)

    def g(w: dict[str, Tensor]) -> Tensor:
        return logits_in(functional_call(model, {**fixed, **w}, (x,)))

    def first(w: dict[str, Tensor]) -> Tensor:
        return jvp(g, (w,), (u,))[1]

    try:
        with frozen_bn_stats(model), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`torch.jit.script` is deprecated", DeprecationWarning
            )  # torch's own call
            return [first(along)] if order == 1 else list(jvp(first, (along,), (u,)))
    except RattleError:
        raise
    except Exception as reason:  # whatever a model does that forward-mode differentiation does not know
        raise RattleError(
            "objective.taylor.mode exact: torch.func cannot differentiate this model "
            f"({first_line(reason)}); use mode head"
        ) from reason
