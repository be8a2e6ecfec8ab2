"""The contract of an attack, (model, x, y, *, generator) -> x_adv, and the input checks that all attacks share."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, first_line, is_out_of_memory
from rattle.forward import at_least_float32
from rattle.losses import logits_in, refuse_one_logit
from rattle.randomness import Randomness
from rattle.settings import check_settings
from rattle.threat import Threat

log = logging.getLogger("rattle")

CHANNELS_LAST: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what each model was found to accept


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


CHECKED: ContextVar[bool] = ContextVar("images_checked", default=False)


@contextmanager
def images_checked() -> Iterator[None]:
    """In the body attacks do not look for values outside [0, 1], except on a CPU: the host would wait for a GPU."""
    before = CHECKED.set(True)
    try:
        yield
    finally:
        CHECKED.reset(before)


def unseen(values: Tensor) -> bool:
    """Whether the values may not be looked at, see `images_checked`."""
    return CHECKED.get() and values.device.type != "cpu"


def check_batch(x: Tensor, y: Tensor, *, soft: bool = False) -> tuple[Tensor, Tensor]:
    """The images and int64 labels (soft: also rows of probabilities, as they are); refuses what cannot be attacked."""
    if soft and isinstance(y, Tensor) and y.ndim == 2 and y.is_floating_point():
        return check_batch(x, y.argmax(1))[0], y
    for name, value in (("images", x), ("labels", y)):
        if not isinstance(value, Tensor):
            kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
            raise RattleError(f"attacks take torch tensors, but the {name} are {kind}; convert with torch.as_tensor")
        if (value.is_meta and not CHECKED.get()) or value.layout != torch.strided or value.is_quantized:
            raise RattleError(f"the {name} must be a dense tensor of numbers, got {value.layout} on {value.device}")
    if y.ndim != 1 or x.ndim < 2:
        raise RattleError(f"images and labels need shapes [n, ...] and [n], got {list(x.shape)} and {list(y.shape)}")
    if len(x) != len(y):
        raise RattleError(f"{len(x)} images but {len(y)} labels")
    if len(x) == 0:
        raise RattleError("there are no images to attack: the batch is empty")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise RattleError(f"labels must be whole numbers, got {y.dtype}")
    if not x.is_floating_point():
        raise RattleError(f"images must be floating point in [0, 1], got {x.dtype}; divide uint8 images by 255")
    if unseen(x):
        return x, y.long()
    low, high = (float(v) for v in torch.aminmax(x))
    if not (low >= 0 and high <= 1):  # also true for NaN
        raise RattleError(f"images must lie in [0, 1], got [{low:.4g}, {high:.4g}]; normalise inside the model")
    return x, y.long()


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Refuse labels that the model has no logit for, and soft ones of another number of classes."""
    if y.ndim == 2 and y.shape != logits.shape:
        raise RattleError(f"soft labels need a probability for each of the {logits.shape[1]} logits, got {y.shape[1]}")
    if y.ndim == 2 or unseen(y):
        return
    low, high, last = int(y.min()), int(y.max()), logits.shape[1] - 1
    if last and (low < 0 or high > last):  # one logit has its own sentence
        raise RattleError(f"labels run from {low} to {high}, the model tells {last + 1} classes apart (0 to {last})")


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """The model's logits [n, C], in float32 under autocast too; RattleError if it returns something else, or if its
    weights are of another dtype."""
    try:
        return at_least_float32(logits_in(model(x)))
    except (RuntimeError, IndexError) as reason:
        if is_out_of_memory(reason):
            raise
        raise not_taken(model, x, reason) from reason


class NotTaken(RattleError, RuntimeError):
    """The model raised on the images; a RuntimeError too, for those who try several layouts."""


def not_taken(model: nn.Module, x: Tensor, reason: Exception) -> NotTaken:
    """Why the model raised on these images."""
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
    if weights != x.dtype and "type" in str(reason):
        return NotTaken(f"the images are {x.dtype}, the model's weights {weights}; convert one of them")
    return NotTaken(f"the model does not take images of shape {list(x.shape[1:])}: {first_line(reason)}")


class NotANumber(RattleError):
    """The model returned NaN logits."""


def finite(logits: Tensor) -> Tensor:
    """The logits; NotANumber if one is NaN, because comparisons with NaN are always false."""
    if bool(logits.isnan().any()):
        raise NotANumber("the model returned NaN logits; no attack can tell from them if an image is misclassified")
    return logits


@torch.no_grad()
def clean_logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The logits in one forward pass without gradients; refuses NaN and labels that the model has no logit for."""
    logits = finite(logits_of(model, x))
    refuse_one_logit(logits)
    check_labels(logits, y)
    return logits


def is_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model classifies correctly in one forward pass, [n] bool."""
    return clean_logits(model, x, y).argmax(1) == y


@torch.no_grad()
def accepts_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether the model runs on channels-last images like x; tried once per model, with one warning if it does not."""
    if x.ndim != 4:
        return False
    if model not in CHANNELS_LAST:
        try:
            logits_of(model, x[:2].clone(memory_format=torch.channels_last))
            CHANNELS_LAST[model] = True
        except RuntimeError:
            # raises again if the layout was not the reason
            logits_of(model, x[:2].clone(memory_format=torch.contiguous_format))
            CHANNELS_LAST[model] = False
            log.warning("the model does not take channels-last images (it flattens by .view?); attacks run slower")
    return CHANNELS_LAST[model]
