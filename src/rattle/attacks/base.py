"""What every attack is: (model, x, y, *, generator) -> x_adv, and what all of them share: checks, layout, packing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.randomness import Randomness
from rattle.threat import Threat


class Attack(Protocol):
    """Stateless, deterministic given the generator; leaves weights, gradients, statistics and mode as it found them."""

    @property
    def threat(self) -> Threat: ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor: ...


# What an attack may offer besides. Whoever runs attacks asks for these, never for a class by name.


@runtime_checkable
class Ensemble(Protocol):
    """An attack made of others, each run on the images that the ones before it left (AutoAttack)."""

    def components(self) -> dict[str, Attack]: ...


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest misclassified points that a search found."""

    x_adv: Tensor  # x itself where x is misclassified already, or where nothing was found
    distance: (
        Tensor  # [n], in the threat's norm: 0 where x is misclassified, the largest possible where nothing was found
    )


@runtime_checkable
class DistanceAttack(Protocol):
    """An attack that measures how far the decision boundary is (RayS)."""

    def search(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Nearest: ...


@runtime_checkable
class UsesModels(Protocol):
    """An attack whose result depends on other models than the attacked one (transfer): their names and modules."""

    def models(self) -> Mapping[str, nn.Module]: ...


@runtime_checkable
class HasMetadata(Protocol):
    """An attack that says itself what a result file records of it; others are recorded by their fields."""

    def metadata(self) -> dict[str, Any]: ...


def check_batch(x: Tensor, y: Tensor) -> None:
    """Refuse what no attack can mean: empty batches, unequal lengths, images that are not floats in [0, 1]."""
    if len(x) == 0:
        raise RattleError("there are no images to attack: the batch is empty")
    if len(x) != len(y):
        raise RattleError(f"{len(x)} images but {len(y)} labels")
    if not x.is_floating_point():
        raise RattleError(f"images must be floating point in [0, 1], got {x.dtype}; divide uint8 images by 255")
    low, high = (float(v) for v in torch.aminmax(x))
    if not (low >= 0 and high <= 1):  # also true for NaN
        raise RattleError(f"images must lie in [0, 1], got [{low:.4g}, {high:.4g}]; normalise inside the model")


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Refuse labels that the model has no logit for."""
    classes = logits.shape[1]
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise RattleError(
            f"labels run from {low} to {high}, but the model tells {classes} classes apart (0 to {classes - 1})"
        )


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """The model's logits [n, C]; a sentence instead of a traceback when it returns something else."""
    out: Any = model(x)
    if not isinstance(out, Tensor):
        raise RattleError(
            f"the model must return logits [n, C], got {type(out).__name__}; wrap it to return the logits alone"
        )
    if out.ndim != 2:
        raise RattleError(f"the model must return logits [n, C], got shape {list(out.shape)}")
    return out


class NotANumber(RattleError):
    """A model whose logits mean nothing."""


def finite(logits: Tensor) -> Tensor:
    """The logits, refused when one is NaN: no comparison with it would mean anything."""
    if bool(logits.isnan().any()):
        raise NotANumber("the model returned NaN logits; an attack cannot tell right from wrong by them")
    return logits
