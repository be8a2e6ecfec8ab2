"""The contract of an attack, (model, x, y, *, generator) -> x_adv, and the mode that every attack runs in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rattle.inputs import check_model
from rattle.randomness import Randomness
from rattle.settings import Plain
from rattle.threat import Threat
from rattle.weights import eval_mode, refuse_inference_tensors


class Attack(Protocol):
    """Stateless, deterministic given the generator; leaves weights, gradients, statistics and mode as it found them."""

    @property
    def threat(self) -> Threat: ...

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """Adversarial examples x_adv, shaped like x.

        model: returns logits [n, C]; x: images in [0, 1], [n, ...]; y: true classes, [n];
        generator: a torch generator, one stream for each image, or None for torch's global generator.
        """
        ...


@contextmanager
def attack_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients for weights, and gradients enabled whatever the caller's mode."""
    trained = [p for p in check_model(model).parameters() if p.requires_grad]
    refuse_inference_tensors(model)
    with eval_mode(model), torch.inference_mode(False), torch.enable_grad():
        for p in trained:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in trained:
                p.requires_grad_(True)


class AttackExtras:
    """What an evaluation asks of an attack besides running it. A plain callable with a `threat` is an attack too."""

    __slots__ = ()

    def models(self) -> dict[str, nn.Module]:
        """Other models that the result depends on, by name (transfer)."""
        return {}

    def metadata(self) -> Plain:
        """What a result file records of the attack, as plain data."""
        return class_and_fields(self)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest misclassified points that a search found."""

    x_adv: Tensor  # x itself where x is misclassified already, or where nothing was found
    distance: Tensor  # [n], in the threat's norm: 0 where x is misclassified, the largest possible if nothing was found
    queries: Tensor | None = None  # labels asked for, [n], of a search that counts them

    @property
    def adbd(self) -> float:
        """Average decision boundary distance over all images, misclassified ones counting 0."""
        return float(self.distance.mean())


class DistanceAttack(AttackExtras):
    """An attack that measures how far the decision boundary is (RayS)."""

    __slots__ = ()

    def search(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Nearest:
        raise NotImplementedError


def describe_attack(attack: Attack) -> Plain:
    """What a result file records of an attack, as plain data: class, settings, and the components of an ensemble."""
    return attack.metadata() if isinstance(attack, AttackExtras) else class_and_fields(attack)


def class_and_fields(attack: Any) -> Plain:
    described = asdict(attack) if is_dataclass(attack) else {"threat": asdict(attack.threat)}  # type: ignore[arg-type]
    return {"kind": type(attack).__name__, **described}
