"""What `evaluate` was asked for: attacks by name, threats, the size of a batch, and a checksum of each image."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, permutations

import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.registry import get_attack
from rattle.data.decode import Pictures
from rattle.errors import RattleError
from rattle.evaluation.results import check_name
from rattle.recipes.schema import ball_text
from rattle.threat import Norm, Threat

LARGEST_BATCH, SMALLEST_EVALUATED = 250, 16
WEIGHTS_IN_A_BATCH = 100_000_000  # on a CPU: images times weights
Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, str | Attack]


def as_threat(threat: Threat | None, norm: Norm | None, epsilon: float | None) -> Threat | None:
    """The threat given as one, or by norm (linf if None) and epsilon (8/255 if None); None if nothing is given."""
    if threat is not None and (norm is not None or epsilon is not None):
        raise RattleError("give the threat as threat= or as norm= and epsilon=, not both")
    if norm is None and epsilon is None:
        return threat
    return Threat(norm=norm or "linf", epsilon=8 / 255 if epsilon is None else epsilon)


def default_batch_size(model: nn.Module, device: torch.device) -> int:
    """250 images on a GPU; on a CPU fewer for large networks, at least 16: what an interruption costs is minutes.

    Every image has its own random stream, so the flags do not depend on it beyond rounding.

    >>> default_batch_size(nn.Linear(1000, 1000), torch.device("cpu"))
    99
    """
    if device.type != "cpu":
        return LARGEST_BATCH
    weights = sum(p.numel() for p in model.parameters())
    return min(LARGEST_BATCH, max(SMALLEST_EVALUATED, WEIGHTS_IN_A_BATCH // max(1, weights)))


def image_checksums(x: Tensor | Pictures, y: Tensor) -> list[str]:
    """A checksum of each image and its label, by which results on overlapping sets of images are paired.

    Bytes and floats in [0, 1] of the same image have the same one: a float counts as the nearest 255th. An image that
    comes again has the number of times after it, so that no two are equal.
    """
    found, seen = [], Counter[str]()
    for part, labels in zip(x.split(1000), y.split(1000), strict=True):
        pixels = part if part.dtype == torch.uint8 else (255 * part).round().to(torch.uint8)
        for image, label in zip(pixels.cpu().contiguous().numpy(), labels.tolist(), strict=True):
            start = f"{label} {image.shape} ".encode()
            checksum = hashlib.blake2b(start + image.tobytes(), digest_size=6).hexdigest()
            found.append(f"{checksum}+{seen[checksum]}" if seen[checksum] else checksum)
            seen[checksum] += 1
    return found


def as_attacks(attacks: Attacks, threat: Threat | None) -> dict[str, Attack]:
    """Attacks by the name that their results are stored under.

    An object without a name is called by its class, such as `pgd`, the second of a class `pgd-2`.
    """
    if isinstance(attacks, Mapping):
        return {check_name(name): as_attack(attack, threat) for name, attack in attacks.items()}
    found = {}
    for attack in attacks if isinstance(attacks, (list, tuple)) else [attacks]:
        name = attack if isinstance(attack, str) else type(attack).__name__.lower()
        if name in found and not isinstance(attack, str):
            name = next(new for i in count(2) if (new := f"{name}-{i}") not in found)
        found[name] = as_attack(attack, threat)
    return found


def as_attack(attack: object, threat: Threat | None) -> Attack:
    """One attack: the one of that name on `threat`, or the object itself, which has its own threat."""
    if isinstance(attack, str):
        return get_attack(attack, threat or Threat())
    own = getattr(attack, "threat", None)
    if isinstance(attack, type) or not callable(attack) or not isinstance(own, Threat):
        what = f"the class {attack.__name__}" if isinstance(attack, type) else type(attack).__name__
        raise RattleError(f"an attack is a name such as 'pgd20' or an object such as PGD(steps=20), got {what}")
    if threat not in (None, own):
        raise RattleError(f"{type(attack).__name__} has its own threat, {own}, which is not {threat}")
    return attack  # type: ignore[return-value]


def under_threats(
    make: Callable[[Threat], Mapping[str, Attack]], threats: Sequence[Threat], size: int
) -> dict[str, Attack]:
    """The attacks that `make` gives under each of several threats, named like `autoattack,l2=0.5`.

    size: numbers in an image, on which it depends whether a ball contains another.
    """
    if len(threats) < 2:
        raise RattleError("threats must be two or more: give a single one as threat, or by norm and epsilon")
    for one, other in permutations(threats, 2):
        if one == other:
            raise RattleError(f"the threat {ball_text(one)} is named twice")
        if one.lies_within(other, size):
            first, second = (ball_text(threat) for threat in (one, other))
            raise RattleError(f"the threat {first} lies within {second}, so their union is the latter: leave out one")
    found = {}
    for threat in threats:
        for name, attack in make(threat).items():
            if attack.threat != threat:
                raise RattleError(f"{name} takes no {threat.norm} threat: it attacks under {attack.threat}")
            found[f"{name},{threat.norm}={threat.epsilon:.9g}"] = attack
    return found
