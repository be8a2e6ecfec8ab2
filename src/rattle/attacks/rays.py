"""RayS (Chen and Gu 2020): a hard-label search for the ray of signs that meets the decision boundary first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.base import check_batch
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.rows import ActiveRows, FlatModel
from rattle.errors import RattleError
from rattle.randomness import Randomness
from rattle.threat import Threat


@dataclass(frozen=True, slots=True)
class Rays:
    """What the search found for each image."""

    x_adv: Tensor  # the nearest misclassified point found; x where it is misclassified already or nothing was found
    distance: Tensor  # its l_inf distance [n]: 0 where x is misclassified, 1 (the box's width) where nothing was found
    queries: Tensor  # labels asked for, [n]

    @property
    def adbd(self) -> float:
        """Average decision boundary distance over all images, misclassified ones counting 0."""
        return float(self.distance.mean())

    def accuracy(self, epsilon: float) -> float:
        """Share of images whose boundary is farther than epsilon."""
        return float((self.distance > epsilon).double().mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class RayS:
    """Flip signs of ever smaller blocks of pixels; keep a flip whose ray meets the boundary sooner (Algorithm 3).

    No gradient, no logits: the model's argmax alone. Nothing is random, so the generator is not used.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> RayS(queries=50).search(model, x, y).distance.shape
    torch.Size([5])
    """

    threat: Threat = Threat()
    queries: int = 10_000  # labels asked for at most, for each image
    tolerance: float = 1e-3  # of the bisection, in l_2 length along the ray, as in the authors' code

    def __post_init__(self) -> None:
        if self.threat.norm != "linf":
            raise RattleError(f"rays searches along rays of signs, for the linf threat, got {self.threat.norm}")
        if self.queries < 1:
            raise RattleError(f"attack.queries must be >= 1, got {self.queries}")
        if not self.tolerance > 0:
            raise RattleError(f"attack.tolerance must be > 0, got {self.tolerance}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """The points found inside the ball, x elsewhere; an image is done once its point is inside."""
        found = self.search(model, x, y, until=self.threat.epsilon)
        inside = (found.distance <= self.threat.epsilon).view(-1, *[1] * (x.ndim - 1))
        return torch.where(inside, found.x_adv, x)

    def search(
        self, model: nn.Module, x: Tensor, y: Tensor, *, until: float = 0.0, generator: Randomness = None
    ) -> Rays:
        """The nearest points that the queries lead to; images within `until` are not searched further."""
        check_batch(x, y)
        with attack_mode(model), torch.no_grad():
            victim = FlatModel(model, x)
            wrong = victim.clean(victim.flat(x), y).argmax(1) != y
            rows = x.reshape(len(x), -1)  # blocks are counted in the images' own order, whatever the model's layout
            x_adv, queries = rows.clone(), torch.zeros_like(y)
            distance = torch.where(wrong, 0, rows.new_ones(len(rows)))
            live = self.first(rows, y, (~wrong).nonzero().squeeze(1))
            level, block = 0, 0
            while len(live.y):
                size = math.ceil(rows.shape[1] / 2**level)
                begin, end = block * size, min((block + 1) * size, rows.shape[1])
                self.attempt(victim, live, slice(begin, end))
                level, block = (level + 1, 0) if end == rows.shape[1] else (level, block + 1)
                done = (live.queries >= self.queries) | (live.distance <= until)
                if bool(done.any()):
                    x_adv[live.row[done]], queries[live.row[done]] = live.x_adv[done], live.queries[done]
                    distance[live.row[done]] = live.distance[done]
                    live.keep(~done)
        return Rays(x_adv.view_as(x), distance, queries)

    @staticmethod
    def first(rows: Tensor, y: Tensor, correct: Tensor) -> ActiveRows:
        """Every ray begins with plus signs and an unknown radius, taken to be the box's width."""
        x = rows[correct]
        return ActiveRows(
            row=correct,
            x=x,
            y=y[correct],
            signs=torch.ones_like(x),
            radius=x.new_ones(len(x)),
            met=torch.zeros_like(correct, dtype=torch.bool),
            x_adv=x.clone(),
            distance=x.new_ones(len(x)),
            queries=torch.zeros_like(correct),
        )

    def attempt(self, victim: FlatModel, live: ActiveRows, block: slice) -> None:
        """Flip one block: first ask whether the boundary is met at the present radius at all, then bisect."""
        live.signs[:, block] *= -1
        better = self.crosses(victim, live, torch.arange(len(live.y), device=live.y.device), live.radius)
        live.signs[~better, block] *= -1
        rows = better.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        low, high = torch.zeros_like(live.radius[rows]), live.radius[rows]
        tolerance = self.tolerance / math.sqrt(live.x.shape[1])
        active = (live.queries[rows] < self.queries).nonzero().squeeze(1)
        while len(active):
            middle = (low[active] + high[active]) / 2
            over = self.crosses(victim, live, rows[active], middle)
            high[active] = torch.where(over, middle, high[active])
            low[active] = torch.where(over, low[active], middle)
            spent = live.queries[rows[active]] >= self.queries
            active = active[(high[active] - low[active] > tolerance) & ~spent]
        sooner = (high < live.radius[rows]) | ~live.met[rows]
        live.signs[rows[~sooner], block] *= -1
        rows, high = rows[sooner], high[sooner]
        x_adv = (live.x[rows] + high[:, None] * live.signs[rows]).clamp_(0, 1)
        live.radius[rows], live.met[rows], live.x_adv[rows] = high, True, x_adv
        live.distance[rows] = (x_adv - live.x[rows]).abs().amax(1)

    def crosses(self, victim: FlatModel, live: ActiveRows, rows: Tensor, radius: Tensor) -> Tensor:
        """Whether the label changes at a radius along the present ray: one query for each of the rows."""
        live.queries[rows] += 1
        points = (live.x[rows] + radius[:, None] * live.signs[rows]).clamp_(0, 1)
        images = points.view(-1, *victim.shape)
        return victim.logits(victim.flat(images)).argmax(1) != live.y[rows]
