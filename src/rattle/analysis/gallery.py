"""What a report shows of a model's mistakes: adversarial examples, predictions by class, accuracy against epsilon."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.analysis.landscape import as_array
from rattle.attacks.base import logits_of
from rattle.attacks.registry import get_attack
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.evaluation.evaluate import curve, image_batches
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import flatten, to_plain
from rattle.runs.arrays import Gallery
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.load import load_model
from rattle.runs.progress import Console, NullConsole
from rattle.weights import eval_mode

ATTACK = "pgd20"
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # in units of the threat's epsilon
MAX_SHOWN, MAX_IMAGES = 10, 1000
NOT_SETTINGS = ("name", "seed", "threads", "data.root", "data.in_memory_limit")  # they do not make another recipe


def first_of_each_class(y: Tensor, classes: int = MAX_SHOWN) -> Tensor:
    """Indices of the first image of each of the first `classes` classes: the same for every model.

    >>> first_of_each_class(torch.tensor([2, 0, 2, 1, 0])).tolist()
    [1, 3, 0]
    """
    return torch.tensor([int((y == label).nonzero()[0]) for label in y.unique()[:classes]])


def overrides(recipe: Recipe) -> str:
    """How a recipe differs from the catalog's of the same name, in words; empty if it does not or there is none.

    >>> overrides(replace(get_recipe("digits-linf-cnn-at"), epochs=3))
    'epochs 3 (30)'
    """
    try:
        published = flatten(to_plain(get_recipe(recipe.name)))
    except RattleError:
        return ""
    ours = flatten(to_plain(recipe))
    names = [name for name in {**published, **ours} if name not in NOT_SETTINGS]
    changed = [name for name in names if ours.get(name) != published.get(name)]
    return ", ".join(f"{name} {as_text(ours.get(name))} ({as_text(published.get(name))})" for name in changed)


def as_text(value: Any) -> str:
    return "default" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted class and its softmax, [n] and [n]."""
    confidence, label = logits_of(model, x).softmax(1).max(1)
    return label, confidence


def gallery(
    saved: Checkpoint, *, max_images: int = MAX_IMAGES, seed: int = 0, console: Console | None = None
) -> Gallery:
    """Attack the first `max_images` test images of a checkpoint's dataset with PGD-20 at several radii."""
    console = console or NullConsole()
    data, threat, model = saved.recipe.data.load(), saved.recipe.attack.threat, load_model(saved)
    test = data.test[torch.arange(min(max_images, len(data.test)))]
    attack, radii = get_attack(ATTACK, threat), [r * threat.epsilon for r in RADII]
    shown = first_of_each_class(test.y)
    parts = []
    with console.progress(f"gallery of {saved.recipe.name}", len(test)) as advance, eval_mode(model):
        for index, x, y in image_batches(test.x, test.y, 250):
            x_adv = attack(model, x, y, generator=ImageStreams(seed, index))
            parts.append((*predict(model, x), *predict(model, x_adv), x_adv[torch.isin(index, shown)]))
            advance(len(index))
    label, confidence, label_adv, confidence_adv, pictures = (torch.cat(part) for part in zip(*parts, strict=True))
    attacks = {radius: get_attack(ATTACK, replace(threat, epsilon=radius)) for radius in radii}
    robust = curve(model, test.x, test.y, attacks, name=ATTACK, seed=seed, console=console)
    return Gallery(
        classes=np.array(data.classes, dtype=np.str_),
        y=as_array(test.y),
        clean_predicted=as_array(label),
        adversarial_predicted=as_array(torch.where(label == test.y, label_adv, label)),
        index=as_array(shown),
        x=as_array(to_float(test.x[shown])),
        x_adv=as_array(pictures[shown.argsort().argsort()]),  # they were collected in the order of the images
        clean_confidence=as_array(confidence[shown]),
        adversarial_label=as_array(label_adv[shown]),
        adversarial_confidence=as_array(confidence_adv[shown]),
        epsilons=np.array(radii),
        robust=np.array([robust[radius] for radius in radii]),
        attack=ATTACK,
        norm=threat.norm,
        epsilon=float(threat.epsilon),
        step=int(saved.progress.get("step", 0)),
        overrides=overrides(saved.recipe),
    )
