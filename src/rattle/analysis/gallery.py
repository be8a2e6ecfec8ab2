"""What a report shows of a model's mistakes: adversarial examples, predictions class by class, accuracy by epsilon.

Arrays first: `gallery` attacks the test images of a checkpoint, the report reads the .npz file and needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.analysis.landscape import as_array
from rattle.attacks import Attack
from rattle.attacks.base import logits_of
from rattle.attacks.registry import get_attack
from rattle.data import Images, to_float
from rattle.errors import RattleError
from rattle.evaluation.evaluate import image_batches
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import to_plain
from rattle.runs.arrays import Gallery
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.load import load_model
from rattle.runs.progress import Console, NullConsole
from rattle.threat import Threat
from rattle.weights import eval_mode

ATTACK = "pgd20"
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # in units of the threat's epsilon
SHOWN, MOST_IMAGES = 10, 1000
NOT_SETTINGS = ("name", "seed", "threads", "data.root", "data.in_memory_limit")  # they do not make another recipe


def first_of_each_class(y: Tensor, most: int = SHOWN) -> Tensor:
    """Indices of the first image of each class, for the first `most` classes: the same for every model.

    >>> first_of_each_class(torch.tensor([2, 0, 2, 1, 0])).tolist()
    [1, 3, 0]
    """
    labels = y.unique()[:most]
    return torch.tensor([int((y == label).nonzero()[0]) for label in labels])


def flat(plain: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(plain, dict):
        return {prefix: plain}
    return {k: v for key, value in plain.items() for k, v in flat(value, f"{prefix}.{key}".lstrip(".")).items()}


def overrides(recipe: Recipe) -> str:
    """How a recipe differs from the one its name spells out, in words; empty when it does not or names none.

    >>> overrides(replace(get_recipe("digits-linf-cnn-at"), epochs=3))
    'epochs 3 (30)'
    """
    try:
        published = flat(to_plain(get_recipe(recipe.name)))
    except RattleError:
        return ""
    ours = flat(to_plain(recipe))
    names = [name for name in {**published, **ours} if name not in NOT_SETTINGS]
    changed = [name for name in names if ours.get(name) != published.get(name)]
    return ", ".join(f"{name} {shown(ours.get(name))} ({shown(published.get(name))})" for name in changed)


def shown(value: Any) -> str:
    return "default" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted class and its softmax, [n] and [n]."""
    confidence, label = logits_of(model, x).softmax(1).max(1)
    return label, confidence


def radius_flags(
    model: nn.Module, test: Images, attack: str, threat: Threat, radii: Sequence[float], *, seed: int, advance: Any
) -> Tensor:
    """Which images withstand the attack at each radius, bool [E, n].

    A point of a ball lies in every larger ball, so an image that fell once has fallen: the curve cannot rise.
    """
    rows, standing = [], torch.ones(len(test), dtype=torch.bool)
    for radius in sorted(radii):
        at = replace(threat, epsilon=radius)
        fierce = get_attack(attack, at) if radius > 0 else None
        for index, x, y in image_batches(test.x, test.y, 250):
            keep = standing[index]
            if bool(keep.any()):
                standing[index[keep]] = withstands(model, fierce, x[keep], y[keep], index[keep], seed=seed)
            advance(len(index), epsilon=radius, robust=float(standing.float().mean()))
        rows.append(standing.clone())
    return torch.stack(rows)


def withstands(model: nn.Module, attack: Attack | None, x: Tensor, y: Tensor, index: Tensor, *, seed: int) -> Tensor:
    """Right before and, at a radius above 0, after the attack."""
    right = predict(model, x)[0] == y
    if attack is None:
        return right
    x_adv = attack(model, x, y, generator=ImageStreams(seed, index))
    return right & ((predict(model, x_adv)[0] == y) | ~attack.threat.contains(x_adv, x))


def attacked(
    model: nn.Module, test: Images, attack: Attack, chosen: Tensor, *, seed: int, advance: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Predictions before and after, [n] each; confidences and the label after, [3, n]; chosen pictures [m, ...]."""
    clean, adversarial, confidences, pictures = [], [], [], []
    for index, x, y in image_batches(test.x, test.y, 250):
        x_adv = attack(model, x, y, generator=ImageStreams(seed, index))
        (before, sure), (after, sure_adv) = predict(model, x), predict(model, x_adv)
        clean.append(before)
        adversarial.append(torch.where(before == y, after, before))
        confidences.append(torch.stack([sure, sure_adv, after.float()]))
        pictures.append(x_adv[torch.isin(index, chosen)])
        advance(len(index))
    order = chosen.argsort().argsort()  # pictures come in the order of the images
    return torch.cat(clean), torch.cat(adversarial), torch.cat(confidences, 1), torch.cat(pictures)[order]


def gallery(saved: Checkpoint, *, most: int = MOST_IMAGES, seed: int = 0, console: Console | None = None) -> Gallery:
    """Attack the first `most` test images of a checkpoint's dataset with PGD-20 at several radii."""
    data, threat, model = saved.recipe.data.load(), saved.recipe.attack.threat, load_model(saved)
    rows = torch.arange(min(most, len(data.test)))
    test = data.test[rows]
    attack, radii = get_attack(ATTACK, threat), [r * threat.epsilon for r in RADII]
    chosen = first_of_each_class(test.y)
    title = f"gallery of {saved.recipe.name}"
    with (console or NullConsole()).progress(title, len(test) * (len(radii) + 1)) as advance, eval_mode(model):
        clean, adversarial, confidences, pictures = attacked(model, test, attack, chosen, seed=seed, advance=advance)
        robust = radius_flags(model, test, ATTACK, threat, radii, seed=seed, advance=advance)
    sure, sure_adv, label_adv = confidences[:, chosen]
    return Gallery(
        classes=np.array(data.classes, dtype=np.str_),
        y=as_array(test.y),
        clean_predicted=as_array(clean),
        adversarial_predicted=as_array(adversarial),
        index=as_array(chosen),
        x=as_array(to_float(test.x[chosen])),
        x_adv=as_array(pictures),
        clean_confidence=as_array(sure),
        adversarial_label=as_array(label_adv.long()),
        adversarial_confidence=as_array(sure_adv),
        epsilons=np.array(radii),
        robust=as_array(robust),
        attack=ATTACK,
        norm=threat.norm,
        epsilon=float(threat.epsilon),
        step=int(saved.progress.get("step", 0)),
        overrides=overrides(saved.recipe),
    )
