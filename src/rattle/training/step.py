"""One training step: the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rattle.attacks import PGD
from rattle.forward import PairedForward
from rattle.objectives import Objective
from rattle.objectives.taylor_terms import head_rows
from rattle.randomness import ImageStreams
from rattle.runs import distributed
from rattle.weights import AWP, Noise, frozen_bn_stats, perturbed


def step(
    views: PairedForward,
    x: Tensor,
    y: Tensor,
    *,
    attack: PGD,
    noise: Noise,
    objective: Objective,
    awp: AWP | None,
    shared: torch.Generator,
    private: ImageStreams,
    draws: int = 1,
    accumulate: int = 1,
    outer: Callable[..., Any] | None = None,
) -> dict[str, Tensor]:
    """One pass of Algorithm 1 up to the gradient: returns the named terms, leaves their sum's gradient in .grad.

    `accumulate` works the minibatch off in parts; `outer` is what the last forward goes through (a DDP wrapper).
    """
    model, need = views.model, views.need
    parts = torch.arange(len(x), device=x.device).chunk(accumulate)
    # Generate adversarial examples: one u ~ N(0, sigma^2) for the minibatch, K steps at w + u.
    with perturbed(model, noise(model, generator=shared)):
        x_adv = torch.cat([attack(model, x[part], y[part], generator=private[part]) for part in parts])
    # Modes that average over u in the outer step draw it afresh, the same for x and x'.
    u = tuple(noise(model, generator=shared) for _ in range(draws)) if need.derivatives or need.sampled else ()

    def terms(look: Callable[..., Any]) -> Iterator[dict[str, Tensor]]:
        """Of each part in turn, weighted to sum to the whole batch's."""
        rows = whole_rows(views, x, x_adv, y, parts) if len(parts) > 1 and need.features else None
        for i, part in enumerate(parts):
            reduce = distributed.mean if rows is None else lambda _, rows=rows: rows
            with last_syncs(look, i == len(parts) - 1):
                found = objective(look(x[part], x_adv[part], u), y[part], reduce=reduce)
                yield {name: value * (len(part) / len(x)) for name, value in found.items()}

    # Optimise at w, or with AWP at the worst w + v near it; w itself is back before the optimizer steps.
    v = awp(model, distributed.mean_of(ascent(awp, model, terms(views), len(parts)))) if awp else {}
    named: dict[str, Tensor] = {}
    with perturbed(model, v):
        for found in terms(outer or views):
            total(found).backward()
            named = {name: value.detach() + named.get(name, 0) for name, value in found.items()}
    return named


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its named terms."""
    return torch.stack(tuple(terms.values())).sum()


def ascent(awp: AWP, model: nn.Module, parts: Iterator[dict[str, Tensor]], count: int) -> dict[str, Tensor]:
    """AWP's ascent gradient of the whole minibatch, part by part."""
    gradients = awp.gradients(model, lambda: total(next(parts)))
    for _ in range(count - 1):
        more = awp.gradients(model, lambda: total(next(parts)))
        gradients = {name: d + more[name] for name, d in gradients.items()}
    return gradients


def whole_rows(views: PairedForward, x: Tensor, x_adv: Tensor, y: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """The head gradients of the whole minibatch, before any part of it is differentiated."""
    with torch.no_grad(), frozen_bn_stats(views.model):
        each = [head_rows(views(x[part], x_adv[part]), y[part]) * (len(part) / len(x)) for part in parts]
    return distributed.mean(torch.stack(each).sum(0))


def last_syncs(look: Callable[..., Any], last: bool) -> Any:
    """Under DDP, gradients travel between ranks once a step: with the last part."""
    return nullcontext() if last or not isinstance(look, DistributedDataParallel) else look.no_sync()
