"""What makes a robustness evaluation unreliable, checked before and after it: each check gives its warnings.

They are those of the reference AutoAttack package (Croce and Hein 2020) and of Carlini et al. 2019.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.apgd import APGD, FEWEST_CLASSES
from rattle.attacks.base import attack_mode
from rattle.inputs import (
    NoGradient,
    accepts_channels_last,
    check_batch,
    clean_logits,
    input_gradient,
    logits_of,
    trains_channels_last,
    weights_type,
)

MOST_DIAGNOSED = 250  # images used at most
# The most that rounding changes logits by in batches of other sizes, as a share of their length.
ROUNDING, HALF_ROUNDING = 1e-3, 0.05
PASSES = 5  # that are compared to see whether a model answers at random
REPEATED, HALF_REPEATED = 1e-4, 1e-2  # the same of one batch passed again, where a GPU adds in another order
WEAK_TO_STRONG = ("fgsm", "pgd10", "pgd20", "pgd50", "apgd-ce", "autoattack")  # accuracy must not rise along it


def find_warnings(model: nn.Module, x: Tensor, y: Tensor, attacks: Collection[str] = ("apgd-t",)) -> list[str]:
    """All warnings that can be given before attacking, a sentence each, from the first 250 images and their labels.

    attacks: the names of those that will run, components of ensembles too.

    >>> soft = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Softmax(1))
    >>> [warning.split(":")[0] for warning in find_warnings(soft, torch.rand(5, 1, 2, 2), torch.arange(5) % 3)]
    ['the model returns probabilities', 'with 3 classes apgd-t maximises the margin instead of targeted DLR']
    """
    x, y = check_batch(x[:MOST_DIAGNOSED], y[:MOST_DIAGNOSED])
    with attack_mode(model):
        logits = clean_logits(model, x, y)
        found = [*in_logits(model, x, logits), *while_predicting(model, x), *in_gradients(model, x, y)]
        if not {"apgd-t", "apgd-dlr", "fab-t"}.isdisjoint(attacks):
            found += few_classes(logits.shape[1])
        if x.ndim == 4 and trains_channels_last(model) and not accepts_channels_last(model, x):
            found.append("the model does not take channels-last images: use .flatten(1), not .view, for faster attacks")
        return found


@torch.no_grad()
def is_random(model: nn.Module, x: Tensor) -> bool:
    """Whether passes of the same batch differ by more than rounding, on any of the images.

    >>> is_random(nn.Flatten(), torch.rand(2, 1, 2, 2)), is_random(nn.Dropout(), torch.rand(2, 4))
    (False, True)
    """
    slack = REPEATED if weights_type(model, x.dtype).itemsize >= 4 else HALF_REPEATED
    first = None
    for _ in range(PASSES):
        logits = logits_of(model, x)
        centred = logits - logits.mean(1, keepdim=True)  # an offset of all classes changes no answer
        unit = centred / (centred.norm(dim=1, keepdim=True) + 1e-10)
        if first is None:
            first = unit
        elif float((unit - first).norm(dim=1).max()) > slack:
            return True
    return False


def in_logits(model: nn.Module, x: Tensor, logits: Tensor) -> Iterator[str]:
    """Logits that differ between passes or batches of the same images, or that have no gradient worth following."""
    if is_random(model, x):
        yield (
            "the model answers at random: `evaluate` measures its expected accuracy over fresh draws, by attacks that "
            "average over draws; other numbers count lucky draws as robust or unlucky ones as broken"
        )
    else:
        with torch.no_grad():
            alone = logits_of(model, x[:1])[0]
        slack = ROUNDING if weights_type(model, x.dtype).itemsize >= 4 else HALF_ROUNDING
        if float((alone - logits[0]).norm()) > slack * float(alone.norm()):
            yield "the output for an image depends on the others in its batch: results depend on batch_size"
    low, high = (float(v) for v in torch.aminmax(logits))
    if low >= -1e-5 and high <= 1 + 1e-5 and bool(((logits.sum(1) - 1).abs() <= 1e-5).all()):
        yield "the model returns probabilities: return the logits before the softmax, whose gradients do not vanish"
    if len(logits) > 1 and bool((logits == logits[:1]).all()):
        yield "the model returns the same logits for every image: nothing is being classified"
    elif bool((logits == logits.round()).all()):
        yield "the model returns whole numbers: return logits, or trust only square and rays"


def while_predicting(model: nn.Module, x: Tensor) -> Iterator[str]:
    """Defences that optimise, or change their weights or buffers, while they predict."""

    def state() -> list[tuple[str, int, int]]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return [(name, tensor.data_ptr(), tensor._version) for name, tensor in named]

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return engine(*args, **options)

    before, calls = state(), []
    engine = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = counting  # type: ignore[assignment]
    try:
        logits_of(model, x)
    finally:
        torch.autograd._engine_run_backward = engine
    if calls:
        yield "the model computes gradients while it predicts: AutoAttack may not suffice, attack it adaptively"
    if state() != before:
        yield "the model changes its weights or buffers while it predicts: results depend on the calls before"


def in_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[str]:
    """Images at which a gradient attack cannot start."""
    counts = []
    for name, loss in {"cross-entropy": losses.ce, "margin": losses.cw}.items():
        leaf = x.detach().requires_grad_()
        try:
            gradient = input_gradient(loss(logits_of(model, leaf), y).sum(), leaf)
        except NoGradient as reason:
            yield f"{reason}; of autoattack only square was run"
            return
        if zero := int((gradient.flatten(1).abs().amax(1) == 0).sum()):
            counts.append(f"{zero} of {len(x)} images for the {name}")
    if counts:
        where = " and ".join(counts)
        yield f"the gradient is exactly zero ({where}): gradient attacks are unreliable there, compare with square"


def few_classes(classes: int) -> Iterator[str]:
    """Which loss and how many targets AutoAttack uses when there are few classes."""
    if classes < FEWEST_CLASSES["dlr"]:
        yield f"with {classes} classes apgd-dlr maximises the margin: DLR needs {FEWEST_CLASSES['dlr']}"
    if classes < (needed := FEWEST_CLASSES["dlr-targeted"]):
        yield f"with {classes} classes apgd-t maximises the margin instead of targeted DLR: that needs {needed}"
    elif classes - 1 < APGD().targets:
        yield f"with {classes} classes apgd-t and fab-t have {classes - 1} targets, not {APGD().targets}"


def post_checks(accuracies: Mapping[str, float], parts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Warnings that results give: robust accuracy by attack, and of ensembles after each component.

    It must not rise from a weaker attack to a stronger one, nor must square break much that gradients did not.
    """
    found = []
    for weaker, stronger in pairwise(name for name in WEAK_TO_STRONG if name in accuracies):
        before, after = accuracies[weaker], accuracies[stronger]
        if after > before:
            change = f"from {before:.2%} under {weaker} to {after:.2%} under the stronger {stronger}"
            found.append(f"robust accuracy rises {change}: gradients may be masked")
    for after_each in parts.values():
        others = [accuracy for name, accuracy in after_each.items() if name != "square"]
        gain = min(others) - after_each["square"] if "square" in after_each and others else 0
        if gain > 0.002:
            what = "gradients may be masked, attack adaptively"
            found.append(f"square broke another {gain:.2%} that no gradient attack broke: {what}")
    return found
