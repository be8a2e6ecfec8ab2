"""Evaluation: one call runs attacks on images and writes a result file for each attack.

Check the inputs; classify the clean images; for each attack and batch, attack, verify every point in a fresh forward
pass (verify.py) and save (cache.py); then write the result files. A flag is True where an image is classified correctly
before and after the attack.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import DistanceAttack, describe_attack
from rattle.attacks.diagnostics import find_warnings, is_random, post_checks
from rattle.attacks.ensemble import components_of
from rattle.data.decode import Pictures
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache, cache_key, finish
from rattle.evaluation.draws import Measured, join_draws, measure_all
from rattle.evaluation.inputs import Attacks, as_attacks, as_threat, default_batch_size, image_checksums, under_threats
from rattle.evaluation.normalisation import missing_normalisation, near_chance
from rattle.evaluation.progress import AttackProgress
from rattle.evaluation.results import AttackResult, Evaluation, save_results
from rattle.evaluation.unions import split_name, with_unions
from rattle.evaluation.verify import attack_batches, four_decimals, save_broken
from rattle.inputs import CHECKED, AnyArray, Examples, Given, as_float, as_tensors, clean_logits, takes_channels_last
from rattle.runs import distributed
from rattle.runs.progress import Console, Interrupted, NullConsole, RichConsole
from rattle.settings import Bound, Count, check_cores, check_settings
from rattle.stats import precise_enough, time_left
from rattle.threat import Norm, Threat
from rattle.weights import eval_mode

LOOK_EVERY = 250  # images after which `within` is asked, whatever the batches: its coverage was computed for this
SAMPLE = 250  # images from which a model's warnings are found
EOT = 16  # draws of a random model that attacks average over
DRAWS = 32  # fresh ones that a rate is measured by
PercentagePoints = Annotated[float, Bound(above=0, below=50)]  # +- percentage points


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What the attacks of one evaluation share; the fields are explained at `evaluate`."""

    model: nn.Module
    x: Tensor | Pictures
    y: Tensor
    index: Tensor  # int64 [n]
    device: torch.device  # of the model; batches are moved there
    channels_last: bool  # the layout of the images that the model is given
    batch_size: Count
    out: Path | None = None
    within: PercentagePoints | None = None
    seconds: float | None = None  # that an attack may take, see `minutes`
    jobs: Count = 1
    seed: int = 0
    save_adversarial: bool = False
    draws: Annotated[int, Bound(least=8)] | None = None  # None: the model is not random
    eot: Count | None = None
    stop: Callable[[], bool] | None = None
    console: Console | None = None

    def __post_init__(self) -> None:
        check_settings(self, "")
        check_cores("jobs", self.jobs, each=4)
        if self.jobs > 1 and (distributed.world_size() > 1 or self.device.type != "cpu"):
            raise RattleError(f"jobs are for one machine's cores, without torchrun and on the CPU, not {self.device}")
        if self.device.type == "meta" and not CHECKED.get():
            raise RattleError("the model is on the meta device, where nothing is computed: load its weights first")
        if self.save_adversarial and self.out is None:
            raise RattleError("save_adversarial needs a folder to write to: give it as out")
        if len(self.index) != len(self.y):
            raise RattleError(f"{len(self.y)} images but an index of {len(self.index)}")
        if self.within is not None and distributed.world_size() > 1:
            raise RattleError("within decides batch by batch when to stop and runs in one process: leave out torchrun")

    def batches(self) -> dict[int, Tensor]:
        """The rows of each of this rank's batches, by the first of them; ranks take turns."""
        every = torch.arange(len(self.y)).split(self.batch_size)
        return {int(rows[0]): rows for rows in every[distributed.rank() :: distributed.world_size()]}

    def images(self, rows: Tensor) -> Examples:
        """Images in [0, 1] and labels of these rows, on the device."""
        x = self.x[rows.to(self.x.device)].to(self.device)
        return as_float(x, channels_last=self.channels_last), self.y[rows.to(self.y.device)].to(self.device)


