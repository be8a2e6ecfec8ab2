"""Evaluation: one flag per image per attack; robust accuracy is their mean, the worst case an AND.

A flag is True where the image is classified rightly and the attack found nothing (judging.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack, RayS
from rattle.attacks.base import check_batch, describe
from rattle.attacks.diagnostics import find_warnings, rises, square_helped
from rattle.attacks.registry import get_attack
from rattle.attacks.transfer import Transfer
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache, cache_key
from rattle.evaluation.results import AttackResult, Evaluation, ints
from rattle.evaluation.verify import Ensemble, is_correct, run_and_verify, save_images
from rattle.randomness import ImageStreams
from rattle.runs import distributed
from rattle.runs.progress import Console, NullConsole
from rattle.threat import Threat
from rattle.weights import eval_mode

Attacks = Mapping[str, Attack] | Sequence[str]


def image_batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(index, images in [0, 1], labels), in order; of several ranks each takes its share of the same batches."""
    for index in torch.arange(len(x), device=y.device).split(size)[distributed.rank() :: distributed.world_size()]:
        part = x[index]
        yield index, part if part.is_floating_point() else to_float(part), y[index]


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: Attacks,
    *,
    threat: Threat | None = None,
    batch_size: int = 250,
    seed: int = 0,
    advise: bool = False,
    among: Sequence[bool] | None = None,
    store: Path | None = None,
    save_adversarial: bool = False,
    console: Console | None = None,
) -> Evaluation:
    """Run attacks on images (uint8, or floats in [0, 1]); attacks are named (on `threat`) or a dict of your own.

    With a `store` folder verdicts are kept as they come: the same call after an interruption goes on at the first
    missing image. `among` attacks only those images and takes the others as broken. `advise` looks for what makes
    such numbers unreliable.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> result = evaluate(model, x, y, ["fgsm", "pgd20"], threat=Threat(epsilon=0.1))
    >>> result.robust_accuracy <= result.clean_accuracy
    True
    """
    console = console or NullConsole()
    chosen = (
        attacks if isinstance(attacks, Mapping) else {name: get_attack(name, threat or Threat()) for name in attacks}
    )
    if batch_size < 1:
        raise RattleError(f"batch-size must be >= 1, got {batch_size}")
    if len(x) != len(y):
        raise RattleError(f"{len(x)} images but {len(y)} labels")
    some = min(len(x), batch_size)
    sample = x[:some] if x.is_floating_point() else to_float(x[:some])
    check_batch(x if x.is_floating_point() else sample, y if x.is_floating_point() else y[:some])
    with eval_mode(model):
        clean = torch.zeros(len(x), dtype=torch.bool, device=y.device)
        for index, part, label in image_batches(x, y, batch_size):
            clean[index] = is_correct(model, part, label)
        clean = distributed.total(clean.int()).bool()
        sentences = find_warnings(model, sample, y[:some]) if advise else []
        start = clean if among is None else clean & torch.tensor(list(among), device=clean.device)
        verdicts = {}
        for name, attack in chosen.items():
            kept = ResultCache(store, name, mark(model, x, y, attack, seed, batch_size, start)) if store else None
            with console.progress(name, len(x)) as advance:
                verdicts[name] = verdict(model, x, y, attack, start, batch_size, seed, kept, save_adversarial, advance)
            if kept is not None and store is not None and save_adversarial:
                gather_images(kept, store / f"{name}-adversarial.npz", x, y, batch_size, start, verdicts[name], attack)
    if advise:
        sentences += afterthoughts(clean.tolist(), verdicts)
    return Evaluation(clean=clean.tolist(), verdicts=verdicts, advice=tuple(sentences))


def mark(model: nn.Module, x: Tensor, y: Tensor, attack: Attack, seed: int, batch_size: int, start: Tensor) -> str:
    """What verdicts on these images depend on; a surrogate's weights are among it."""
    settings = {"attack": describe(attack), "seed": seed, "batch_size": batch_size, "start": ints(start.tolist())}
    if isinstance(attack, Transfer):
        settings["surrogate"] = cache_key(attack.surrogate, x[:0], y[:0], {})
    return cache_key(model, x, y, settings)


