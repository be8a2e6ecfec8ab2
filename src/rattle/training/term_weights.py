"""How much each Taylor term counts in a run: the length of its weight gradient over that of the zeroth term's."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rattle.runs import distributed
from rattle.training.state import TrainState

COMPARED = ("zeroth", "first", "second")
NEGLIGIBLE, DOMINANT = 0.01, 10.0  # the heaviest term below, or above


def term_gradients(model: nn.Module, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each term by all weights, as one vector; the terms can still be differentiated afterwards."""
    weights = [p for p in model.parameters() if p.requires_grad]
    found = {}
    for name, value in terms.items():
        parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        found[name] = torch.cat([part.flatten() for part in parts])
    return found


def term_observer(state: TrainState) -> Callable[[Mapping[str, Tensor]], None] | None:
    """At the first step of an epoch, notes the weights of its Taylor terms in `state.progress`; None at others.

    A compiled network is left out: its graph can be run backwards once only.
    """
    if state.progress.batch > 0 or state.recipe.compile:
        return None

    def observe(terms: Mapping[str, Tensor]) -> None:
        compared = {name: terms[name] for name in COMPARED if name in terms}
        if len(compared) < 2 or "zeroth" not in compared:
            return
        gradients = distributed.mean_over_ranks(term_gradients(state.model, compared))
        lengths = {name: float(gradient.norm()) for name, gradient in gradients.items()}
        zeroth = lengths.pop("zeroth")
        if zeroth > 0:
            weights = {f"{name}_over_zeroth": length / zeroth for name, length in lengths.items()}
            state.progress.term_weights = weights

    return observe


def remark(weights: Mapping[str, float]) -> str | None:
    """A sentence on Taylor terms that are negligible beside the zeroth term, or dominate it; None in between.

    >>> remark({"first_over_zeroth": 7e-4, "second_over_zeroth": 6e-5})
    'the Taylor terms are negligible (0.0007 of the zeroth): raise objective.taylor.eta, or noise.outer if u is drawn'
    """
    if not weights:
        return None
    heaviest = max(weights.values())
    if NEGLIGIBLE <= heaviest <= DOMINANT:
        return None
    found, advice = ("are negligible", "raise") if heaviest < NEGLIGIBLE else ("dominate", "lower")
    return (
        f"the Taylor terms {found} ({heaviest:.1g} of the zeroth): "
        f"{advice} objective.taylor.eta, or noise.outer if u is drawn"
    )
