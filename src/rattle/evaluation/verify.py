"""One attack, batch by batch, every point re-checked: no attack is taken at its word.

A point counts only inside the threat's ball and [0, 1], and misclassified in a fresh forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import DistanceAttack
from rattle.attacks.ensemble import Ensemble, run_components
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache, read_batches, write_parts
from rattle.evaluation.draws import Measured, attack_random
from rattle.evaluation.jobs import in_processes
from rattle.evaluation.progress import AttackProgress
from rattle.inputs import clean_logits, floats_for
from rattle.randomness import ImageStreams
from rattle.runs.io import Plain, atomic_file, read_arrays
from rattle.threat import Threat, per_image
from rattle.weights import eval_mode

if TYPE_CHECKING:
    from rattle.evaluation.evaluate import EvalPlan


def judge(model: nn.Module, threat: Threat, x_adv: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Which images stay correct at an attack's points, [n] bool, and the confidence there, [n].

    A point outside the threat does not count: the image itself stands in its place.
    """
    inside = threat.contains(x_adv, x)
    logits = clean_logits(model, torch.where(per_image(inside, x), x_adv, x), y)
    return (logits.argmax(1) == y) | ~inside, four_decimals(logits.softmax(1).amax(1))


def four_decimals(confidence: Tensor) -> Tensor:
    """The confidence of the predicted class as result files keep it."""
    return confidence.cpu().double().round(decimals=4)


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
    distances, confidence = torch.zeros(len(x)), torch.zeros(len(x))
    components = []  # seconds of each

    def still_correct(x_adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return judge(model, attack.threat, x_adv, x, y)[0]

    if len(x) == 0:
        x_adv, flags = x, torch.ones(1, 0, dtype=torch.bool)
    elif isinstance(attack, Ensemble):
        found = stored = read_batches(state, x, len(attack.components()))
        if stored is not None and progress is not None:
            progress.end_component(len(stored.seconds) - 1, stored.correct[-1])
        for found in run_components(attack, model, x, y, draws, still_correct, stored):
            if state is not None:
                write_parts(state, found)
            if progress is not None:
                progress.end_component(len(found.seconds) - 1, found.correct[-1])
        assert found is not None, "an ensemble has components"
        x_adv, flags = found.x_adv, torch.cat([found.correct[-1:], found.correct[1:]])
        _, confidence = judge(model, attack.threat, x_adv, x, y)
        components = found.seconds.tolist()
    else:
        given = x.clone()  # an attack may write into its input
        if isinstance(attack, DistanceAttack):
            nearest = attack.search(model, given, y, generator=draws)
            x_adv, distances = nearest.x_adv, nearest.distance
        else:
            x_adv = attack(model, given, y, generator=draws)
        held, confidence = judge(model, attack.threat, x_adv, x, y)
        flags = held[None]
    row = {
        "flags": flags.int().tolist(),
        "distances": distances.tolist(),
        "confidence": confidence.tolist(),
        "part_seconds": components,
        "seconds": sum(components) if components else time.perf_counter() - begun,
    }
    return first, row, x_adv


def attack_batches(
    plan: EvalPlan,
    attack: Attack,
    start: Tensor,
    cache: ResultCache | None,
    progress: AttackProgress,
    measured: dict[int, Measured] | None,
) -> Generator[tuple[int, Plain], None, None]:
    """(first image, the cache's row) of each batch in order, from the cache or attacked now and saved."""
    done, batches = dict(cache.done) if cache else {}, plan.batches()
    missing = {first: rows for first, rows in batches.items() if first not in done}

    def tasks() -> Iterator[tuple[Any, ...]]:
        """The arguments of `attack_batch`, or of `attack_random`, for each missing batch."""
        for first, rows in missing.items():
            live = rows[start[rows]]
            index = plan.index[live].to(plan.device)
            state = cache.state_file(first) if cache else None
            task = first, plan.model, attack, *plan.images(live), plan.seed, index
            if measured is None:
                yield *task, state
            else:
                yield *task, measured[first], plan.draws, plan.eot

    def one_by_one() -> Generator[tuple[int, Plain, Tensor], None, None]:
        for rows, task in zip(missing.values(), tasks(), strict=True):
            progress.begin_batch(len(rows))
            yield attack_batch(*task, progress=progress) if measured is None else attack_random(*task)

    found = one_by_one()
    if plan.jobs > 1:
        found = in_processes(plan.jobs, plan.model, attack_batch if measured is None else attack_random, tasks())
    with closing(found):
        for first in batches:
            while first not in done:
                ended, row, x_adv = next(found)
                if cache:
                    cache.add(ended, row, x_adv if plan.save_adversarial else None)
                done[ended] = row
            yield first, done[first]


def save_broken(plan: EvalPlan, threat: Threat, start: Tensor, robust: Tensor, cache: ResultCache) -> None:
    """Collect the points of the images that were attacked (`start`) and broken from the cache into one file."""
    found = []
    for rows in torch.arange(len(robust)).split(plan.batch_size):
        points = np.load(cache.image_file(int(rows[0])))
        found.append(points[~robust[rows][start[rows]].numpy()])
    broken = (start & ~robust).nonzero().squeeze(1)
    path = cache.folder / f"{cache.name}-adversarial.npz"
    save_images(path, plan.index[broken], np.concatenate(found), plan.y[broken.to(plan.y.device)], threat)


def verify(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor, threat: Threat) -> Tensor:
    """Which saved images are adversarial, [n] bool: inside the threat's ball and [0, 1], and misclassified."""
    found = [torch.zeros(0, dtype=torch.bool, device=x.device)]
    with eval_mode(model):
        for rows in torch.arange(len(x), device=x.device).split(250) if len(x) else ():
            points, clean = (floats_for(model, images[rows]) for images in (x_adv, x))
            found.append(~judge(model, threat, points, clean, y[rows])[0])
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
