"""What makes a robustness evaluation unreliable, checked before and after it: each check returns its warnings.

They are those of the reference AutoAttack package (Croce and Hein 2020) and of Carlini et al. 2019.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.apgd import FEWEST_CLASSES, effective_loss
from rattle.attacks.base import check_batch, check_labels, finite, logits_of
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.rows import accepts_channels_last

SAMPLE = 250  # images used at most
WEAK_TO_STRONG = ("fgsm", "pgd10", "pgd20", "pgd50", "apgd-ce", "autoattack")  # accuracy must not rise along it


def find_warnings(model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """All warnings that can be given before attacking, a sentence each; empty if nothing was found.

    model: returns logits; x, y: some of the images to be attacked and their labels, of which the first 250 are used.

    >>> soft = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Softmax(1))
    >>> [warning.split(":")[0] for warning in find_warnings(soft, torch.rand(5, 1, 2, 2), torch.arange(5) % 3)]
    ['the model returns probabilities', 'with 3 classes apgd-t maximises the margin instead of targeted DLR']
    """
    x, y = check_batch(x[:SAMPLE], y[:SAMPLE])
    with attack_mode(model):
        with torch.no_grad():
            logits = finite(logits_of(model, x))
        check_labels(logits, y)
        return [
            *randomised(model, x, y),
            *probabilities(logits),
            *coarse(logits),
            *dynamic(model, x),
            *zero_gradients(model, x, y),
            *few_classes(logits.shape[1]),
            *layout(model, x),
        ]


def randomised(model: nn.Module, x: Tensor, y: Tensor, *, passes: int = 5, tolerance: float = 1e-4) -> list[str]:
    """Logits that differ between passes over the same images."""
    with torch.no_grad():
        outputs = [logits_of(model, x) for _ in range(passes)]
    correct = {int((z.argmax(1) == y).sum()) for z in outputs}
    unit = [z / (z.norm(dim=1, keepdim=True) + 1e-10) for z in outputs]
    spread = max(float((z - unit[0]).norm(dim=1).max()) for z in unit)
    if len(correct) == 1 and spread <= tolerance:
        return []
    return ["the model's output is random: use autoattack-rand, whose gradients are averaged over several passes"]


def probabilities(logits: Tensor, *, tolerance: float = 1e-5) -> list[str]:
    """Rows in [0, 1] that sum to 1."""
    low, high = (float(v) for v in torch.aminmax(logits))
    if low < -tolerance or high > 1 + tolerance or bool(((logits.sum(1) - 1).abs() > tolerance).any()):
        return []
    return ["the model returns probabilities: return the logits before the softmax, whose gradients do not vanish"]


def coarse(logits: Tensor) -> list[str]:
    """Constant or whole-number outputs have no gradient worth following."""
    if len(logits) > 1 and bool((logits == logits[:1]).all()):
        return ["the model returns the same logits for every image: nothing is being classified"]
    if bool((logits == logits.round()).all()):
        return ["the model returns whole numbers: return logits, or trust only square and rays"]
    return []


def dynamic(model: nn.Module, x: Tensor) -> list[str]:
    """Defences that optimise, or change their weights or buffers, while they predict."""

    def state() -> list[tuple[str, int, int]]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return [(name, tensor.data_ptr(), tensor._version) for name, tensor in named]

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return engine(*args, **options)

    before, found, calls = state(), [], []
    engine = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = counting  # type: ignore[assignment]
    try:
        logits_of(model, x)
    finally:
        torch.autograd._engine_run_backward = engine
    if calls:
        found.append("the model computes gradients while it predicts: AutoAttack may not suffice, attack it adaptively")
    if state() != before:
        found.append("the model changes its weights or buffers while it predicts: results depend on the calls before")
    return found


def zero_gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """Images at which a gradient attack cannot start."""
    flat: dict[str, int] = {}
    for name, loss in {"cross-entropy": losses.ce, "margin": losses.cw}.items():
        leaf = x.detach().requires_grad_()
        total = loss(logits_of(model, leaf), y).sum()
        if not total.requires_grad:
            return ["the model's output has no gradient: only square and rays can attack it"]
        (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
        zero = len(x) if gradient is None else int((gradient.flatten(1).abs().amax(1) == 0).sum())
        if zero:
            flat[name] = zero
    if not flat:
        return []
    counts = " and ".join(f"{k} of {len(x)} images for the {name}" for name, k in flat.items())
    return [f"the gradient is exactly zero ({counts}): gradient attacks are unreliable there, compare with square"]


def few_classes(classes: int, *, targets: int = 9) -> list[str]:
    """Which loss and how many targets AutoAttack uses when there are few classes."""
    found = []
    if effective_loss("dlr", classes) != "dlr":
        found.append(f"with {classes} classes apgd-dlr maximises the margin: DLR needs {FEWEST_CLASSES['dlr']}")
    if effective_loss("dlr-targeted", classes) != "dlr-targeted":
        needed = FEWEST_CLASSES["dlr-targeted"]
        found.append(f"with {classes} classes apgd-t maximises the margin instead of targeted DLR: that needs {needed}")
    elif classes - 1 < targets:
        found.append(f"with {classes} classes apgd-t and fab-t have {classes - 1} targets, not {targets}")
    return found


def layout(model: nn.Module, x: Tensor) -> list[str]:
    """Models that flatten by .view run in the slower memory layout."""
    if x.ndim != 4 or accepts_channels_last(model, x):
        return []
    return ["the model does not take channels-last images: flatten with .flatten(1), not .view, and attacks run faster"]


def square_helped(accuracies: Mapping[str, float], *, tolerance: float = 0.002) -> list[str]:
    """After AutoAttack: robust accuracy after each component, in the order they ran, from 'clean' on."""
    if "square" not in accuracies or len(accuracies) < 3:
        return []
    gain = min(value for name, value in accuracies.items() if name != "square") - accuracies["square"]
    if gain <= tolerance:
        return []
    return [
        f"square broke another {gain:.2%} that no gradient attack broke: gradients may be masked, attack adaptively"
    ]


def rises(accuracies: Mapping[str, float], *, tolerance: float = 0.0) -> list[str]:
    """Robust accuracy of each attack on its own, from weakest to strongest: it must not rise."""
    return [
        f"robust accuracy rises from {before:.2%} under {weaker} to {after:.2%} under the stronger {stronger}: "
        "gradients may be masked"
        for (weaker, before), (stronger, after) in pairwise(accuracies.items())
        if after > before + tolerance
    ]


def post_checks(clean: float, accuracies: Mapping[str, float], parts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Warnings that results give: clean accuracy, robust accuracy by attack, and of ensembles after each component."""
    found = rises({name: accuracies[name] for name in WEAK_TO_STRONG if name in accuracies})
    for after in parts.values():
        found += square_helped({"clean": clean, **after})
    return found
