"""Per-sample losses on logits, [n] each: what attacks maximise and objectives average; logits in a model's output."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rattle.errors import RattleError


def ce(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy -log p_y; of soft labels, rows of probabilities [n, C], their mean."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """KL(p || p') between the softmax of two logits; in log space, so that no p = 0 turns a gradient into NaN."""
    log_p, log_q = logits.log_softmax(1), logits_adv.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def kl_of_small(a: Tensor, b: Tensor) -> Tensor:
    """KL(softmax(a) || softmax(b)) to the last digits also where a and b are nearly zero, where `kl` is all rounding.

    With d = log p - log q it is sum p (e^-d - 1 + d), whose terms are all >= 0: the d that would cancel are gone.
    """
    gap, q = a - b, b.softmax(1)
    near = gap.abs().amax(1, keepdim=True) < 0.25
    held = torch.where(near, gap, 0)  # neither side of a `where` may be infinite: gradients flow through both
    shift = torch.log1p((q * torch.expm1(held)).sum(1, keepdim=True))  # logsumexp(a) - logsumexp(b)
    d, far = held - shift, a.log_softmax(1) - b.log_softmax(1)
    series = torch.zeros_like(d)
    for k in range(12, 1, -1):  # d^2/2! - d^3/3! + ...: |d| < 1/2, so that twelve are enough in double precision
        series = series * d + (-1) ** k / math.factorial(k)
    p = a.log_softmax(1).exp()
    return torch.where(near, p * series * d * d, p * far).sum(1)


def kl_to_target(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || p) for given rows of probabilities, zeros allowed."""
    return (torch.xlogy(target, target) - target * logits.log_softmax(1)).sum(1)


def of_class(values: Tensor, y: Tensor) -> Tensor:
    """What rows [n, C] hold for one class each, [n]."""
    return values.gather(1, y[:, None]).squeeze(1)


def of_others(logits: Tensor, y: Tensor) -> Tensor:
    """The logits with -inf for one class of each row, [n, C]."""
    return logits.scatter(1, y[:, None], -math.inf)


def cw(logits: Tensor, y: Tensor) -> Tensor:
    """Carlini and Wagner's margin max_{k != y} z_k - z_y: positive exactly where the image is misclassified."""
    return of_others(logits, y).amax(1) - of_class(logits, y)


def cw_targeted(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The margin z_t - z_y of one wrong class."""
    return of_class(logits, target) - of_class(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020, eq. 6): the margin over z_(1) - z_(3); needs 3 classes."""
    top = logits.topk(3, dim=1).values
    return cw(logits, y) / (top[:, 0] - top[:, 2] + 1e-12)


def dlr_targeted(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Targeted DLR (Croce and Hein 2020, eq. 7): z_t - z_y over z_(1) - (z_(3) + z_(4)) / 2; needs 4 classes."""
    top = logits.topk(4, dim=1).values
    return cw_targeted(logits, y, target) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + 1e-12)


def logits_in(output: Any) -> Tensor:
    """The logits [n, C] in what a model returned; RattleError if there are none.

    Besides a tensor: `logits` of an object or dict (Hugging Face, torchvision's GoogLeNet), a tuple's first entry.

    >>> logits_in({"logits": torch.zeros(4, 3), "hidden_states": None}).shape
    torch.Size([4, 3])
    """
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None:
        found = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(found, Tensor):
        kind = type(output).__name__
        raise RattleError(f"the model must return logits [n, C], got {kind}; wrap it to return the logits alone")
    if found.ndim != 2:
        raise RattleError(f"the model must return logits [n, C], got shape {list(found.shape)}")
    return found


def refuse_one_logit(logits: Tensor) -> None:
    """Raise RattleError for the logits [n, 1] of a binary model."""
    if logits.shape[1] == 1:
        raise RattleError("the model returns one logit z, [n, 1]: return two, such as torch.cat([-z, z], 1) / 2")
