"""Evaluation: one call runs attacks on images and leaves a result file for each of them.

A flag is True where an image is classified correctly before and after the attack (verify.py says what counts).
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import DistanceAttack, Ensemble, describe
from rattle.attacks.diagnostics import find_warnings, post_checks
from rattle.data import to_device
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache, cache_files, cache_key
from rattle.evaluation.inputs import (
    Array,
    Attacks,
    Images,
    as_attacks,
    as_float,
    as_tensors,
    as_threat,
    image_checksums,
    takes_channels_last,
)
from rattle.evaluation.jobs import Workers
from rattle.evaluation.normalisation import missing_normalisation
from rattle.evaluation.results import AttackResult, Evaluation, save_curve, save_results
from rattle.evaluation.shown import Shown, showing
from rattle.evaluation.verify import AfterPart, run_and_verify, save_images
from rattle.inputs import is_correct
from rattle.randomness import ImageStreams
from rattle.runs import distributed
from rattle.runs.progress import Console, Interrupted, NullConsole
from rattle.settings import check_type
from rattle.stats import precise_enough
from rattle.threat import Norm, Threat
from rattle.weights import eval_mode


def image_batches(
    x: Tensor, y: Tensor, size: int, device: Any = None, *, channels_last: bool = True
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(index, images in [0, 1], labels) of each batch in order, on `device`; ranks take turns."""
    for index in own_batches(len(x), size):
        yield image_batch(x, y, index, device, channels_last=channels_last)


def own_batches(n: int, size: int) -> tuple[Tensor, ...]:
    """The indices of each batch of n images; ranks take turns."""
    return torch.arange(n).split(size)[distributed.rank() :: distributed.world_size()]


