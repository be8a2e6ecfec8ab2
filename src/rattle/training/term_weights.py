"""How much say each Taylor term has, and what AWP climbs: a step's objective, looked at from the run.

The weight of a term is the length of its weight gradient over that of the zeroth term's.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rattle.forward import Outputs
from rattle.objectives.base import TermsNow
from rattle.objectives.taylor_terms import without_taylor
from rattle.runs import distributed
from rattle.training.state import TrainState
from rattle.weights import ASAM, AWP, SAM

WEIGHED = ("zeroth", "first", "second")
SAY = (0.01, 10.0)  # a heaviest term outside of this does nothing, or drowns the rest
Terms = Callable[..., dict[str, Tensor]]


def term_gradients(model: nn.Module, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each term by all weights, as one vector; the terms can still be differentiated afterwards."""
    weights = [p for p in model.parameters() if p.requires_grad]
    found = {}
    for name, value in terms.items():
        parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        found[name] = torch.cat([part.flatten() for part in parts])
    return found


def climbed(objective: TermsNow, awp: AWP | SAM | ASAM | None) -> Terms:
    """What AWP climbs: the objective itself, or without its Taylor terms."""
    if not isinstance(awp, AWP) or awp.climbs == "loss":
        return objective
    return TermsNow(without_taylor(objective.objective), objective.context)


def weighed(objective: Terms, model: nn.Module, state: TrainState) -> Terms:
    """The objective, which at the first step of an epoch notes the weights of its Taylor terms in `state.progress`.

    A compiled network is left out: its graph can be run backwards once only.
    """
    if state.progress.batch > 0 or state.recipe.compile:
        return objective

    def noting(outputs: Outputs, y: Tensor, **settings: Any) -> dict[str, Tensor]:
        terms = objective(outputs, y, **settings)
        compared = {name: terms[name] for name in WEIGHED if name in terms}
        if len(compared) > 1 and "zeroth" in compared:
            gradients = distributed.mean_over_ranks(term_gradients(model, compared))
            zeroth, *lengths = (float(gradient.norm()) for gradient in gradients.values())
            names = [f"{name}_over_zeroth" for name in gradients][1:]
            state.progress.term_weights = {k: v / zeroth for k, v in zip(names, lengths, strict=True) if zeroth > 0}
        return terms

    return noting


def remark(weights: Mapping[str, float]) -> str | None:
    """A sentence on Taylor terms that have no say beside the zeroth term, or drown it; none where they are in between.

    >>> remark({"first_over_zeroth": 7e-4, "second_over_zeroth": 6e-5})
    'the Taylor terms have no say (0.0007 of the zeroth): raise objective.taylor.eta, or noise.outer where it is drawn'
    """
    if not weights or SAY[0] <= (heaviest := max(weights.values())) <= SAY[1]:
        return None
    said, do = ("have no say", "raise") if heaviest < SAY[0] else ("drown the rest", "lower")
    advice = f"{do} objective.taylor.eta, or noise.outer where it is drawn"
    return f"the Taylor terms {said} ({heaviest:.1g} of the zeroth): {advice}"
