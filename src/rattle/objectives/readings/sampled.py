"""No expansion: the method's own loss averaged over draws of u (E_u by Monte Carlo)."""

from dataclasses import replace

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs, PairedForward
from rattle.objectives.base import StepContext, Terms
from rattle.objectives.readings import Reading
from rattle.objectives.taylor_terms import Taylor
from rattle.weights import Delta, Noise


class Sampled(Reading):
    """Adds no term: `Outputs.mean` takes the logits at w + u for those at w."""

    weighted = False

    def needs(self, taylor: Taylor) -> ForwardSpec:
        return ForwardSpec(clean=False, draw=Noise.__call__, along_u=with_draws)

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {}


def with_draws(forward: PairedForward, outputs: Outputs, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...]) -> Outputs:
    """The outputs with the logits at w + u, for every draw."""
    pairs = []
    for draw in u:
        pairs.append((forward.logits_at(x, draw), forward.logits_at(x_adv, draw)))
    return replace(outputs, sampled=tuple(pairs))


SAMPLED = Sampled()