def image_batch(
    x: Tensor, y: Tensor, index: Tensor, device: Any = None, *, channels_last: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The index, images in [0, 1] and labels of one batch, on `device`."""
    device = y.device if device is None else device
    images = as_float(to_device(x[index.to(x.device)], device), channels_last=channels_last)
    return index.to(device), images, y[index.to(y.device)].to(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What the attacks of one evaluation share; the fields are explained at `evaluate`."""

    model: nn.Module
    x: Tensor
    y: Tensor
    out: Path | None
    index: Tensor  # int64 [n]
    within: float | None = None
    mask: Sequence[bool] | None = None
    batch_size: int = 250
    seed: int = 0
    save_adversarial: bool = False
    stop: Callable[[], bool] | None = None
    console: Console | None = None
    channels_last: bool = True  # the layout of the images that the model is given; `run_attacks` finds out
    jobs: int = 1
    workers: Workers | None = None  # of more than one job, see `with_workers`

    def __post_init__(self) -> None:
        check_settings(self.batch_size, self.within, self.jobs)
        if self.jobs > 1 and (distributed.world_size() > 1 or self.device.type != "cpu"):
            raise RattleError(f"jobs are for one machine's cores, without torchrun and on the CPU, not {self.device}")
        check_type("seed", self.seed, int)
        if self.save_adversarial and self.out is None:
            raise RattleError("save_adversarial needs a folder to write to: give it as out")
        if self.mask is not None and len(self.mask) != len(self.y):
            raise RattleError(f"{len(self.y)} images but a mask of {len(self.mask)}")
        if len(self.index) != len(self.y):
            raise RattleError(f"{len(self.y)} images but an index of {len(self.index)}")
        if self.within is not None and distributed.world_size() > 1:
            raise RattleError("within decides batch by batch when to stop and runs in one process: leave out torchrun")

    def open_cache(self, name: str, attack: Attack, start: Tensor) -> ResultCache | None:
        """What is done of an attack on the images of `start`, [n] bool; None without a folder."""
        if self.out is None:
            return None
        settings = {"seed": self.seed, "batch_size": self.batch_size, "mask": start.tolist()}
        key = cache_key(self.model, self.x, self.y, attack, index=self.index.tolist(), **settings)
        return ResultCache(self.out, name, key, images=self.save_adversarial)

    def images(self) -> dict[str, Any]:
        """Which images these are, for an Evaluation: their checksums only where result files are written."""
        first = torch.equal(self.index, torch.arange(len(self.index)))
        checksums = None if self.out is None else image_checksums(self.x, self.y)
        return {"index": None if first else self.index.tolist(), "images": checksums}

    @property
    def device(self) -> torch.device:
        """Where the model is; batches are moved there."""
        return next((p.device for p in self.model.parameters()), self.x.device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return image_batches(self.x, self.y, self.batch_size, self.device, channels_last=self.channels_last)

    def attack(
        self,
        attack: Attack,
        index: Tensor,
        live: Tensor,
        state: Path | None,
        after_part: AfterPart | None = None,
        *,
        channels_last: bool,
    ) -> tuple[dict[str, Any], Tensor | None]:
        """The cache's row of a batch, [n] int64 of which `live` [n] bool are attacked, and the points to be stored.

        state: the file for what the components of an ensemble found, if there is a cache.
        """
        index, x, y = image_batch(self.x, self.y, index, self.device, channels_last=channels_last)
        row, x_adv = attack_batch(self, attack, index[live], x[live], y[live], after_part, state)
        return row, x_adv if self.save_adversarial else None

    @contextmanager
    def with_workers(self) -> Iterator["EvalPlan"]:
        """This plan, with processes to run it where more than one job is asked for."""
        if self.jobs == 1:
            yield self
            return
        sent = replace(self, stop=None, console=None, mask=None, jobs=1)
        with closing(Workers(sent, min(self.jobs, -(-len(self.y) // self.batch_size)))) as workers:
            yield replace(self, workers=workers)

    def enough(self, flags: Tensor) -> bool:
        """Whether the flags of the images done so far, [k] bool, give the accuracy as precisely as was asked."""
        return self.within is not None and precise_enough(int(flags.sum()), len(flags), self.within / 100)


def check_settings(batch_size: int, within: float | None, jobs: int = 1) -> None:
    """Refuse what no evaluation can be run with."""
    for name, value in {"batch-size": batch_size, "jobs": jobs}.items():
        check_type(name, value, int)
        if value < 1:
            raise RattleError(f"{name} must be >= 1, got {value}")
    check_type("within", 1.0 if within is None else within, float)
    if within is not None and not 0 < within < 50:
        raise RattleError(f"within is in percentage points, between 0 and 50, got {within}")


def make_plan(
    model: nn.Module,
    x: Images,
    y: Array | None,
    out: Path | str | None,
    index: Array | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> EvalPlan:
    if device is not None and isinstance(model, nn.Module):
        model = model.to(distributed.choose_device(device))
    x, y = as_tensors(model, x, y)
    rows = torch.arange(len(y)) if index is None else torch.as_tensor(index, dtype=torch.int64).cpu()
    return EvalPlan(model=model, x=x, y=y, out=None if out is None else Path(out), index=rows, **settings)


def evaluate(
    model: nn.Module,  # returns logits [n, C]
    x: Images,  # uint8 or floats in [0, 1], [n, C, H, W] or [n, H, W, C]: tensor, array, Dataset or DataLoader
    y: Array | None,  # their classes, whole numbers, [n]; None for a Dataset or DataLoader
    attacks: Attacks,  # a name such as "pgd20", an attack, a list of these, or a dict of name to attack
    *,
    threat: Threat | None = None,  # of attacks given by name, linf 8/255 if None; attack objects have their own
    norm: Norm | None = None,  # the threat in two words: norm="l2", epsilon=0.5
    epsilon: float | None = None,
    device: torch.device | str | None = None,  # move the model there first; batches follow the model
    out: Path | str | None = None,  # folder for the result files
    metadata: Mapping[str, Any] | None = None,  # more entries for the result files, such as checkpoint and data
    index: Array | None = None,  # the images' numbers in their dataset, [n], kept in the result; 0 to n - 1 if None
    within: float | None = None,  # stop each attack once its accuracy is known to +- this many percentage points
    mask: Sequence[bool] | None = None,  # attack only these images; the others count as not robust
    batch_size: int = 250,
    jobs: int = 1,  # processes that attack batches side by side, on a CPU; every result is that of one
    seed: int = 0,  # of the attacks' random draws
    check_model: bool = False,  # look for what makes the numbers unreliable: Evaluation.warnings
    save_adversarial: bool = False,  # also write the images that broke the model, as out/ATTACK-adversarial.npz
    stop: Callable[[], bool] | None = None,  # asked after each batch; Interrupted is raised when it returns True
    console: Console | None = None,  # shows progress
) -> Evaluation:
    """Attack images; with a folder `out`, leave out/ATTACK.json for each attack.

    After an interruption the same call resumes after the last batch or component of an ensemble that was
    done, from hidden files in `out`.

    >>> model, x, y = torch.nn.Flatten(), torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> result = evaluate(model, x, y, ["fgsm", "pgd20"], threat=Threat(epsilon=0.1))
    >>> result.robust_accuracy <= result.clean_accuracy
    True
    """
    chosen = as_attacks(attacks, as_threat(threat, norm, epsilon))
    settings = {"within": within, "mask": mask, "batch_size": batch_size, "save_adversarial": save_adversarial}
    plan = make_plan(model, x, y, out, index, device, seed=seed, jobs=jobs, **settings, stop=stop, console=console)
    with plan.with_workers() as plan:
        result = replace(run_attacks(plan, chosen, check_model=check_model), metadata=metadata or {})
    if plan.out is not None:
        finish(partial(save_results, result, plan.out), plan.out, chosen)
    return result


def curve(
    model: nn.Module,
    x: Images,
    y: Array | None,
    attacks: Mapping[float, Attack],  # the attack at each epsilon; at 0 the clean images count and it is not run
    *,
    name: str = "attack",  # of the attack, and so of the file
    out: Path | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    **settings: Any,  # batch_size, jobs, seed, stop, console
) -> dict[float, list[bool]]:
    """Flags at each epsilon, never rising: an image broken at one epsilon counts as broken at every larger one.

    With a folder `out` it leaves out/NAME-curve.json. Parameters that are not explained here are those of `evaluate`.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> from rattle.attacks.registry import get_attack
    >>> flags = curve(model, x, y, {e: get_attack("pgd5", Threat(epsilon=e)) for e in (0, 0.1, 0.2)})
    >>> sum(flags[0.2]) <= sum(flags[0.1]) <= sum(flags[0])
    True
    """
    plan = make_plan(model, x, y, out, **settings)
    names = {epsilon: f"{name}-{epsilon:.9g}" for epsilon in sorted(attacks)}
    points: dict[float, list[bool]] = {}
    with plan.with_workers() if names else nullcontext(plan) as plan:
        for epsilon, each in names.items():
            points[epsilon] = run_attacks(plan, {each: attacks[epsilon]} if epsilon else {}).worst_case
            plan = replace(plan, mask=points[epsilon])
    if points and plan.out is not None:
        finish(partial(save_curve, name, points, metadata or {}, plan.out), plan.out, names.values())
    return points


def finish(save: Callable[[], None], folder: Path, names: Iterable[str]) -> None:
    """Let the main rank write the final files and then remove the caches of these attacks; the others wait for it."""

    def write() -> None:
        save()
        for path in [path for name in names for path in cache_files(folder, name)]:
            path.unlink(missing_ok=True)

    distributed.on_main(write)


def run_attacks(plan: EvalPlan, attacks: Mapping[str, Attack], *, check_model: bool = False) -> Evaluation:
    """Every attack on the images that are correct and in the mask; the caller removes the caches."""
    results, warnings = {}, []
    with eval_mode(plan.model):
        plan = replace(plan, channels_last=takes_channels_last(plan.model, plan.x[:2].to(plan.device)))
        clean = torch.zeros(len(plan.y), dtype=torch.bool, device=plan.device)
        with distributed.raise_on_all_ranks():
            for index, x, y in plan.batches():
                clean[index] = is_correct(plan.model, x, y)
        clean = distributed.sum_over_ranks(clean.int()).bool()
        start = clean if plan.mask is None else clean & torch.tensor(list(plan.mask), device=clean.device)
        if check_model:
            few = slice(plan.batch_size)
            sample = as_float(plan.x[few].to(plan.device), channels_last=plan.channels_last)
            labels = plan.y[few].to(plan.device)
            warnings = [*find_warnings(plan.model, sample, labels), *missing_normalisation(plan.model, sample, labels)]
        for name, attack in attacks.items():
            results[name] = run_attack(plan, name, attack, start)
    result = Evaluation(clean=clean.tolist(), attacks=results, **plan.images())
    if check_model:
        accuracies = {name: attack.accuracy for name, attack in results.items()}
        parts = {name: {part: sum(f) / len(f) for part, f in a.parts.items()} for name, a in results.items()}
        warnings += post_checks(result.clean_accuracy, accuracies, parts)
    return replace(result, warnings=tuple(warnings))


def run_attack(plan: EvalPlan, name: str, attack: Attack, start: Tensor) -> AttackResult:
    """One attack on the images of `start` [n] bool, batch by batch; batches in the cache are not attacked again."""
    cache = plan.open_cache(name, attack, start)
    parts = list(attack.components()) if isinstance(attack, Ensemble) else []
    n, device, size, done = len(plan.y), plan.device, plan.batch_size, cache.done if cache else {}
    flags = torch.zeros(1 + len(parts), n, dtype=torch.bool, device=device)
    distances, seconds = torch.zeros(n, device=device), torch.zeros(1 + len(parts), dtype=torch.float64)
    shows = showing(plan.console or NullConsole(), name, parts, flags, seconds, batch_size=size, cached=set(done))
    with (
        distributed.raise_on_all_ranks(),
        shows as shown,
        closing(attacked(plan, attack, start, cache, shown)) as batches,
    ):
        for index, row in batches:
            live = index[start[index]]
            flags[:, live] = torch.tensor(row["flags"], device=device).bool()
            distances[live] = torch.tensor(row["distances"], device=device)
            seconds += torch.tensor([row["seconds"], *(row["part_seconds"] or [0.0] * len(parts))])
            shown.end(index)
            if plan.stop is not None and plan.stop():
                raise Interrupted
            if plan.enough(flags[0, : int(index[-1]) + 1]):
                n = int(index[-1]) + 1
                break
    flags, distances = distributed.sum_over_ranks(flags[:, :n].int()).bool(), distributed.sum_over_ranks(distances[:n])
    total, *each = distributed.sum_over_ranks(seconds.to(device)).tolist()
    if cache and plan.save_adversarial:
        distributed.barrier()  # every rank has stored its images
        distributed.on_main(partial(save_broken, plan, attack.threat, start[:n].cpu(), flags[0].cpu(), cache))
    result = AttackResult(
        settings=describe(attack),
        flags=flags[0].tolist(),
        seconds=total,
        parts={part: flags[1 + i].tolist() for i, part in enumerate(parts)},
        part_seconds=dict(zip(parts, each, strict=True)),
        distances=distances.tolist() if isinstance(attack, DistanceAttack) else [],
    )
    shown.finish(result)
    return result


def attacked(
    plan: EvalPlan, attack: Attack, start: Tensor, cache: ResultCache | None, shown: Shown
) -> Generator[tuple[Tensor, dict[str, Any]], None, None]:
    """(index, the cache's row) of each batch in order, from the cache or attacked now."""
    done: dict[int, dict[str, Any]] = dict(cache.done) if cache else {}
    how = {"channels_last": plan.channels_last}

    def keep(first: int, row: dict[str, Any], x_adv: Tensor | None) -> None:
        done[first] = row
        if cache:
            cache.add(first, row, x_adv)

    def task(index: Tensor) -> tuple[Tensor, Tensor, Path | None]:
        return index, start[index], cache.state_file(int(index[0])) if cache else None

    indices = [index.to(plan.device) for index in own_batches(len(plan.y), plan.batch_size)]
    missing = [task(index) for index in indices if int(index[0]) not in done]
    arriving = plan.workers.run(attack, missing, shown.show_part, **how) if plan.workers else None
    for index in indices:
        first = int(index[0])
        if first not in done and arriving is None:
            shown.begin(index)
            keep(first, *plan.attack(attack, *task(index), shown, **how))
        while first not in done and arriving is not None:
            keep(*next(arriving))
        yield index, done[first]


def attack_batch(
    plan: EvalPlan,
    attack: Attack,
    index: Tensor,
    x: Tensor,
    y: Tensor,
    after_part: AfterPart | None = None,
    state: Path | None = None,
) -> tuple[dict[str, Any], Tensor]:
    """The cache's row of the images to attack in a batch, of which there may be none, and the points found."""
    begun = time.perf_counter()
    draws = ImageStreams(plan.seed, plan.index[index.cpu()].to(x.device))
    x_adv, flags, distances, parts = run_and_verify(plan.model, attack, x, y, draws, after_part, state)
    seconds = sum(parts) if parts else time.perf_counter() - begun  # those of parts run by an earlier process too
    row = {"flags": flags.int().tolist(), "distances": distances.tolist(), "part_seconds": parts}
    return row | {"seconds": seconds}, x_adv


def save_broken(plan: EvalPlan, threat: Threat, start: Tensor, robust: Tensor, cache: ResultCache) -> None:
    """Collect the points of the images that were attacked (`start`) and broken from the cache into one file."""
    batches = torch.arange(len(robust)).split(plan.batch_size)
    found = [np.load(cache.image_file(int(b[0])))[~robust[b][start[b]].numpy()] for b in batches]
    rows = (start & ~robust).nonzero().squeeze(1)
    path = cache.folder / f"{cache.name}-adversarial.npz"
    save_images(path, plan.index[rows], np.concatenate(found), plan.y[rows.to(plan.y.device)], threat)
