"""Random models: the expected accuracy over fresh draws, at the points of attacks that average over draws.

The result of an image is its rate, the share of draws in which it is classified correctly. Points are chosen by some
draws (the pilot) and measured by others, so that the lowest of several noisy rates does not count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import Attack
from rattle.attacks.ensemble import components_of
from rattle.attacks.rows import spawn
from rattle.evaluation.results import Draws
from rattle.inputs import NoGradient, clean_logits
from rattle.randomized import Expected, seeded
from rattle.randomness import ImageStreams, derive_seed
from rattle.runs import distributed
from rattle.runs.io import Plain

if TYPE_CHECKING:
    from rattle.evaluation.evaluate import EvalPlan

CLEAN, ATTACKED, COMMON = range(3)  # what draws are for: each purpose has its own


@dataclass(slots=True)
class Measured:
    """The draws of n images, each at one point."""

    pilot: Tensor  # rates by which points are chosen, [n]
    rate: Tensor  # rates by fresh draws, [n]
    majority: Tensor  # whether most of the fresh draws agree on the label, 0 or 1, [n]
    deviation: Tensor  # what each draw adds to the error of the sum of rates, [K, n]

    def __getitem__(self, rows: Tensor) -> Measured:
        return Measured(*(getattr(self, f.name)[..., rows] for f in fields(self)))

    def __setitem__(self, rows: Tensor, new: Measured) -> None:
        for f in fields(self):
            getattr(self, f.name)[..., rows] = getattr(new, f.name)

    def row(self) -> Plain:
        """What the row of a batch says of its draws. variance: of the sum of rates, by the draws alone: images of a
        pass may share a draw (of the weights, say)."""
        variance = float(self.deviation.sum(1).square().sum())
        return {"pilot": self.pilot.tolist(), "majority": self.majority.tolist(), "variance": variance}


def predictions(model: nn.Module, x: Tensor, y: Tensor, draws: int) -> Tensor:
    """The class of each image in each of so many passes, [draws, n]."""
    return torch.stack([clean_logits(model, x, y).argmax(1) for _ in range(draws)])


def pilot_rates(model: nn.Module, x: Tensor, y: Tensor, draws: int) -> Tensor:
    return (predictions(model, x, y, draws // 2) == y).double().mean(0)


def measure_draws(model: nn.Module, x: Tensor, y: Tensor, pilot: Tensor, draws: int) -> Measured:
    """Rates by fresh draws: K where the pilot's draws disagreed, a quarter of that where they were all of one mind."""
    few = draws // 4
    votes = y.new_full((draws, len(y)), -1)  # -1: not drawn
    votes[:few] = predictions(model, x, y, few)
    unsure = ((pilot > 0) & (pilot < 1)).nonzero().squeeze(1)
    if len(unsure):
        votes[few:, unsure] = predictions(model, x[unsure], y[unsure], draws - few)
    drawn, correct = votes >= 0, (votes == y).double()
    count = drawn.sum(0)
    rate = correct.sum(0) / count
    by_class = (F.one_hot(votes.clamp_min(0)) * drawn[:, :, None]).sum(0)  # [n, C]
    deviation = drawn * (correct - rate) / (count * (count - 1)).sqrt()
    return Measured(pilot, rate, (by_class.argmax(1) == y).int(), deviation)


def measure_all(plan: EvalPlan) -> dict[int, Measured]:
    """A random model on the clean images: each batch by its first image."""
    assert plan.draws
    found = {}
    with distributed.raise_on_all_ranks():
        for first, rows in plan.batches().items():
            x, y = plan.images(rows)
            with seeded(derive_seed(plan.seed, first, CLEAN), x.device):
                pilot = pilot_rates(plan.model, x, y, plan.draws)
                found[first] = measure_draws(plan.model, x, y, pilot, plan.draws)
    for other in distributed.gather(found):
        found |= other
    return dict(sorted(found.items()))


def join_draws(plan: EvalPlan, found: Mapping[int, Plain]) -> Draws:
    """What the rows of all batches say of the draws."""
    pilot, majority = [], []
    for first in sorted(found):
        pilot += found[first]["pilot"]
        majority += map(bool, found[first]["majority"])
    return Draws(
        count=plan.draws or 0,
        eot=plan.eot or 0,
        error=sum(row["variance"] for row in found.values()) ** 0.5 / len(pilot),
        pilot=pilot,
        majority=majority,
        passes=sum(row.get("passes", 0) for row in found.values()) / len(pilot),
    )


def attack_random(
    first: int,
    model: nn.Module,
    attack: Attack,
    x: Tensor,
    y: Tensor,
    seed: int,
    index: Tensor,
    clean: Measured,
    draws: int,
    eot: int,
) -> tuple[int, Plain, Tensor]:
    """Attack the images of a batch that some draw of the pilot classified correctly, and measure the worst points.

    clean: the batch without an attack. draws: K of a rate; eot: draws that attacks average over. The other parameters
    and what is returned are as in `attack_batch`; `flags` are rates.
    """
    components = components_of(attack)
    x_adv, found = x.clone(), clean[torch.arange(len(x), device=x.device)]
    expected = Expected(model, eot, derive_seed(seed, first, COMMON))
    streams = ImageStreams(seed, index)
    rates, seconds = [], []
    with seeded(derive_seed(seed, first, ATTACKED), x.device):
        for number, component in enumerate(components.values() or [attack]):
            begun = time.perf_counter()
            left = (found.pilot > 0).nonzero().squeeze(1)
            try:
                if len(left):
                    own = spawn(streams[left], number) if components else streams[left]
                    points = component(expected, x[left].clone(), y[left], generator=own).to(x)
                    pilot = pilot_rates(model, points, y[left], draws)
                    worse = attack.threat.contains(points, x[left]) & (pilot < found.pilot[left])
                    rows = left[worse]
                    if len(rows):
                        x_adv[rows] = points[worse]
                        found[rows] = measure_draws(model, x_adv[rows], y[rows], pilot[worse], draws)
            except NoGradient:
                if not components:
                    raise  # in an ensemble other components need none
            rates.append(found.rate.tolist())
            seconds.append(time.perf_counter() - begun)
    row = {
        "flags": [rates[-1], *rates] if components else rates,
        "distances": [0.0] * len(x),
        "part_seconds": seconds if components else [],
        "seconds": sum(seconds),
        "passes": expected.passes,
        **found.row(),
    }
    return first, row, x_adv
