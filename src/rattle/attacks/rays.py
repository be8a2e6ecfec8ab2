"""RayS (Chen and Gu 2020): a hard-label search for the ray of signs that meets the decision boundary first."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.base import Nearest, check_at_least, check_batch
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.rows import ActiveRows, FlatModel
from rattle.errors import RattleError
from rattle.randomness import Randomness
from rattle.threat import Threat


@dataclass(frozen=True, slots=True)
class BoundaryDistances(Nearest):
    """What RayS found: l_inf distances, 1 (the box's width) where nothing was found."""

    queries: Tensor  # labels asked for, [n]

    @property
    def adbd(self) -> float:
        """Average decision boundary distance over all images, misclassified ones counting 0."""
        return float(self.distance.mean())

    def accuracy(self, epsilon: float) -> float:
        """Share of images whose boundary is farther than epsilon."""
        return float((self.distance > epsilon).double().mean())


class RayRows(ActiveRows):
    """The best ray of each image: it begins with plus signs and an unknown radius, taken to be the box's width."""

    def __init__(self, row: Tensor, x: Tensor, y: Tensor) -> None:
        self.row, self.x, self.y = row, x, y  # index of the image, [r]; clean images, [r, d]; labels, [r]
        self.signs = torch.ones_like(x)  # direction of the ray
        self.radius = x.new_ones(len(x))  # where it meets the boundary, [r]
        self.met = torch.zeros_like(row, dtype=torch.bool)  # whether it has met the boundary yet
        self.x_adv, self.distance = x.clone(), x.new_ones(len(x))  # the misclassified point there
        self.queries = torch.zeros_like(row)


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
        check_at_least(self, queries=1)
        if not self.tolerance > 0:
            raise RattleError(f"attack.tolerance must be > 0, got {self.tolerance}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """The points found inside the ball, x elsewhere; an image is done once its point is inside."""
        found = self.search_until(self.threat.epsilon, model, x, y)
        inside = (found.distance <= self.threat.epsilon).view(-1, *[1] * (x.ndim - 1))
        return torch.where(inside, found.x_adv, x)

    def search(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> BoundaryDistances:
        """The nearest misclassified points that all the queries lead to, in the ball or not."""
        return self.search_until(0.0, model, x, y)

    def search_until(self, near_enough: float, model: nn.Module, x: Tensor, y: Tensor) -> BoundaryDistances:
        """Search each image until its distance is `near_enough` or its queries are used up."""
        x, y = check_batch(x, y)
        with attack_mode(model), torch.no_grad():
            flat_model = FlatModel(model, x)
            wrong = flat_model.clean_logits(flat_model.flat(x), y).argmax(1) != y
            rows = x.reshape(len(x), -1)  # blocks are counted in the images' own order, whatever the model's layout
            x_adv, queries = rows.clone(), torch.zeros_like(y)
            distance = torch.where(wrong, 0, rows.new_ones(len(rows)))
            correct = (~wrong).nonzero().squeeze(1)
            live = RayRows(correct, rows[correct], y[correct])
            level, block = 0, 0
            while len(live.y):
                size = math.ceil(rows.shape[1] / 2**level)
                begin, end = block * size, min((block + 1) * size, rows.shape[1])
                self.flip_block(flat_model, live, slice(begin, end))
                level, block = (level + 1, 0) if end == rows.shape[1] else (level, block + 1)
                done = (live.queries >= self.queries) | (live.distance <= near_enough)
                if bool(done.any()):
                    row = live.row[done]
                    x_adv[row], distance[row], queries[row] = live.x_adv[done], live.distance[done], live.queries[done]
                    live.select(~done)
        return BoundaryDistances(x_adv.view_as(x), distance, queries)

    def flip_block(self, model: FlatModel, live: RayRows, block: slice) -> None:
        """Flip one block: first ask whether the boundary is met at the present radius at all, then bisect."""
        live.signs[:, block] *= -1
        better = self.crosses(model, live, torch.arange(len(live.y), device=live.y.device), live.radius)
        live.signs[~better, block] *= -1
        rows = better.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        radius = self.bisect(model, live, rows)
        sooner = (radius < live.radius[rows]) | ~live.met[rows]
        live.signs[rows[~sooner], block] *= -1
        rows, radius = rows[sooner], radius[sooner]
        x_adv = (live.x[rows] + radius[:, None] * live.signs[rows]).clamp_(0, 1)
        live.radius[rows], live.met[rows], live.x_adv[rows] = radius, True, x_adv
        live.distance[rows] = (x_adv - live.x[rows]).abs().amax(1)

    def bisect(self, model: FlatModel, live: RayRows, rows: Tensor) -> Tensor:
        """The radius at which the present rays of these rows meet the boundary, while queries last, [rows]."""
        low, high = torch.zeros_like(live.radius[rows]), live.radius[rows]
        tolerance = self.tolerance / math.sqrt(live.x.shape[1])
        active = (live.queries[rows] < self.queries).nonzero().squeeze(1)
        while len(active):
            middle = (low[active] + high[active]) / 2
            over = self.crosses(model, live, rows[active], middle)
            high[active] = torch.where(over, middle, high[active])
            low[active] = torch.where(over, low[active], middle)
            spent = live.queries[rows[active]] >= self.queries
            active = active[(high[active] - low[active] > tolerance) & ~spent]
        return high

    def crosses(self, model: FlatModel, live: RayRows, rows: Tensor, radius: Tensor) -> Tensor:
        """Whether the label changes at a radius along the present ray: one query for each of the rows."""
        live.queries[rows] += 1
        points = (live.x[rows] + radius[:, None] * live.signs[rows]).clamp_(0, 1)
        images = points.view(-1, *model.shape)
        return model.logits(model.flat(images)).argmax(1) != live.y[rows]