def make_plan(
    model: nn.Module,
    x: Given | Pictures,
    y: AnyArray | None,
    *,
    out: Path | str | None = None,
    index: AnyArray | None = None,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    **settings: Any,
) -> EvalPlan:
    """Check everything that an evaluation is given, and find the layout that the model takes."""
    if device is not None and isinstance(model, nn.Module):
        model = model.to(distributed.choose_device(device))
    if isinstance(x, Pictures):  # checked when they are decoded
        assert isinstance(y, Tensor), "labels of pictures come with them"
    else:
        x, y = as_tensors(model, x, y)
    place = next((p.device for p in model.parameters()), x.device)
    with eval_mode(model):
        channels_last = takes_channels_last(model, x[:2].to(place))
    return EvalPlan(
        model=model,
        x=x,
        y=y,
        index=torch.arange(len(y)) if index is None else torch.as_tensor(index, dtype=torch.int64).cpu(),
        device=place,
        channels_last=channels_last,
        batch_size=default_batch_size(model, place) if batch_size is None else batch_size,
        out=None if out is None else Path(out),
        **settings,
    )


def evaluate(
    model: nn.Module,  # returns logits [n, C]
    x: Given
    | Pictures,  # uint8 or floats in [0, 1], [n, C, H, W] or [n, H, W, C]: tensor, array, Dataset or DataLoader
    y: AnyArray | None = None,  # their classes, whole numbers, [n]; a Dataset or DataLoader has its own
    attacks: Attacks = (
        "pgd20",
        "cw20",
    ),  # a name such as "pgd20", an attack, a list of these, or a dict of name to attack
    *,
    threat: Threat | None = None,  # of attacks given by name, linf 8/255 if None; attack objects have their own
    norm: Norm | None = None,  # the threat in two words: norm="l2", epsilon=0.5
    epsilon: float | None = None,
    threats: Sequence[Threat] = (),  # several: each attack under each, and the union (`autoattack,union`)
    device: torch.device | str | None = None,  # move the model there first; batches follow the model
    out: Path | str | None = None,  # folder for the result files
    metadata: Mapping[str, Any] | None = None,  # more entries for the result files, such as checkpoint and data
    index: AnyArray | None = None,  # the images' numbers in their dataset, [n], kept in the result; 0 to n - 1 if None
    within: float | None = None,  # stop each attack once its accuracy is known to +- this many percentage points
    minutes: float | None = None,  # attack as many of the first images as this allows
    mask: Sequence[bool] | None = None,  # attack only these images; the others count as not robust
    batch_size: int | None = None,  # None: 250 on a GPU, fewer on a CPU for large networks (`default_batch_size`)
    jobs: int = 1,  # processes that attack batches in parallel, on a CPU; every result is that of one
    seed: int = 0,  # of the attacks' random draws
    draws: int | None = None,  # draws for the rate of an image; None: 32 if the model answers at random
    eot: int | None = None,  # of a random model: draws that attacks average over, 16 if None
    check_model: bool = True,  # look for what makes the numbers unreliable: Evaluation.warnings
    save_adversarial: bool = False,  # also write the images that broke the model, as out/ATTACK-adversarial.npz
    stop: Callable[[], bool] | None = None,  # called after each batch; Interrupted is raised when it returns True
    console: Console | None = None,  # shows progress in another way than by a bar or lines on stderr
    quiet: bool = False,  # show no progress
) -> Evaluation:
    """Attack images; with a folder `out`, write out/ATTACK.json for each attack.

    After an interruption the same call resumes after the last finished batch, or the last finished component of an
    ensemble on a batch; hidden files in `out` hold these.

    For a model that answers at random, flags are rates: shares of fresh draws that classify an image correctly.

    >>> model, x, y = torch.nn.Flatten(), torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> result = evaluate(model, x, y, ["fgsm", "pgd20"], threat=Threat(epsilon=0.1))
    >>> result.robust_accuracy <= result.clean_accuracy
    True
    """
    begun, own = time.perf_counter(), as_threat(threat, norm, epsilon)
    if threats and own is not None:
        raise RattleError("give one threat, or several as threats=, not both")
    if minutes is not None and (within is not None or not minutes > 0):
        raise RattleError("minutes must be above 0, and given without within: each of them alone ends an attack")
    plan = make_plan(
        model,
        x,
        y,
        out=out,
        index=index,
        device=device,
        batch_size=batch_size,
        within=within,
        jobs=jobs,
        seed=seed,
        save_adversarial=save_adversarial,
        draws=draws,
        eot=eot,
        stop=stop,
        console=NullConsole() if quiet or not distributed.is_main() else console or RichConsole(),
    )
    if minutes is not None and distributed.world_size() > 1:
        raise RattleError("minutes are counted batch by batch in one process: leave out torchrun")
    chosen = as_attacks(attacks, own)
    if threats:
        chosen = under_threats(lambda each: as_attacks(attacks, each), threats, plan.x.shape[1:].numel())
    if mask is not None and len(mask) != len(plan.y):
        raise RattleError(f"{len(plan.y)} images but a mask of {len(mask)}")

    warnings = []
    with eval_mode(plan.model):
        if check_model:
            plan = replace(plan, draws=(draws or DRAWS) if answers_at_random(plan) else None)
        if plan.draws is None:
            if draws is not None or eot is not None:
                raise RattleError("draws and eot are for models that answer at random; this one does not")
            measured, (clean, confidence) = None, classify(plan)
            start = clean
        else:
            if mask is not None or save_adversarial or within is not None or minutes is not None:
                raise RattleError(
                    "a random model has rates, not flags: leave out mask, within, minutes and save_adversarial"
                )
            for name, attack in chosen.items():
                if averages_itself(attack):
                    raise RattleError(f"evaluate averages over draws, and {name} does too: give eot to evaluate alone")
            plan = replace(plan, eot=eot or EOT)
            measured = measure_all(plan)
            clean = torch.cat([batch.rate for batch in measured.values()])
            start, confidence = torch.ones(len(clean), dtype=torch.bool), None
        if check_model:
            x, y = plan.images(torch.arange(min(SAMPLE, len(plan.y))))
            names = [split_name(name)[0] for name in chosen]
            for attack in chosen.values():
                names += components_of(attack)
            warnings = find_warnings(plan.model, x, y, names)
            warnings += list(missing_normalisation(plan.model, x, y)) or near_chance(plan.model, x, y)
        if mask is not None:
            start, confidence = start & torch.tensor(list(mask)), None
        results = {}
        left = 0.0 if minutes is None else 60 * minutes - (time.perf_counter() - begun)
        for name, attack in chosen.items():
            if minutes is not None:
                plan = replace(plan, seconds=left / (len(chosen) - len(results)))
            results[name] = run_attack(plan, name, attack, start, measured, confidence)
            left -= results[name].seconds / plan.jobs
            if (n := len(results[name].flags)) < len(plan.y) and minutes is not None:
                warnings.append(f"{minutes:g} minutes were enough for {n:,} of {len(plan.y):,} images under {name}")
    results = with_unions(results)

    first = torch.equal(plan.index, torch.arange(len(plan.index)))
    if check_model:
        warnings += afterwards(results)
    result = Evaluation(
        clean=clean.tolist(),
        draws=None if measured is None else join_draws(plan, {first: batch.row() for first, batch in measured.items()}),
        confidence=[] if confidence is None else confidence.tolist(),
        attacks=results,
        labels=plan.y.tolist(),
        index=None if first else plan.index.tolist(),
        images=None if plan.out is None else image_checksums(plan.x, plan.y),
        warnings=tuple(warnings),
        metadata=metadata or {},
    )
    if plan.out is not None:
        finish(partial(save_results, result, plan.out), plan.out, chosen)
    return result


