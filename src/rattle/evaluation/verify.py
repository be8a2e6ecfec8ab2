"""One attack on one batch, every point re-checked: no attack is taken at its word.

A point counts only inside the threat's ball and [0, 1], and misclassified in a fresh forward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.autoattack import run_components
from rattle.attacks.base import DistanceAttack, Ensemble
from rattle.errors import RattleError
from rattle.evaluation.cache import read_parts, write_parts
from rattle.evaluation.inputs import as_float, takes_channels_last
from rattle.inputs import is_correct
from rattle.randomness import ImageStreams
from rattle.runs.io import atomic_file, read_arrays
from rattle.threat import Threat
from rattle.weights import eval_mode

AfterPart = Callable[[int, Tensor, float], None]  # (its number, who is still robust [n] bool, its seconds)


def still_correct(model: nn.Module, threat: Threat, x_adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which images stay correct at an attack's points, [n] bool; a point outside the threat does not count."""
    inside = threat.contains(x_adv, x)
    return is_correct(model, torch.where(inside.view(-1, *[1] * (x.ndim - 1)), x_adv, x), y) | ~inside


def run_and_verify(
    model: nn.Module,
    attack: Attack,
    x: Tensor,
    y: Tensor,
    draws: ImageStreams,
    after_part: AfterPart | None = None,
    state: Path | None = None,
) -> tuple[Tensor, Tensor, Tensor, list[float]]:
    """Run an attack on correctly classified images, of which there may be none, and check every point it returns.

    draws: one random stream an image; after_part: called after each part of an ensemble; state: a file for what the
    parts found, from which an interrupted ensemble resumes. Returns the points; bool [1 + parts, n], who is robust to
    the attack and, if it is an ensemble, who was after each part; the distances [n], zero if the attack does not
    measure them; and the seconds of each part.
    """
    robust, distance = torch.ones_like(y, dtype=torch.bool), torch.zeros(len(x))
    if len(x) == 0:
        return x, robust[None], distance, []
    check, given = partial(still_correct, model, attack.threat), x.clone()  # an attack may write into its input
    if isinstance(attack, Ensemble):
        found = stored = read_parts(state, x, len(attack.components()))
        if stored is not None and after_part:  # parts that an earlier process ran
            for part, seconds in enumerate(stored.seconds.tolist()):
                after_part(part, stored.correct[part + 1], seconds)
        for found in run_components(attack, model, x, y, draws, check, stored):
            if state is not None:
                write_parts(state, found)
            if after_part:
                after_part(len(found.seconds) - 1, found.correct[-1], float(found.seconds[-1]))
        assert found is not None, "an ensemble has components"
        return found.x_adv, torch.cat([found.correct[-1:], found.correct[1:]]), distance, found.seconds.tolist()
    if isinstance(attack, DistanceAttack):
        nearest = attack.search(model, given, y, generator=draws)
        x_adv, distance = nearest.x_adv, nearest.distance
    else:
        x_adv = attack(model, given, y, generator=draws)
    return x_adv, check(x_adv, x, y)[None], distance, []


def verify(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor, threat: Threat) -> Tensor:
    """Which saved images are adversarial, [n] bool: inside the threat's ball and [0, 1], and misclassified."""
    found = [torch.zeros(0, dtype=torch.bool, device=x.device)]
    with eval_mode(model):
        for rows in torch.arange(len(x), device=x.device).split(250) if len(x) else ():
            layout = {"channels_last": takes_channels_last(model, x)}
            points, clean = (as_float(images[rows], **layout) for images in (x_adv, x))
            found.append(~still_correct(model, threat, points, clean, y[rows]))
    return torch.cat(found)


@dataclass(frozen=True, slots=True)
class SavedImages:
    """Adversarial images, as a file holds them."""

    index: Tensor  # into the test set, [n]
    x_adv: Tensor  # float32 in [0, 1]
    y: Tensor
    threat: Threat


def save_images(path: Path, index: Tensor, x_adv: np.ndarray, y: Tensor, threat: Threat) -> None:
    """Write adversarial images as an .npz file that `load_images` reads."""
    arrays = {"index": index.cpu().numpy(), "x_adv": x_adv, "y": y.cpu().numpy()}
    with atomic_file(path) as file:
        np.savez_compressed(file, norm=np.array(threat.norm), epsilon=np.array(threat.epsilon), **arrays)  # type: ignore[arg-type]


def load_images(path: Path) -> SavedImages:
    """Read what `save_images` wrote; raises RattleError if the file is something else or damaged."""
    what = "a file of adversarial images"
    stored = read_arrays(path, what)
    try:
        index, x_adv, y = (torch.from_numpy(stored[key]) for key in ("index", "x_adv", "y"))
        norm, epsilon = str(stored["norm"]), float(stored["epsilon"])
    except (KeyError, TypeError, ValueError) as reason:
        raise RattleError(f"{path} is not {what}, or is damaged") from reason
    labels = index.dtype == y.dtype == torch.int64 and index.ndim == y.ndim == 1
    if not labels or x_adv.dtype != torch.float32 or not len(index) == len(x_adv) == len(y):
        raise RattleError(f"{path} is not {what}: index, x_adv and y do not belong together")
    return SavedImages(index, x_adv, y, Threat(norm=norm, epsilon=epsilon))  # type: ignore[arg-type]
