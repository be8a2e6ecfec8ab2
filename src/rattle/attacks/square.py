"""Square Attack (Andriushchenko et al. 2020; for l_1 Croce and Hein 2021): random search by square patches."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs
from rattle.errors import RattleError
from rattle.inputs import check_batch
from rattle.randomness import ImageStreams, Randomness
from rattle.settings import Count, PositiveShare, check_settings
from rattle.threat import Threat

DRAWN_AHEAD = 50  # queries whose random numbers are drawn at once
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries after which the patch's area halves


def patch_side(query: int, p_init: float, height: int, width: int, norm: str) -> int:
    """Side of the patch at a query: its share of the image starts at p_init and halves on a fixed schedule (Sec. 3)."""
    halvings = sum(query > after for after in HALVED_AFTER)
    side = round(math.sqrt(p_init / 2**halvings * height * width))
    if norm != "linf":
        side = max(side, 3) | 1  # odd
    return min(max(side, 1), height, width)


def pyramid(rows: int, columns: int, power: int) -> Tensor:
    """Nested rectangles around the centre, the m-th adding 1 / m^power (eq. 3)."""
    bump = torch.zeros(rows, columns)
    top, left = rows // 2, columns // 2
    for m in range(max(rows // 2, columns // 2) + 1):
        bump[max(top - m, 0) : top + m + 1, max(left - m, 0) : left + m + 1] += 1 / (m + 1) ** power
    return bump


@lru_cache(maxsize=64)
def bump(side: int, norm: str) -> Tensor:
    """The l_2 and l_1 patch of unit length, [s, s]: one pyramid up, one down (Sec. 3.3)."""
    order, power = (2, 2) if norm == "l2" else (1, 4)
    up, down = pyramid(side // 2, side, power), pyramid(side - side // 2, side, power)
    up = up / up.norm(p=order).clamp_min(1e-12)
    down = down / down.norm(p=order).clamp_min(1e-12)
    patch = torch.cat([up, -down])
    return patch / patch.norm(p=order)


@dataclass
class Search(TargetRows):
    """The variables of one random search; each image draws its own patches."""

    draws: ImageStreams
    best: Tensor  # point of highest loss, [n, d]
    loss: Tensor  # at `best`: positive where it is misclassified, [n]
    places: Tensor  # uniforms of the next queries: two corners and an orientation, [n, BLOCK, 5]
    signs: Tensor  # of their channels, [n, BLOCK, C]


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """Random search: propose a new square patch and accept it where the loss rises (Algorithm 1); logits only."""

    threat: Threat = Threat()
    queries: Count = 5000  # forward passes for each image and restart
    p_init: PositiveShare = 0.8  # share of the image that the first patches cover
    restarts: Count = 1  # searches; the next one skips the images that are broken

    def __post_init__(self) -> None:
        check_settings(self, "attack")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        if x.ndim != 4:
            raise RattleError(f"the square attack needs images [n, C, H, W], got shape {list(x.shape)}")
        return best_of_runs(self, model, x, y, generator)

    @torch.no_grad()
    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """One random search: the point of highest loss of each image; of several searches the last one's."""
        channels, height, width = model.shape
        result = RunResult(rows.x)
        if self.threat.norm == "linf":  # from vertical stripes of x +- epsilon
            stripes = self.threat.epsilon * draws.signs(channels, 1, width).to(rows.x.dtype)
            start = model.flat((model.images(rows.x) + stripes).clamp_(0, 1))
        else:
            start = self.tiles(model, rows.x, draws)
        loss = losses.cw(model.logits(start), rows.y)
        live = Search(**vars(rows), draws=draws, best=start, loss=loss, places=loss, signs=loss)
        for query in range(self.queries + 1):
            result.pack_broken(live, live.best, live.loss > 0)
            if len(live.y) == 0 or query == self.queries:
                break
            if query % DRAWN_AHEAD == 0:
                live.places = live.draws.uniform(DRAWN_AHEAD, 5).to(live.x.dtype)
                live.signs = live.draws.signs(DRAWN_AHEAD, channels).to(live.x.dtype)
            places, signs = live.places[:, query % DRAWN_AHEAD], live.signs[:, query % DRAWN_AHEAD]
            side = patch_side(query, self.p_init, height, width, self.threat.norm)
            if self.threat.norm == "linf":
                x_new = self.new_square(model, live, side, places, signs)
            else:
                x_new = self.move_mass(model, live, side, places, signs)
            loss = losses.cw(model.logits(x_new), live.y)
            better = loss > live.loss
            live.best[better], live.loss[better] = x_new[better], loss[better]
        return result.record(live, live.best, torch.full_like(live.loss, restart))

    def new_square(self, model: FlatModel, live: Search, side: int, places: Tensor, signs: Tensor) -> Tensor:
        """l_inf: a square gets x + epsilon or x - epsilon, one sign for each channel (Algorithm 2)."""
        _, height, width = model.shape
        top, left = corners(places[:, :2], height, width, side)
        index = window(model, top, left, side)
        shift = (self.threat.epsilon * signs).repeat_interleave(side * side, dim=1)
        square = (live.x.gather(1, index) + shift).clamp_(0, 1)
        return live.best.scatter(1, index, square)

    def tiles(self, model: FlatModel, x: Tensor, draws: ImageStreams) -> Tensor:
        """l_2 and l_1 start from a grid of bumps of random sign and orientation (Sec. 3.3)."""
        channels, height, width = model.shape
        side = max(height // 5, 1)
        begin = (height - 5 * side) // 2 if height >= 5 else 0
        delta = torch.zeros_like(model.images(x))
        for top in range(begin, min(begin + height // side * side, height - side + 1), side):
            for left in range(begin, min(begin + width // side * side, width - side + 1), side):
                patch = self.bumps(x, side, draws.uniform(1)).view(-1, 1, side, side)
                signs = draws.signs(channels, 1, 1).to(x.dtype)
                delta[:, :, top : top + side, left : left + side] = patch * signs
        return self.scale_to_ball(x, model.flat(delta))

    def bumps(self, x: Tensor, side: int, uniform: Tensor) -> Tensor:
        """Each image's bump, transposed where its uniform exceeds 1/2, [n, 1, s * s]."""
        upright = bump(side, self.threat.norm).to(x)
        return torch.where(uniform[:, :, None] > 0.5, upright.T.flatten(), upright.flatten())

    def scale_to_ball(self, x: Tensor, delta: Tensor) -> Tensor:
        """l_2: the perturbation scaled to length epsilon, then clipped; l_1: projected on ball and box."""
        if self.threat.norm == "l1":
            return self.threat.project(x + delta, x)
        scale = self.threat.epsilon / delta.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return (x + delta * scale).clamp_(0, 1)

    def move_mass(self, model: FlatModel, live: Search, side: int, places: Tensor, signs: Tensor) -> Tensor:
        """l_2 and l_1: the mass of one square moves to another, whose bump is renewed (Algorithm 3)."""
        channels, height, width = model.shape
        p = 2 if self.threat.norm == "l2" else 1
        n, area = len(live.y), side * side
        delta = live.best - live.x
        top, left = corners(places[:, :2], height, width, side)  # of the square that grows
        top_2, left_2 = corners(places[:, 2:4], height, width, side)  # and of the one that is emptied
        first, second = window(model, top, left, side), window(model, top_2, left_2, side)
        row = torch.arange(side, device=top.device) + top_2 - top  # of the second square, seen from the first
        column = torch.arange(side, device=top.device) + left_2 - left
        overlap = ((row >= 0) & (row < side))[:, :, None] & ((column >= 0) & (column < side))[:, None, :]
        mass = delta.gather(1, first).view(n, channels, area).abs().pow(p).sum(2, keepdim=True)
        emptied = delta.gather(1, second).view(n, channels, area).abs().pow(p)
        both = mass + emptied.masked_fill_(overlap.view(n, 1, area), 0).sum(2, keepdim=True)
        spare = (self.threat.epsilon**p - delta.abs().pow(p).sum(1)).clamp_min(0)[:, None, None] / channels
        budget = (spare + both).pow(1 / p) * (channels if p == 1 else 1)
        unit = delta.gather(1, first).view(n, channels, area) / (mass.pow(1 / p) + 1e-12)
        unit = unit + self.bumps(live.x, side, places[:, 4:]) * signs[:, :, None]
        unit = unit * (budget / (unit.norm(dim=2, p=p, keepdim=True) + 1e-12))
        delta = delta.scatter_(1, second, 0).scatter_(1, first, unit.view(n, -1))
        return self.scale_to_ball(live.x, delta)


def corners(places: Tensor, height: int, width: int, side: int) -> tuple[Tensor, Tensor]:
    """Top and left of squares from uniforms [n, 2], [n, 1] each; as in the reference, never the last of the places."""
    return (places[:, :1] * (height - side)).long(), (places[:, 1:] * (width - side)).long()


def window(model: FlatModel, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Indices of each square's pixels in its row, channel by channel, [n, C * s * s]."""
    return model.pixels[0, top, left] + model.pixels[:, :side, :side].flatten()