def afterwards(results: Mapping[str, AttackResult]) -> list[str]:
    """Warnings that the results of one threat give together."""
    threats = {}
    for name, result in results.items():
        attack, threat = split_name(name)
        threats.setdefault(threat, {})[attack] = result
    found = []
    for same in threats.values():
        accuracies = {name: attack.accuracy for name, attack in same.items()}
        parts = {name: {part: fmean(f) for part, f in a.parts.items()} for name, a in same.items()}
        found += post_checks(accuracies, parts)
    return found


def classify(plan: EvalPlan) -> tuple[Tensor, Tensor]:
    """Which images the model classifies correctly without an attack, [n] bool, and its confidence, on the CPU."""
    clean = torch.zeros(len(plan.y), dtype=torch.int, device=plan.device)
    confidence = torch.zeros(len(plan.y), device=plan.device)
    with distributed.raise_on_all_ranks():
        for rows in plan.batches().values():
            x, y = plan.images(rows)
            logits = clean_logits(plan.model, x, y)
            rows = rows.to(plan.device)
            clean[rows], confidence[rows] = (logits.argmax(1) == y).int(), logits.softmax(1).amax(1).float()
    clean, confidence = (distributed.sum_over_ranks(found).cpu() for found in (clean, confidence))
    return clean.bool(), four_decimals(confidence)


