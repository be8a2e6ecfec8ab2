"""Turn what `evaluate` accepts into one form: tensors, and attacks by name."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from rattle.attacks import Attack
from rattle.attacks.registry import get_attack
from rattle.data import to_float
from rattle.data.decode import Pictures
from rattle.errors import RattleError
from rattle.evaluation.results import check_name
from rattle.inputs import accepts_channels_last, check_batch, check_model, logits_of
from rattle.threat import Norm, Threat

Array = Tensor | np.ndarray
Images = Array | Dataset | DataLoader | Pictures
Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, str | Attack]


def as_tensors(model: nn.Module, x: Images, y: Array | None) -> tuple[Tensor, Tensor]:
    """Images, uint8 or floating point in [0, 1], and int64 labels; raises RattleError if they are not.

    Floats of numpy arrays take the model's dtype, because numpy's default is float64. Arrays may be [n, H, W, C].
    """
    check_model(model)
    if isinstance(x, Dataset | DataLoader):
        if y is not None:
            raise RattleError("a Dataset or DataLoader has its own labels: give None for y")
        x, y = collect(x)
    if y is None:
        raise RattleError("images without labels cannot be evaluated: give them as y")
    weights = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    y = as_tensor(y, weights)
    if isinstance(x, Pictures):
        return x, check_batch(torch.zeros(1).expand(x.shape), y)[1]  # type: ignore[return-value]
    return check_batch(channels_first(as_tensor(x, weights)), y, uint8=True)


def as_tensor(value: Any, weights: Tensor) -> Tensor:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "fiub":
        raise RattleError(f"images and labels must be arrays of numbers, got {value.dtype}")
    found = torch.tensor(value)  # a copy, so that read-only arrays do no harm
    return found.to(weights.dtype) if found.is_floating_point() else found


def channels_first(x: Tensor) -> Tensor:
    """[n, H, W, C] as [n, C, H, W], where only the last axis can be channels (1 or 3 of them)."""
    if isinstance(x, Tensor) and x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def collect(data: Dataset | DataLoader, n: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n images and labels of a Dataset or DataLoader, in its own order; all when n is None."""
    if isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler):
        raise RattleError("the DataLoader shuffles, but results belong to images by their place: use shuffle=False")
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not (isinstance(data, DataLoader | IterableDataset) or sized):
        raise RattleError(f"images are tensors, arrays, a Dataset or a DataLoader, got {type(data).__name__}")
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=256, collate_fn=stack_examples)
    images, labels, count = [], [], 0
    for batch in loader:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise RattleError("a Dataset or DataLoader must give pairs of image and label")
        images.append(torch.as_tensor(batch[0]))
        labels.append(torch.as_tensor(batch[1]))
        count += len(labels[-1])
        if n is not None and count >= n:
            break
    if not images:
        raise RattleError("there are no images to evaluate: the Dataset or DataLoader is empty")
    return torch.cat(images)[:n], torch.cat(labels)[:n]


def stack_examples(examples: list[Any]) -> tuple[Tensor, Tensor]:
    """(image, label) pairs as one batch; an image may be a tensor, an array or a PIL picture."""
    images, labels = zip(*examples, strict=True)
    tensors = [image if isinstance(image, Tensor) else torch.as_tensor(np.array(image)) for image in images]
    return torch.stack(tensors), torch.as_tensor(labels)


def as_threat(threat: Threat | None, norm: Norm | None, epsilon: float | None) -> Threat | None:
    """The threat given as one, or by norm (linf if None) and epsilon (8/255 if None); None if nothing is given."""
    if threat is not None and (norm is not None or epsilon is not None):
        raise RattleError("give the threat as threat= or as norm= and epsilon=, not both")
    if norm is None and epsilon is None:
        return threat
    return Threat(norm=norm or "linf", epsilon=8 / 255 if epsilon is None else epsilon)


def as_float(x: Tensor, *, channels_last: bool = True) -> Tensor:
    """Images in [0, 1]: uint8 ones divided by 255, others as they are.

    channels_last: False gives the strides of a new tensor [n, C, H, W], for models that flatten by `.view`.
    """
    if channels_last:
        return x if x.is_floating_point() else to_float(x)
    layout = torch.contiguous_format  # by a copy: .contiguous() keeps the strides that a single channel may have
    return x.clone(memory_format=layout) if x.is_floating_point() else to_float(x, layout)


def takes_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether a model in evaluation mode takes images like x channels last; RattleError if it does not take them."""
    few = as_float(x[:2], channels_last=False)
    with torch.no_grad():
        logits_of(model, few)  # the layout is tried once for each model, images like these not
    return accepts_channels_last(model, few)


def floats_for(model: nn.Module, x: Tensor) -> Tensor:
    """Images in [0, 1] for a model in evaluation mode: channels last, which is faster, where it takes them so."""
    return as_float(x, channels_last=takes_channels_last(model, x))


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
    found: dict[str, Attack] = {}
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
        raise RattleError(f"{type(attack).__name__} has a threat of its own, {own}, other than {threat}")
    return attack  # type: ignore[return-value]
