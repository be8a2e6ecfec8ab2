"""RayS (Chen and Gu 2020): a hard-label search for the ray of signs that meets the decision boundary first."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.base import DistanceAttack, Nearest, attack_mode
from rattle.attacks.rows import FlatModel
from rattle.errors import RattleError
from rattle.inputs import check_batch, is_correct
from rattle.randomness import Randomness
from rattle.settings import Count, Positive, check_settings
from rattle.threat import Threat, per_image


@dataclass(frozen=True, slots=True, kw_only=True)
class RayS(DistanceAttack):
    """Flip signs of ever smaller blocks of pixels; keep a flip whose ray meets the boundary sooner (Algorithm 3)."""

    threat: Threat = Threat()
    queries: Count = 10_000  # queries for each image, at most
    tolerance: Positive = 1e-3  # tolerance of the bisection, in l_2 length along the ray, as in the authors' code

    def __post_init__(self) -> None:
        check_settings(self, "attack")
        if self.threat.norm != "linf":
            raise RattleError(f"rays searches along rays of signs, for the linf threat, got {self.threat.norm}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """The points found inside the ball, x elsewhere; an image is done once its point is inside."""
        found = self.search(model, x, y, near_enough=self.threat.epsilon)
        inside = per_image(found.distance <= self.threat.epsilon, x)
        return torch.where(inside, found.x_adv, x)

    def search(
        self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None, near_enough: float = 0.0
    ) -> Nearest:
        """Search each image until its distance is `near_enough` or its queries are used up. Nothing is drawn."""
        x, y = check_batch(x, y)
        with attack_mode(model), torch.no_grad():
            flat_model = FlatModel(model, x)
            rays = Rays(self, flat_model, x, y)
            correct = is_correct(model, flat_model.images(flat_model.flat(x)), y)
            rays.distance[~correct] = 0
            active = correct.nonzero().squeeze(1)
            level, begin, d = 0, 0, x[0].numel()
            while len(active):
                end = min(begin + math.ceil(d / 2**level), d)
                rays.flip_block(active, slice(begin, end))
                begin = end
                if end == d:
                    level, begin = level + 1, 0
                left = (rays.queries < self.queries) & (rays.distance > near_enough)
                active = active[left[active]]
        return Nearest(rays.x_adv.view_as(x), rays.distance, rays.queries)


class Rays:
    """The best ray of each image: at first plus signs and an unknown radius, taken to be 1, the box's width."""

    def __init__(self, attack: RayS, model: FlatModel, x: Tensor, y: Tensor) -> None:
        self.attack, self.model, self.y = attack, model, y
        self.x = x.reshape(len(x), -1)  # [n, d]; blocks are counted in the images' own order, not in the model's
        self.signs = torch.ones_like(self.x)  # direction of the ray
        self.radius = x.new_ones(len(x))  # where it meets the boundary
        self.met = torch.zeros_like(y, dtype=torch.bool)  # whether it has met the boundary yet
        self.x_adv, self.distance = self.x.clone(), x.new_ones(len(x))  # the misclassified point there
        self.queries = torch.zeros_like(y)

    def flip_block(self, rows: Tensor, block: slice) -> None:
        """Flip one block: first ask whether the boundary is met at the present radius at all, then bisect."""
        self.signs[rows, block] *= -1
        better = self.crosses(rows, self.radius[rows])
        self.signs[rows[~better], block] *= -1
        rows = rows[better]
        radius = self.bisect(rows)
        sooner = (radius < self.radius[rows]) | ~self.met[rows]
        self.signs[rows[~sooner], block] *= -1
        rows, radius = rows[sooner], radius[sooner]
        self.radius[rows], self.met[rows] = radius, True
        self.x_adv[rows] = (self.x[rows] + radius[:, None] * self.signs[rows]).clamp_(0, 1)
        self.distance[rows] = (self.x_adv[rows] - self.x[rows]).abs().amax(1)

    def bisect(self, rows: Tensor) -> Tensor:
        """The radius at which the present rays of these rows meet the boundary, while queries last, [rows]."""
        low, high = torch.zeros_like(self.radius[rows]), self.radius[rows]
        tolerance = self.attack.tolerance / math.sqrt(self.x.shape[1])
        active = (self.queries[rows] < self.attack.queries).nonzero().squeeze(1)
        while len(active):
            middle = (low[active] + high[active]) / 2
            over = self.crosses(rows[active], middle)
            high[active[over]], low[active[~over]] = middle[over], middle[~over]
            left = self.queries[rows[active]] < self.attack.queries
            active = active[(high[active] - low[active] > tolerance) & left]
        return high

    def crosses(self, rows: Tensor, radius: Tensor) -> Tensor:
        """Whether the label changes at a radius along the present ray: one query for each of the rows."""
        self.queries[rows] += 1
        points = (self.x[rows] + radius[:, None] * self.signs[rows]).clamp_(0, 1)
        images = points.view(-1, *self.model.shape)
        return self.model.logits(self.model.flat(images)).argmax(1) != self.y[rows]
