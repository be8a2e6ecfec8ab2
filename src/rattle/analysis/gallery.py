"""What a report shows of a model's mistakes: adversarial examples, predictions by class, accuracy against epsilon."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.analysis.landscape import as_array
from rattle.attacks import Attack
from rattle.attacks.registry import get_attack
from rattle.data import Images
from rattle.errors import RattleError
from rattle.evaluation.curve import curve
from rattle.inputs import floats_for, logits_of
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import changes
from rattle.runs.arrays import GALLERY_GROUPS, Gallery
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.distributed import choose_device
from rattle.runs.load import load_model
from rattle.runs.progress import SILENT, Advance, Console
from rattle.weights import eval_mode

GALLERY_ATTACK = "pgd20"
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # in units of the threat's epsilon
MAX_SHOWN, MAX_EXTREME = 10, 5
NOT_SETTINGS = ("name", "seed", "threads", "data.root", "data.workers")  # they do not make another recipe


def first_of_each_class(y: Tensor, classes: int = MAX_SHOWN) -> Tensor:
    """Indices of the first image of each of the first `classes` classes: the same for every model.

    >>> first_of_each_class(torch.tensor([2, 0, 2, 1, 0])).tolist()
    [1, 3, 0]
    """
    return torch.stack([(y == label).nonzero()[0, 0] for label in y.unique()[:classes]])


def overrides(recipe: Recipe) -> str:
    """How a recipe differs from the catalog's of the same name, in words; empty if it does not or there is none.

    >>> recipe = get_recipe("digits-linf-cnn-at")
    >>> overrides(replace(recipe, epochs=3, seed=5)), overrides(replace(recipe, name="mine", width=8))
    ('epochs 30 -> 3', '')
    """
    try:
        return changes(get_recipe(recipe.name), recipe, but=NOT_SETTINGS)
    except RattleError:
        return ""


def predict_all(model: nn.Module, attack: Attack, images: Images, seed: int, advance: Advance) -> list[Tensor]:
    """Class and confidence of each image before the attack, and after it: four tensors [n]."""
    parts = []
    for rows in torch.arange(len(images), device=images.y.device).split(250):
        part = images[rows]
        x = floats_for(model, part.x)
        x_adv = attack(model, x, part.y, generator=ImageStreams(seed, rows))
        with torch.no_grad():
            found = [logits_of(model, each).softmax(1).max(1) for each in (x, x_adv)]
        parts.append([values for each in found for values in (each.indices, each.values)])
        advance(len(rows))
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def choose_shown(y: Tensor, clean: Tensor, attacked: Tensor, confidence: Tensor) -> dict[str, Tensor]:
    """Which images to show, by GROUPS.

    y, clean, attacked: true classes, and those predicted before and after the attack. confidence: of the latter.
    """
    order = confidence.argsort(stable=True)
    order = order[(clean == y)[order]]
    held = (attacked == y)[order]
    failures, survivors = order[~held].flip(0), order[held]
    return dict(
        zip(GALLERY_GROUPS, (first_of_each_class(y), failures[:MAX_EXTREME], survivors[:MAX_EXTREME]), strict=True)
    )


def gallery(
    saved: Checkpoint, *, max_images: int = 1000, seed: int = 0, device: Any = "auto", console: Console = SILENT
) -> Gallery:
    """Attack the first `max_images` test images of a checkpoint's dataset with PGD-20 at several radii, on a device."""
    device = choose_device(device)
    data, threat, model = saved.recipe.data.load(), saved.recipe.attack.threat, load_model(saved, device=device)
    test = data.test[torch.arange(min(max_images, len(data.test)))].to(device)
    attack, radii = get_attack(GALLERY_ATTACK, threat), [r * threat.epsilon for r in RADII]
    title = f"gallery of {saved.recipe.with_seed(saved.recipe.name)}"
    with console.progress(title, len(test)) as advance, eval_mode(model):
        label, confidence, label_adv, confidence_adv = predict_all(model, attack, test, seed, advance)
        groups = choose_shown(test.y, label, label_adv, confidence_adv)
        shown = torch.cat(list(groups.values()))
        x, y = floats_for(model, test.x[shown]), test.y[shown]
        x_adv = attack(model, x, y, generator=ImageStreams(seed, shown))  # as above, instead of keeping all of them
    attacks = {radius: get_attack(GALLERY_ATTACK, replace(threat, epsilon=radius)) for radius in radii}
    robust = curve(model, test.x, test.y, attacks, name=GALLERY_ATTACK, seed=seed, console=console)
    return Gallery(
        classes=np.array(data.classes, dtype=np.str_),
        y=as_array(test.y),
        clean_predicted=as_array(label),
        adversarial_predicted=as_array(torch.where(label == test.y, label_adv, label)),
        index=as_array(shown),
        x=as_array(x),
        x_adv=as_array(x_adv),
        clean_confidence=as_array(confidence[shown]),
        adversarial_label=as_array(label_adv[shown]),
        adversarial_confidence=as_array(confidence_adv[shown]),
        epsilons=np.array(radii),
        robust=np.array([robust[radius] for radius in radii]),
        attack=GALLERY_ATTACK,
        norm=threat.norm,
        epsilon=float(threat.epsilon),
        step=saved.step,
        overrides=overrides(saved.recipe),
        group=np.repeat(GALLERY_GROUPS, [len(rows) for rows in groups.values()]),
    )
