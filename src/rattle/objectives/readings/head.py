"""The reading that the paper ran (Appendix D): soft labels from the gradient of the cross-entropy by the head."""

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import kl_to_target
from rattle.objectives.base import StepContext, Terms
from rattle.objectives.readings import Reading
from rattle.objectives.taylor_terms import Taylor
from rattle.taylor import head_gradient, soft_targets


class Head(Reading):
    """1/2 [KL(T+[y] || p(x')) + KL(T-[y] || p(x))], T+- from the gaps between x and x' of |r| and of r^2."""

    smooths = True

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(features=True)

    def gaps(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> list[Tensor]:
        """What |r| and r^2 differ by between x and x', [C] each; r are the row sums of the head's gradient."""
        z, z_adv, h, h_adv = outputs.logits, outputs.logits_adv, outputs.features, outputs.features_adv
        if z is None or h is None or h_adv is None:
            raise RattleError("objective.taylor.mode head needs logits and features at x and x'")
        # Averaged over ranks before abs and square, so that N ranks compute what one process would.
        r, r_adv = context.mean(torch.stack([head_gradient(h, z, y), head_gradient(h_adv, z_adv, y)]))
        return [r.abs() - r_adv.abs(), r.square() - r_adv.square()]

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        first, second = self.gaps(taylor, outputs, y, context)
        terms = {"first": soft_label_term(first, outputs, y)}
        if taylor.order == 2:
            terms["second"] = soft_label_term(second, outputs, y)
        return terms


def soft_label_term(gap: Tensor, outputs: Outputs, y: Tensor) -> Tensor:
    """1/2 [KL(T+[y] || p(x')) + KL(T-[y] || p(x))], T+ the soft labels of the gap [C] and T- those of its negative."""
    classes = y if y.ndim == 1 else torch.arange(len(gap), device=gap.device)
    plus, minus = soft_targets(gap, classes), soft_targets(-gap, classes)
    if y.ndim == 2:  # soft labels are weights of the rows of all classes
        plus, minus = y @ plus, y @ minus
    return 0.5 * (kl_to_target(plus, outputs.logits_adv) + kl_to_target(minus, outputs.clean)).mean()


HEAD = Head()
