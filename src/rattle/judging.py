"""One attack on one batch, judged: no flag is lowered on an attack's word.

Its point must lie inside the ball and [0, 1] and be misclassified in a fresh forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rattle.attacks import Attack, RayS
from rattle.attacks.contract import branch, check_labels, finite, logits_of
from rattle.randomness import Streams


@runtime_checkable
class Ensemble(Protocol):
    """An attack made of others, each run on the images that the ones before it left (AutoAttack)."""

    def components(self) -> dict[str, Attack]: ...


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model classifies rightly, [n] bool, in one fresh forward pass."""
    with torch.no_grad():
        logits = finite(logits_of(model, x))
    check_labels(logits, y)
    return logits.argmax(1) == y


def survives(model: nn.Module, attack: Attack, x_adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which images an attack's points leave robust: a point counts inside the ball and the box, and misclassified."""
    counts = attack.threat.contains(x_adv, x)
    return classified(model, torch.where(counts.view(-1, *[1] * (x.ndim - 1)), x_adv, x), y) | ~counts


@dataclass(frozen=True, slots=True)
class Judged:
    """An attack on one batch of rightly classified images."""

    robust: Tensor  # [n] bool
    x_adv: Tensor
    parts: dict[str, Tensor]
    distance: Tensor | None = None


def judge(model: nn.Module, attack: Attack, x: Tensor, y: Tensor, draws: Streams) -> Judged:
    """Run an attack and check every point it returns."""
    kept = x.clone()  # attacks that write into their input are measured from the image as it was
    if isinstance(attack, RayS):
        found = attack.search(model, kept, y)
        robust = survives(model, attack, found.x_adv, x, y)
        return Judged(robust, found.x_adv, {}, found.distance)
    if not isinstance(attack, Ensemble):
        x_adv = attack(model, kept, y, generator=draws)
        return Judged(survives(model, attack, x_adv, x, y), x_adv, {})
    robust, x_adv, parts = torch.ones(len(x), dtype=torch.bool, device=x.device), x.clone(), {}
    for number, (name, component) in enumerate(attack.components().items()):
        live = robust.nonzero().squeeze(1)
        if len(live):
            part = judge(model, component, x[live], y[live], branch(draws[live], number))
            x_adv[live], robust[live] = part.x_adv.to(x_adv), part.robust
        parts[name] = robust.clone()
    return Judged(robust, x_adv, parts)
