"""AT with smoothed labels, as the bag of tricks for adversarial training (Pang et al. 2021) has it."""

from dataclasses import dataclass

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.avmixup import smoothed
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.settings import Between
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSmoothing(TaylorObjective):
    """CE(f(x'), q) + Taylor terms: q has 1 - smoothing on the label and smoothing / (C - 1) on every other class.

    The inner attack climbs the cross-entropy of the label itself. torch's own `label_smoothing` spreads over all
    classes, the label too: there the same q is smoothing * C / (C - 1).

    >>> import torch; terms = LabelSmoothing()(Outputs(None, torch.tensor([[2.0, 0.0, 0.0]])), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 0.64}
    """

    title = "AT, smoothed labels"
    smooths = True
    uses = ForwardSpec(clean=False)
    smoothing: Between = 0.2  # mass taken from the label

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        labels = smoothed(y, 1 - self.smoothing, outputs.logits_adv.shape[1], outputs.logits_adv.dtype)
        return {"zeroth": outputs.mean(lambda z, z_adv: ce(z_adv, labels))}


METHOD = Method(
    objective=LabelSmoothing(),
    awp=AWP(gamma=0.01, warmup=0),
)
