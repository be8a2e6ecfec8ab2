"""Per-sample losses on logits: what attacks maximise and objectives average. Each returns [n]."""

import torch
from torch import Tensor
from torch.nn import functional as F


def ce(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy -log p_y; of soft labels, rows of probabilities [n, C], their mean."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """KL(p || p') between the softmax of two logits; in log space, so that no p = 0 turns a gradient into NaN."""
    log_p, log_q = logits.log_softmax(1), logits_adv.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def kl_to_target(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || p) for given rows of probabilities, zeros allowed."""
    return (torch.xlogy(target, target) - target * logits.log_softmax(1)).sum(1)


def largest_other(logits: Tensor, y: Tensor) -> Tensor:
    """max over k != y of z_k."""
    return logits.scatter(1, y[:, None], float("-inf")).amax(1)


def cw(logits: Tensor, y: Tensor) -> Tensor:
    """Carlini and Wagner's margin max_{k != y} z_k - z_y: positive exactly where the image is misclassified."""
    return largest_other(logits, y) - logits.gather(1, y[:, None]).squeeze(1)


def soft_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The soft logit margin log sum_{k != y} exp z_k - z_y (Ding et al. 2020): below 0 exactly where p_y > 1/2."""
    others = logits.scatter(1, y[:, None], float("-inf"))
    return others.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1)


def cw_targeted(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The margin z_t - z_y of one wrong class."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020, eq. 6): the margin over z_(1) - z_(3); needs 3 classes."""
    top = logits.topk(3, dim=1).values
    return cw(logits, y) / (top[:, 0] - top[:, 2] + 1e-12)


def dlr_targeted(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Targeted DLR (Croce and Hein 2020, eq. 7): z_t - z_y over z_(1) - (z_(3) + z_(4)) / 2; needs 4 classes."""
    top = logits.topk(4, dim=1).values
    return cw_targeted(logits, y, target) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + 1e-12)
