"""The control of the reading `head`: its soft labels made constant, which is label smoothing at x and at x'."""

from torch import Tensor

from rattle.forward import Outputs
from rattle.objectives.base import StepContext, Terms
from rattle.objectives.readings import Reading
from rattle.objectives.readings.head import soft_label_term
from rattle.objectives.taylor_terms import Taylor


class Smoothing(Reading):
    """Soft labels of a gap that is zero for every class."""

    smooths = True

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        classes = outputs.logits_adv.shape[1]
        term = soft_label_term(outputs.logits_adv.new_zeros(classes), outputs, y)
        return {"first": term} if taylor.order == 1 else {"first": term, "second": term}


SMOOTHING = Smoothing()
