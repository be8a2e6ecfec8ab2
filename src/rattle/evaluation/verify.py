"""One attack on one batch, every point re-checked: no attack is taken at its word.

A point counts only inside the threat's ball and [0, 1], and misclassified in a fresh forward pass.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import DistanceAttack
from rattle.attacks.ensemble import Ensemble, run_components
from rattle.errors import RattleError
from rattle.evaluation.cache import read_parts, write_parts
from rattle.evaluation.progress import AttackProgress
from rattle.inputs import as_float, is_correct, takes_channels_last
from rattle.randomness import ImageStreams
from rattle.runs.io import Plain, atomic_file, read_arrays
from rattle.threat import Threat, per_image
from rattle.weights import eval_mode


def still_correct(model: nn.Module, threat: Threat, x_adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which images stay correct at an attack's points, [n] bool; a point outside the threat does not count."""
    inside = threat.contains(x_adv, x)
    return is_correct(model, torch.where(per_image(inside, x), x_adv, x), y) | ~inside


def attack_batch(
    first: int,
    model: nn.Module,
    attack: Attack,
    x: Tensor,
    y: Tensor,
    seed: int,
    index: Tensor,
    state: Path | None = None,
    progress: AttackProgress | None = None,
) -> tuple[int, Plain, Tensor]:
    """Attack the correctly classified images of a batch (perhaps none) and verify every point.

    first: number of the batch's first image, returned. seed, index [n]: give each image its own random stream. state: a
    file to which an ensemble saves after each component, and from which it resumes. Returns the row that the cache
    stores, and the points: `flags` are bool [1 + components, n], robust at the end and after each component.
    """
    begun = time.perf_counter()
    draws = ImageStreams(seed, index)
    correct = partial(still_correct, model, attack.threat)
    distances = torch.zeros(len(x))
    components: list[float] = []  # seconds of each
    if len(x) == 0:
        x_adv, flags = x, torch.ones(1, 0, dtype=torch.bool)
    elif isinstance(attack, Ensemble):
        found = stored = read_parts(state, x, len(attack.components()))
        if stored is not None and progress is not None:
            progress.end_component(len(stored.seconds) - 1, stored.correct[-1])
        for found in run_components(attack, model, x, y, draws, correct, stored):
            if state is not None:
                write_parts(state, found)
            if progress is not None:
                progress.end_component(len(found.seconds) - 1, found.correct[-1])
        assert found is not None, "an ensemble has components"
        x_adv, flags = found.x_adv, torch.cat([found.correct[-1:], found.correct[1:]])
        components = found.seconds.tolist()
    else:
        given = x.clone()  # an attack may write into its input
        if isinstance(attack, DistanceAttack):
            nearest = attack.search(model, given, y, generator=draws)
            x_adv, distances = nearest.x_adv, nearest.distance
        else:
            x_adv = attack(model, given, y, generator=draws)
        flags = correct(x_adv, x, y)[None]
    row = {
        "flags": flags.int().tolist(),
        "distances": distances.tolist(),
        "part_seconds": components,
        "seconds": sum(components) if components else time.perf_counter() - begun,
    }
    return first, row, x_adv


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


def load_images(path: Path | str) -> SavedImages:
    """Read what `save_images` wrote; raises RattleError if the file is something else or damaged."""
    what = "a file of adversarial images"
    stored = read_arrays(Path(path))
    try:
        index, x_adv, y = (torch.from_numpy(stored[key]) for key in ("index", "x_adv", "y"))
        norm, epsilon = str(stored["norm"]), float(stored["epsilon"])
    except (KeyError, TypeError, ValueError) as reason:
        raise RattleError(f"{path} is not {what}, or is damaged") from reason
    labels = index.dtype == y.dtype == torch.int64 and index.ndim == y.ndim == 1
    if not labels or x_adv.dtype != torch.float32 or not len(index) == len(x_adv) == len(y):
        raise RattleError(f"{path} is not {what}: index, x_adv and y do not belong together")
    return SavedImages(index, x_adv, y, Threat(norm=norm, epsilon=epsilon))  # type: ignore[arg-type]
