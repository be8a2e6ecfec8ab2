"""What `evaluate` accepts, turned into one form: tensors, and attacks by name."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import check_batch
from rattle.attacks.registry import get_attack
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.evaluation.results import check_name
from rattle.threat import Threat

Array = Tensor | np.ndarray
Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, str | Attack]


def as_tensors(model: nn.Module, x: Array, y: Array) -> tuple[Tensor, Tensor]:
    """Images, uint8 or floating point in [0, 1], and int64 labels; raises RattleError if they are not.

    Numpy arrays go to the model's device, and floats among them to its dtype, because numpy's default is float64.
    Of uint8 images one is checked: any value is in range, and a copy of all as floats would be large.
    """
    if not isinstance(model, nn.Module):
        raise RattleError(f"the model must be a torch.nn.Module, got {type(model).__name__}; rattle.load opens a run")
    weights = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    x, y = (as_tensor(value, weights) for value in (x, y))
    if not isinstance(x, Tensor) or x.dtype != torch.uint8:
        return check_batch(x, y)
    few = slice(1 if len(x) == len(y) else None)  # unequal lengths are for check_batch to refuse
    check_batch(to_float(x[few]), y[few])
    return x, y.long()


def as_tensor(value: Array, weights: Tensor) -> Tensor:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "fiub":
        raise RattleError(f"images and labels must be arrays of numbers, got {value.dtype}")
    found = torch.tensor(value, device=weights.device)  # a copy, so that read-only arrays do no harm
    return found.to(weights.dtype) if found.is_floating_point() else found


def as_attacks(attacks: Attacks, threat: Threat | None) -> dict[str, Attack]:
    """Attacks by the name that their results are stored under.

    An object without a name is called by its class, such as `pgd`, the second of a class `pgd-2`.
    """
    if isinstance(attacks, Mapping):
        return {check_name(name): as_attack(attack, threat) for name, attack in attacks.items()}
    found: dict[str, Attack] = {}
    for attack in attacks if isinstance(attacks, (list, tuple)) else [attacks]:
        made = as_attack(attack, threat)
        name = stem = attack if isinstance(attack, str) else type(attack).__name__.lower()
        while name in found and not isinstance(attack, str):
            name = f"{stem}-{int(name.removeprefix(stem).lstrip('-') or 1) + 1}"
        found[name] = made
    return found


def as_attack(attack: object, threat: Threat | None) -> Attack:
    """One attack: the one of that name on `threat`, or the object itself, which has its own threat."""
    if isinstance(attack, str):
        return get_attack(attack, threat or Threat())
    if isinstance(attack, type) or not callable(attack) or not isinstance(getattr(attack, "threat", None), Threat):
        what = f"the class {attack.__name__}" if isinstance(attack, type) else type(attack).__name__
        raise RattleError(f"an attack is a name such as 'pgd20' or an object such as PGD(steps=20), got {what}")
    if threat is not None and attack.threat != threat:  # type: ignore[attr-defined]
        raise RattleError(f"{type(attack).__name__} has a threat of its own, {attack.threat}, other than {threat}")  # type: ignore[attr-defined]
    return attack  # type: ignore[return-value]