def verdict(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    start: Tensor,
    batch_size: int,
    seed: int,
    kept: ResultCache | None,
    save_adversarial: bool,
    advance: Any,
) -> AttackResult:
    """One attack on all images, batch by batch; those already judged are taken from the store."""
    parts = list(attack.components()) if isinstance(attack, Ensemble) else []
    rows = torch.zeros(1 + len(parts), len(x), dtype=torch.bool, device=y.device)
    distances = torch.zeros(len(x), device=y.device)
    seconds = 0.0
    for index, images, labels in image_batches(x, y, batch_size):
        first, keep = int(index[0]), start[index]
        row = kept.done.get(first) if kept else None
        if row is None or (save_adversarial and kept is not None and bool(keep.any()) and kept.images(first) is None):
            begun = time.perf_counter()
            row, x_adv = judged_row(model, attack, images, labels, index, keep, seed)
            row["seconds"] = time.perf_counter() - begun
            if kept:
                kept.add(first, row, x_adv if save_adversarial else None)
        rows[:, index] = torch.tensor(row["flags"], device=y.device).bool().view(1 + len(parts), -1)
        distances[index] = torch.tensor(row.get("distances", [0.0] * len(index)), device=y.device)
        seconds += row["seconds"]
        advance(len(index), robust=float(rows[0, : int(index[-1]) + 1].float().mean()))
    rows, distances = distributed.total(rows.int()).bool(), distributed.total(distances)
    return AttackResult(
        attack=describe(attack),
        flags=rows[0].tolist(),
        seconds=float(distributed.total(torch.tensor(seconds, device=y.device))),
        parts={name: rows[1 + i].tolist() for i, name in enumerate(parts)},
        distances=distances.tolist() if isinstance(attack, RayS) else [],
    )


def judged_row(
    model: nn.Module, attack: Attack, x: Tensor, y: Tensor, index: Tensor, keep: Tensor, seed: int
) -> tuple[dict[str, Any], Tensor]:
    """A line of the store: flags of the attack, then of its parts; images that were not attacked are not robust."""
    names = list(attack.components()) if isinstance(attack, Ensemble) else []
    flags = torch.zeros(1 + len(names), len(x), dtype=torch.int8)
    row: dict[str, Any] = {}
    x_adv = x.clone()
    live = keep.nonzero().squeeze(1)
    distance = torch.zeros(len(x))
    if len(live):
        found = run_and_verify(model, attack, x[live], y[live], ImageStreams(seed, index[live].to(x.device)))
        x_adv[live] = found.x_adv.to(x_adv)
        for i, robust in enumerate([found.robust, *found.parts.values()]):
            flags[i, live.cpu()] = robust.cpu().to(torch.int8)
        if found.distance is not None:
            distance[live.cpu()] = found.distance.float().cpu()
    row["flags"] = flags.flatten().tolist()
    if isinstance(attack, RayS):
        row["distances"] = distance.tolist()
    return row, x_adv


def gather_images(
    kept: ResultCache,
    path: Path,
    x: Tensor,
    y: Tensor,
    batch_size: int,
    start: Tensor,
    found: AttackResult,
    attack: Attack,
) -> None:
    """The adversarial images of every broken image, in one file."""
    distributed.barrier()
    if not distributed.is_main():
        return
    broken = start.cpu() & ~torch.tensor(found.flags)
    parts = [np.empty((0, *x.shape[1:]), np.float32)]
    for index in torch.arange(len(y)).split(batch_size):
        images = kept.images(int(index[0]))
        if images is not None:
            parts.append(images[broken[index].numpy()])
    index = broken.nonzero().squeeze(1)
    save_images(path, index, np.concatenate(parts), y.cpu()[index], attack.threat)


def afterthoughts(clean: list[bool], verdicts: Mapping[str, AttackResult]) -> list[str]:
    """What the accuracies themselves say about gradients."""
    order = [name for name in ("fgsm", "pgd10", "pgd20", "pgd50", "apgd-ce", "autoattack") if name in verdicts]
    found = rises({name: verdicts[name].accuracy for name in order})
    for each in verdicts.values():
        if each.parts:
            after = {name: sum(flags) / len(flags) for name, flags in each.parts.items()}
            found += square_helped({"clean": sum(clean) / len(clean), **after})
    return found


def curve(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: Mapping[float, Attack],
    *,
    name: str = "attack",
    **settings: Any,
) -> dict[float, list[bool]]:
    """Flags against epsilon, never rising: an image broken at a smaller epsilon is broken at every larger one.

    `attacks` holds the attack for each epsilon; at epsilon 0 the clean images are looked at and it is not run.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> flags = curve(model, x, y, {e: get_attack("pgd5", Threat(epsilon=e)) for e in (0, 0.1, 0.2)})
    >>> sum(flags[0.2]) <= sum(flags[0.1]) <= sum(flags[0])
    True
    """
    points: dict[float, list[bool]] = {}
    alive: list[bool] | None = None
    for epsilon, attack in sorted(attacks.items()):
        if epsilon == 0:
            alive = evaluate(model, x, y, {}, among=alive, **settings).clean
        else:
            chosen = {curve_name(name, epsilon): attack}
            alive = evaluate(model, x, y, chosen, among=alive, **settings).verdicts[curve_name(name, epsilon)].flags
        points[epsilon] = alive
    return points


def curve_name(attack: str, epsilon: float) -> str:
    """What the verdicts of one point of a curve are kept under."""
    return f"{attack}-{epsilon:.9g}"
