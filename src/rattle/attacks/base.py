"""The contract of an attack, (model, x, y, *, generator) -> x_adv, and the mode that every attack runs in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rattle.attacks.batchnorm import affine_batchnorm
from rattle.errors import RattleError
from rattle.inputs import check_model
from rattle.randomness import Randomness
from rattle.settings import check_settings
from rattle.threat import Threat
from rattle.weights import eval_mode


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
    """What every attack runs in: evaluation mode, no gradients for weights, gradients enabled."""
    check_model(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    with eval_mode(model), affine_batchnorm(model), torch.enable_grad():
        for p in trained:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in trained:
                p.requires_grad_(True)


# What an attack may offer besides. Whoever runs attacks asks for these, never for a class by name.
@runtime_checkable
class Ensemble(Protocol):
    """An attack made of others, each run on the images that the ones before it did not break (AutoAttack)."""

    def components(self) -> dict[str, Attack]: ...


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


def describe(attack: Attack) -> dict[str, Any]:
    """What a result file records of an attack, as plain data: class, settings, and the components of an ensemble."""
    if isinstance(attack, HasMetadata):
        return attack.metadata()
    described = asdict(attack) if is_dataclass(attack) else {"threat": asdict(attack.threat)}
    if not described.get("box_first"):  # younger than result files that must still compare equal
        described.pop("box_first", None)
    if isinstance(attack, Ensemble):
        described["components"] = {name: describe(component) for name, component in attack.components().items()}
    return {"kind": type(attack).__name__, **described}


MOST_TIMES = 10**6  # that an attack does anything; more is a slip, and would never end


def check_at_least(attack: object, **lowest: float) -> None:
    """Refuse settings of an attack below the given values, and counts that no attack comes to the end of."""
    check_settings(attack, "attack")
    for name, low in lowest.items():
        value = getattr(attack, name)
        if not value >= low:
            raise RattleError(f"attack.{name} must be >= {low}, got {value}")
        if isinstance(value, int) and value > MOST_TIMES:
            raise RattleError(f"attack.{name} must be at most {MOST_TIMES:,}, got {value}")
