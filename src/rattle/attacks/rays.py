"""RayS (Chen and Gu 2020): a hard-label search for the ray of signs that meets the decision boundary first."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.base import Nearest, attack_mode, check_at_least
from rattle.attacks.keeping import kept
from rattle.attacks.rows import FlatModel
from rattle.errors import RattleError
from rattle.inputs import check_batch, is_correct
from rattle.randomness import Randomness
from rattle.threat import Threat


class Rays:
    """The best ray of each image: at first plus signs and an unknown radius, taken to be 1, the box's width."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y  # clean images, [n, d]; labels, [n]
        self.signs, self.radius = torch.ones_like(x), x.new_ones(len(x))  # its direction; where it meets the boundary
        self.met = torch.zeros_like(y, dtype=torch.bool)  # whether it has met the boundary yet
        self.x_adv, self.distance = x.clone(), x.new_ones(len(x))  # the misclassified point there
        self.queries = torch.zeros_like(y)
        self.active = y  # rows that are searched still; the next block: its level, and where it begins
        self.level = self.begin = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayS:
    """Flip signs of ever smaller blocks of pixels; keep a flip whose ray meets the boundary sooner (Algorithm 3)."""

    threat: Threat = Threat()
    queries: int = 10_000  # labels asked for at most, for each image
    tolerance: float = 1e-3  # of the bisection, in l_2 length along the ray, as in the authors' code

    def __post_init__(self) -> None:
        if self.threat.norm != "linf":
            raise RattleError(f"rays searches along rays of signs, for the linf threat, got {self.threat.norm}")
        check_at_least(self, queries=1)
        if not self.tolerance > 0:
            raise RattleError(f"attack.tolerance must be > 0, got {self.tolerance}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """The points found inside the ball, x elsewhere; an image is done once its point is inside."""
        found = self.search(model, x, y, near_enough=self.threat.epsilon)
        inside = (found.distance <= self.threat.epsilon).view(-1, *[1] * (x.ndim - 1))
        return torch.where(inside, found.x_adv, x)

    def search(
        self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None, near_enough: float = 0.0
    ) -> Nearest:
        """Search each image until its distance is `near_enough` or its queries are used up. Nothing is drawn."""
        x, y = check_batch(x, y)
        with attack_mode(model), torch.no_grad():
            flat_model = FlatModel(model, x)
            correct = is_correct(flat_model.model, flat_model.images(flat_model.flat(x)), y)
            rays = Rays(x.reshape(len(x), -1), y)  # blocks are counted in the images' own order, not in the model's
            rays.distance[~correct] = 0
            rays.active, d = correct.nonzero().squeeze(1), rays.x.shape[1]
            for _ in kept("steps", range(self.queries), rays):  # each asks at least once
                if len(rays.active) == 0:
                    break
                end = min(rays.begin + math.ceil(d / 2**rays.level), d)
                self.flip_block(flat_model, rays, rays.active, slice(rays.begin, end))
                rays.level, rays.begin = (rays.level + 1, 0) if end == d else (rays.level, end)
                left = (rays.queries < self.queries) & (rays.distance > near_enough)
                rays.active = rays.active[left[rays.active]]
        return Nearest(rays.x_adv.view_as(x), rays.distance, rays.queries)

    def flip_block(self, model: FlatModel, rays: Rays, rows: Tensor, block: slice) -> None:
        """Flip one block: first ask whether the boundary is met at the present radius at all, then bisect."""
        rays.signs[rows, block] *= -1
        better = self.crosses(model, rays, rows, rays.radius[rows])
        rays.signs[rows[~better], block] *= -1
        rows = rows[better]
        radius = self.bisect(model, rays, rows)
        sooner = (radius < rays.radius[rows]) | ~rays.met[rows]
        rays.signs[rows[~sooner], block] *= -1
        rows, radius = rows[sooner], radius[sooner]
        rays.radius[rows], rays.met[rows] = radius, True
        rays.x_adv[rows] = (rays.x[rows] + radius[:, None] * rays.signs[rows]).clamp_(0, 1)
        rays.distance[rows] = (rays.x_adv[rows] - rays.x[rows]).abs().amax(1)

    def bisect(self, model: FlatModel, rays: Rays, rows: Tensor) -> Tensor:
        """The radius at which the present rays of these rows meet the boundary, while queries last, [rows]."""
        low, high = torch.zeros_like(rays.radius[rows]), rays.radius[rows]
        tolerance = self.tolerance / math.sqrt(rays.x.shape[1])
        active = (rays.queries[rows] < self.queries).nonzero().squeeze(1)
        while len(active):
            middle = (low[active] + high[active]) / 2
            over = self.crosses(model, rays, rows[active], middle)
            high[active[over]], low[active[~over]] = middle[over], middle[~over]
            left = rays.queries[rows[active]] < self.queries
            active = active[(high[active] - low[active] > tolerance) & left]
        return high

    def crosses(self, model: FlatModel, rays: Rays, rows: Tensor, radius: Tensor) -> Tensor:
        """Whether the label changes at a radius along the present ray: one query for each of the rows."""
        rays.queries[rows] += 1
        points = (rays.x[rows] + radius[:, None] * rays.signs[rows]).clamp_(0, 1)
        return model.logits(model.flat(points.view(-1, *model.shape))).argmax(1) != rays.y[rows]
