"""Do the Taylor terms have an effect of their own? Weight gradients beside those of the zeroth term and smoothing.

What a mode adds is the gradient of the loss less that of the same loss without the paper's terms, so that modes
without terms of their own (sampled) are measured too. Train-mode BatchNorm, statistics held, in double precision.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.analysis.landscape import weight_gradient
from rattle.data import Images
from rattle.errors import RattleError
from rattle.evaluation.target import Target
from rattle.forward import PairedForward
from rattle.inputs import floats_for
from rattle.models import find_head
from rattle.objectives import Taylor
from rattle.objectives.base import total
from rattle.randomness import ImageStreams
from rattle.recipes.recipe import Recipe
from rattle.runs.io import Plain
from rattle.stats import t_interval
from rattle.weights import frozen_bn_stats, perturbed

WHOLE = "all they add"
LASTS = 0.05  # of the zeroth term's lasting gradient: anything below counts as no effect of their own


# The gradient of a Taylor term, or of all, by its name; means over minibatches:
# over_zeroth: its length over that of the zeroth term's gradient; to_zeroth: cosine to that
# to_smoothing: cosine to the gradient of constant soft labels
# own: the part of its length that no combination of these two explains; repeats: its cosine between two minibatches
# lasts: what is left of that part on average over minibatches, over what is left of the zeroth's gradient; lasts_low,
# lasts_high: its 95 % interval, over minibatches, or None
TermRow = dict[str, Any]


def agreement(vectors: Tensor) -> float:
    """The mean cosine of two of the rows, [batches, d]."""
    n = len(vectors)
    units = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return float(((units @ units.T).sum() - units.square().sum()) / (n * (n - 1)))


def lasting(own: Tensor, base: Tensor, sizes: Tensor) -> float:
    """The square of what lasts, which chance may make negative: the length of the mean of the rows of `own`, without
    what chance adds to it, over the same of `base`, the zeroth term's; `sizes` are their lengths over the zeroth's,
    [batches]."""
    return float(sizes.mean()) ** 2 * agreement(own) / max(agreement(base), 1e-300)


def lasting_interval(own: Tensor, base: Tensor, sizes: Tensor) -> tuple[float, float] | tuple[None, None]:
    """95 % of what lasts, by leaving out one minibatch at a time (Tukey's jackknife); none with fewer than three."""
    n = len(sizes)
    if n < 3:
        return None, None
    whole, values = lasting(own, base, sizes), []
    for i in range(n):
        kept = torch.arange(n) != i
        values.append(n * whole - (n - 1) * lasting(own[kept], base[kept], sizes[kept]))
    found = t_interval(values)
    return math.sqrt(max(found.low, 0.0)), math.sqrt(max(found.high, 0.0))


def measure_terms(target: Target, recipe: Recipe, *, batches: int, seed: int) -> Plain:
    """The rows and the answer, as fidelity.json holds them, on `batches` minibatches of test images."""
    taylor = getattr(recipe.objective, "taylor", None)
    if taylor is None or taylor.order == 0:
        return {"terms": [], "answer": "This run has no Taylor terms."}
    if recipe.objective.needs_run:
        title = recipe.objective.title
        return {"terms": [], "answer": f"The terms of {title} need more than a minibatch: they were not measured."}
    if batches < 2:
        raise RattleError(f"batches must be >= 2, to compare one with another, got {batches}")
    size = min(recipe.batch_size, len(target.test) // batches)
    shuffled = torch.Generator().manual_seed(seed)  # they may be sorted by class
    order = torch.randperm(len(target.test), generator=shuffled)
    parts = [target.images(order[i * size : (i + 1) * size]) for i in range(batches)]
    rows = term_rows(target.model, recipe, parts, seed)
    return {"terms": rows, "answer": terms_answer(rows[-1], batches)}


def term_rows(model: nn.Module, recipe: Recipe, parts: list[Images], seed: int) -> list[TermRow]:
    """A row for each term and one for all they add, over the minibatches `parts`."""
    given, model = model, copy.deepcopy(model).double().train()
    found: dict[str, list[Tensor]] = {}  # name -> a gradient for each minibatch
    for number, part in enumerate(parts):
        x = floats_for(given, part.x).double()
        shared = torch.Generator().manual_seed(seed + number)
        streams = ImageStreams(seed, torch.arange(len(x), device=x.device) + number * len(x))
        with perturbed(model, recipe.noise.at("inner")(model, generator=shared)):
            x_adv = recipe.attack(model, x, part.y, generator=streams)
        for name, gradient in gradients(model, recipe, x, x_adv, part.y, shared).items():
            found.setdefault(name, []).append(gradient.cpu())
    stacked = {name: torch.stack(values) for name, values in found.items()}
    zeroth, smoothing = stacked.pop("zeroth"), stacked.pop("smoothing")
    return [term_row(name, gradient, zeroth, smoothing) for name, gradient in stacked.items()]


def term_row(name: str, gradient: Tensor, zeroth: Tensor, smoothing: Tensor) -> TermRow:
    """The row of a term from its gradients and the zeroth's and smoothing's, [batches, d]."""
    basis = torch.linalg.qr(torch.stack([zeroth, smoothing], 2)).Q
    own = gradient - (basis @ (basis.mT @ gradient[:, :, None])).squeeze(2)
    sizes = own.norm(dim=1) / zeroth.norm(dim=1)
    low, high = lasting_interval(own, zeroth, sizes)
    return {
        "name": name,
        "over_zeroth": float((gradient.norm(dim=1) / zeroth.norm(dim=1)).mean()),
        "to_zeroth": float(F.cosine_similarity(gradient, zeroth, eps=1e-300).mean()),
        "to_smoothing": float(F.cosine_similarity(gradient, smoothing, eps=1e-300).mean()),
        "own": float((own.norm(dim=1) / gradient.norm(dim=1)).mean()),
        "repeats": agreement(own),
        "lasts": math.sqrt(max(lasting(own, zeroth, sizes), 0.0)),
        "lasts_low": low,
        "lasts_high": high,
    }


def gradients(
    model: nn.Module, recipe: Recipe, x: Tensor, x_adv: Tensor, y: Tensor, shared: torch.Generator
) -> dict[str, Tensor]:
    """The gradients of the zeroth term, of smoothing, of each Taylor term and of all."""
    objective: Any = recipe.objective
    smooth = replace(objective, taylor=Taylor(order=1, eta=1.0, mode="smoothing"))
    needs = objective.needs
    forward = PairedForward(model, needs, find_head(model, recipe.head) if needs.features else None)
    with frozen_bn_stats(model):
        draws = forward.draws(recipe.noise.at("outer"), recipe.noise_samples, generator=shared)
        terms = objective(forward(x, x_adv, draws), y)
        base = smooth(PairedForward(model, smooth.needs)(x, x_adv), y)
    measured = {"zeroth": base["zeroth"], "smoothing": base.pop("first")}
    measured |= {name: terms[name] for name in ("first", "second") if name in terms}
    return term_gradients(model, measured | {WHOLE: total(terms) - total(base)})


def terms_answer(row: TermRow, batches: int) -> str:
    """One sentence: whether the terms have an effect of their own, if the interval of `lasts` is clear."""
    verdict = f"{batches} minibatches do not show whether the Taylor terms have an effect of their own"
    interval, low, high = "", row["lasts_low"], row["lasts_high"]
    if low is not None:
        interval = f" (95 %: {low:.2g} to {high:.2g})"
        if high < LASTS:
            verdict = "The Taylor terms have no effect of their own"
        elif low > LASTS:
            verdict = "The Taylor terms have an effect of their own"
    return (
        f"{verdict}: their gradient is {row['over_zeroth']:.2g} of the zeroth term's, with cosine "
        f"{row['to_smoothing']:.2f} to label smoothing's and {row['to_zeroth']:.2f} to the zeroth's; of the rest, "
        f"{row['lasts']:.2g}{interval} of the zeroth's persists from minibatch to minibatch; {LASTS:g} or less "
        "counts as none."
    )


def term_gradients(model: nn.Module, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each term by all weights, as one vector; the terms can still be differentiated afterwards."""
    weights = [p for p in model.parameters() if p.requires_grad]
    return {name: weight_gradient(value, weights) for name, value in terms.items()}
