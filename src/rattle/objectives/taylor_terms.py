"""The Taylor terms that AT and TRADES share: settings checked, names given, one function for every mode."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import kl
from rattle.objectives.base import Reduce
from rattle.taylor import head_gradient, soft_targets, target_term

Mode = Literal["head", "released", "exact", "sampled"]


class Taylor(Protocol):
    """The settings the terms are made from (fields of AT and of Trades)."""

    @property
    def order(self) -> int: ...
    @property
    def eta(self) -> float: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def second_factor(self) -> float: ...


def check(settings: Taylor) -> None:
    """Refuse settings that mean nothing."""
    if settings.order not in (0, 1, 2):
        raise RattleError(f"objective.order must be 0, 1 or 2, got {settings.order}")
    if settings.mode not in ("head", "released", "exact", "sampled"):
        raise RattleError(f"objective.mode must be head, released, exact or sampled, got {settings.mode!r}")
    if not settings.eta >= 0:
        raise RattleError(f"objective.eta must be >= 0, got {settings.eta}")
    if not settings.second_factor >= 0:
        raise RattleError(f"objective.second_factor must be >= 0, got {settings.second_factor}")


def need(settings: Taylor, *, clean: bool) -> ForwardSpec:
    """What has to be looked at; `clean` says whether the objective uses x without any Taylor term."""
    taylor = settings.order > 0
    return ForwardSpec(
        clean=clean or (taylor and settings.mode in ("head", "released")),
        features=taylor and settings.mode in ("head", "released"),
        derivatives=settings.order if settings.mode == "exact" else 0,
        sampled=taylor and settings.mode == "sampled",
    )


def taylor_terms(settings: Taylor, outputs: Outputs, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
    """eta * first and (eta / 2) * second, as far as the order goes (Algorithm 1)."""
    weights = (settings.eta, settings.eta * settings.second_factor)
    if settings.mode == "exact":
        values = [kl(at_x, at_x_adv).mean() for at_x, at_x_adv in outputs.derivatives]
    elif settings.order == 0 or settings.mode == "sampled":
        values = []
    else:
        values = head_terms(settings, outputs, y, reduce)
    return {name: w * value for name, w, value in zip(("first", "second"), weights, values, strict=False)}


def head_rows(outputs: Outputs, y: Tensor) -> Tensor:
    """The head gradient's row sums at x and at x', [2, C]."""
    if outputs.logits is None or outputs.features is None or outputs.features_adv is None:
        raise RattleError("objective.order >= 1 in modes head and released needs logits and features of x and x'")
    clean = head_gradient(outputs.features, outputs.logits, y)
    return torch.stack([clean, head_gradient(outputs.features_adv, outputs.logits_adv, y)])


def head_terms(settings: Taylor, outputs: Outputs, y: Tensor, reduce: Reduce) -> list[Tensor]:
    """The closed forms: |r| for the first order, r^2 for the second, r being the head gradient's row sums."""
    r, r_adv = reduce(head_rows(outputs, y))  # averaged over ranks before abs and square
    assert outputs.logits is not None, "head_rows has looked"
    terms = []
    for value in (torch.abs, torch.square)[: settings.order]:
        gap = value(r) - value(r_adv)
        minus, plus = soft_targets(-gap), soft_targets(gap)
        if settings.mode == "released" and value is torch.square:
            plus = minus  # the release's slip: its second-order target for x' comes from the (adv - clean) gap too
        terms.append(target_term(minus, plus, outputs.logits, outputs.logits_adv, y))
    return terms
