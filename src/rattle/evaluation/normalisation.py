"""Hints for a model that classifies badly: its normalisation is missing, or its labels are others."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.evaluation.caveats import NEAR_CHANCE
from rattle.inputs import is_correct, logits_of
from rattle.models.layers import Normalise

# Means and stds that training scripts use, by the number of channels.
USUAL_STATISTICS: dict[int, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    1: {
        "MNIST": ((0.1307,), (0.3081,)),
        "Fashion-MNIST": ((0.2860,), (0.3530,)),
        "[-1, 1]": ((0.5,), (0.5,)),
    },
    3: {
        "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
        "CIFAR-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "SVHN": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        "[-1, 1]": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    },
}
GOOD, GAIN = 0.9, 0.1  # accuracy that asks for no hint, gain that does
FEWEST_JUDGED = 50  # images


@torch.no_grad()
def near_chance(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[str]:
    """A warning if the model guesses; predictions that differ from labels by 1 or -1 show that labels are shifted.

    x, y: as for `missing_normalisation`.
    """
    logits = logits_of(model, x)
    offsets = logits.argmax(1) - y
    if len(y) >= FEWEST_JUDGED and (offsets == 0).double().mean() < NEAR_CHANCE / logits.shape[1]:
        shift = int(offsets.mode().values)
        shifted = f"; most predictions are the label {shift:+d}" if shift else ""
        yield f"clean accuracy is near chance{shifted}: check weights, labels and normalisation"


def missing_normalisation(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[str]:
    """A warning if the model, in evaluation mode, does much better on normalised images.

    x, y: the first few hundred images [n, C, H, W] in [0, 1] and their labels; below 50 there is no warning.
    """
    plain, n = float(is_correct(model, x, y).double().mean()), len(y)
    if n < FEWEST_JUDGED or plain >= GOOD or x.ndim != 4:
        return
    found = {
        name: normalised_accuracy(model, x, y, *usual) for name, usual in USUAL_STATISTICS.get(x.shape[1], {}).items()
    }
    best = max(found, key=lambda name: found[name], default="")
    if best and found[best] >= plain + GAIN:
        mean, std = (" ".join(map(str, values)) for values in USUAL_STATISTICS[x.shape[1]][best])
        yield (
            f"{plain:.1%} of the first {n} images are classified correctly, but {found[best]:.1%} when they are "
            f"normalised as for {best}: was the model trained so? Then give --mean {mean} --std {std} (in Python "
            "nn.Sequential(rattle.Normalise(mean, std), model))"
        )


@torch.no_grad()
def normalised_accuracy(
    model: nn.Module, x: Tensor, y: Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> float:
    """On normalised images; 0 if the model gives no usable logits for them."""
    try:
        return float(is_correct(model, Normalise(mean, std).to(x)(x), y).double().mean())
    except (RattleError, RuntimeError):
        return 0.0