def averages_itself(attack: Attack) -> bool:
    """Whether an attack, or a part of it, has an `eot` of its own."""
    parts = components_of(attack).values() or [attack]
    return any(getattr(part, "eot", 1) > 1 for part in parts)


def answers_at_random(plan: EvalPlan) -> bool:
    """Whether the model is seen to draw, on images from everywhere in the data."""
    n = len(plan.y)
    rows = torch.linspace(0, n - 1, min(n, SAMPLE)).long()
    return any(distributed.gather(is_random(plan.model, plan.images(rows)[0])))


def run_attack(
    plan: EvalPlan,
    name: str,
    attack: Attack,
    start: Tensor,
    measured: dict[int, Measured] | None = None,
    confidence: Tensor | None = None,
) -> AttackResult:
    """One attack on the images of `start` [n] bool, batch by batch; batches in the cache are not attacked again.

    measured: of a random model, the clean images, each batch by its first image. confidence: that on the clean images,
    [n], if it is to be known.
    """
    cache = None
    if plan.out is not None:
        key = cache_key(
            plan.model,
            plan.x,
            plan.y,
            attack,
            seed=plan.seed,
            batch_size=plan.batch_size,
            mask=start.tolist(),
            index=plan.index.tolist(),
            draws=(plan.draws, plan.eot),
        )
        cache = ResultCache(plan.out, name, key, images=plan.save_adversarial)
    components = list(components_of(attack))
    found = {}  # the row of each batch, by its first image
    n, spent = len(plan.y), 0.0
    console = plan.console or NullConsole()
    cached = cache.done if cache else {}
    sizes = {first: len(rows) for first, rows in plan.batches().items()}
    done = sum(size for first, size in sizes.items() if first in cached)
    with distributed.raise_on_all_ranks(), console.progress(name, sum(sizes.values()), done=done) as advance:
        progress = AttackProgress(console, advance, components)
        with closing(attack_batches(plan, attack, start, cache, progress, measured)) as batches:
            for first, row in batches:
                last = first + sizes[first]
                found[first] = row
                progress.end_batch(sizes[first], sum(row["flags"][0]), cached=first in cached)
                if plan.stop is not None and plan.stop():
                    raise Interrupted
                looks = last // LOOK_EVERY > first // LOOK_EVERY
                spent += row["seconds"] / plan.jobs
                if plan.seconds is not None and last < n:
                    if first == 0 and spent > plan.seconds:
                        raise RattleError(
                            f"one batch of {last} images took {spent:.1f} s under {name}, of "
                            f"{max(plan.seconds, 0):.1f} s that it had: give more minutes or a smaller batch_size"
                        )
                    if not time_left(spent, last, sizes[first], plan.seconds):
                        n = last
                        break
                if plan.within and looks and precise_enough(progress.robust, last, plan.within / 100):
                    n = last
                    break

    for other in distributed.gather(found):
        found |= other
    kind = torch.bool if measured is None else torch.float64
    flags = torch.zeros(1 + len(components), n, dtype=kind)
    distances = torch.zeros(n)
    known = confidence is not None and all("confidence" in row for row in found.values())  # not by version 0.3
    points = confidence[:n].clone() if known and confidence is not None else torch.zeros(n, dtype=torch.float64)
    seconds = torch.zeros(len(components), dtype=torch.float64)
    for first, row in found.items():
        rows = torch.arange(first, min(first + plan.batch_size, n))
        live = rows[start[rows]]
        flags[:, live] = torch.tensor(row["flags"], dtype=kind)
        distances[live] = torch.tensor(row["distances"])
        if known:
            points[live] = torch.tensor(row["confidence"], dtype=torch.float64)
        if row["part_seconds"]:
            seconds += torch.tensor(row["part_seconds"])
    if cache and plan.save_adversarial:
        distributed.on_main(partial(save_broken, plan, attack.threat, start[:n], flags[0], cache))
    result = AttackResult(
        settings=describe_attack(attack),
        flags=flags[0].tolist(),
        seconds=sum(row["seconds"] for row in found.values()),
        parts={part: flags[1 + i].tolist() for i, part in enumerate(components)},
        part_seconds=dict(zip(components, seconds.tolist(), strict=True)),
        confidence=points.tolist() if known else [],
        distances=distances.tolist() if isinstance(attack, DistanceAttack) and measured is None else [],
        draws=None if measured is None else join_draws(plan, found),
    )
    progress.finish(result)
    return result
