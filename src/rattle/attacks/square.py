"""Square Attack (Andriushchenko et al. 2020; for l_1 Croce and Hein 2021): random search by square patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_batch
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.rows import ActiveRows, FlatModel, branch
from rattle.errors import RattleError
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.threat import Threat

MOST_PLACES = 2**16  # pixels painted at once: their indices are eight bytes each
BLOCK = 50  # queries whose random numbers are drawn at once
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries after which the patch's area halves


def patch_side(query: int, p_init: float, height: int, width: int, norm: str) -> int:
    """Side of the patch at a query: its share of the image starts at p_init and halves on a fixed schedule (Sec. 3)."""
    share = p_init / 2 ** sum(query > q for q in HALVED_AFTER)
    side = round(math.sqrt(share * height * width))
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
    halves = [pyramid(side // 2, side, power), pyramid(side - side // 2, side, power)]
    up, down = (half / half.norm(p=order).clamp_min(1e-12) for half in halves)
    patch = torch.cat([up, -down])
    return patch / patch.norm(p=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """Repaint a random square of each image and keep what lowers its margin; only logits are asked for.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> x, y = torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> x_adv = Square(threat=Threat(epsilon=0.1), queries=20)(model, x, y)
    >>> bool((x_adv - x).abs().max() <= 0.1 + 1e-6)
    True
    """

    threat: Threat = Threat()
    queries: int = 5000  # forward passes for each image and restart
    p_init: float = 0.8  # share of the image that the first patches cover
    restarts: int = 1

    def __post_init__(self) -> None:
        for name in ("queries", "restarts"):
            if getattr(self, name) < 1:
                raise RattleError(f"attack.{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.p_init <= 1:
            raise RattleError(f"attack.p_init must be in (0, 1], got {self.p_init}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        check_batch(x, y)
        if x.ndim != 4:
            raise RattleError(f"the square attack paints on images [n, C, H, W], got shape {list(x.shape)}")
        if self.threat.epsilon == 0:
            return x.clone()
        draws = streams(generator, x)
        with attack_mode(model), torch.no_grad():
            victim = FlatModel(model, x)
            flat = victim.flat(x)
            logits = victim.clean(flat, y)
            points, live = flat.clone(), (logits.argmax(1) == y).nonzero().squeeze(1)
            for restart in range(self.restarts):
                if len(live):
                    search = Search(self, victim, flat[live], y[live], branch(draws[live], restart))
                    points[live], broken = search.run()
                    live = live[~broken]
            return victim.images(points)


class Search:
    """One random search on the rows of unbroken images; each image draws its own patches."""

    def __init__(self, attack: Square, victim: FlatModel, x: Tensor, y: Tensor, draws: ImageStreams) -> None:
        self.attack, self.victim, self.threat = attack, victim, attack.threat
        self.channels, self.height, self.width = victim.shape
        self.strides = victim.images(x).stride()[1:]
        self.x, self.y, self.draws = x, y, draws
        again = [victim.logits(x[:2]) for _ in range(2)]
        self.remembers = attack.threat.norm == "linf" and self.channels <= 4 and torch.equal(*again)
        self.side, self.patch, self.span = 0, self.offsets(1), x.new_zeros(2)

    def run(self) -> tuple[Tensor, Tensor]:
        """The point of lowest margin of each image, and which images it breaks."""
        points, broken = torch.empty_like(self.x), torch.zeros_like(self.y, dtype=torch.bool)
        live = ActiveRows(row=torch.arange(len(self.y), device=self.y.device), x=self.x, y=self.y, draws=self.draws)
        live.best = self.stripes(live) if self.threat.norm == "linf" else self.tiles(live)
        live.height = losses.cw(self.victim.logits(live.best), live.y)
        if self.remembers:  # a flag for each corner and combination of signs
            live.refused = live.y.new_zeros(len(live.y), self.height * self.width << self.channels, dtype=torch.bool)
        for query in range(self.attack.queries + 1):
            hit = live.height > 0
            if bool(hit.any()):
                points[live.row[hit]], broken[live.row[hit]] = live.best[hit], True
                live.keep(~hit)
            if len(live.y) == 0 or query == self.attack.queries:
                break
            if query % BLOCK == 0:
                live.places = live.draws.uniform(BLOCK, 5).to(live.x.dtype)
                live.signs = live.draws.signs(BLOCK, self.channels).to(live.x.dtype)
                live.bits = (live.signs > 0).long() @ (2 ** torch.arange(self.channels, device=self.x.device))
            side = patch_side(query, self.attack.p_init, self.height, self.width, self.threat.norm)
            if side != self.side:
                self.resize(live, side)
            places, signs = live.places[:, query % BLOCK], live.signs[:, query % BLOCK]
            if self.threat.norm == "linf":
                self.paint(live, places, signs, live.bits[:, query % BLOCK])
            else:
                self.reshape(live, places, signs)
        points[live.row] = live.best
        return points, broken

    def resize(self, live: ActiveRows, side: int) -> None:
        """Patches of another size from here on; what was refused was of the former."""
        self.side, self.patch = side, self.offsets(side)
        self.span = self.x.new_tensor([self.height - side, self.width - side])
        if self.remembers:
            live.refused = torch.zeros_like(live.refused)

    def offsets(self, side: int) -> Tensor:
        """Where the pixels of a patch lie in a row, counted from its corner, [C * s * s]."""
        c, i, j = (torch.arange(k, device=self.x.device) for k in (self.channels, side, side))
        along_c, along_h, along_w = self.strides
        return (c[:, None, None] * along_c + i[:, None] * along_h + j * along_w).flatten()

    def corner(self, places: Tensor) -> Tensor:
        """Top left corners from uniforms, [n, 2]; as in the reference, never the last place when there are several."""
        return (places * self.span).long()

    def index(self, corner: Tensor) -> Tensor:
        """The patch's places in each row, [n, C * s * s]."""
        _, along_h, along_w = self.strides
        return (corner[:, :1] * along_h + corner[:, 1:] * along_w) + self.patch

    def stripes(self, live: ActiveRows) -> Tensor:
        """l_inf starts from vertical stripes of x +- epsilon."""
        signs = live.draws.signs(self.channels, 1, self.width).to(live.x.dtype)
        return self.victim.flat((self.victim.images(live.x) + self.threat.epsilon * signs).clamp_(0, 1))

    def paint(self, live: ActiveRows, places: Tensor, signs: Tensor, bits: Tensor) -> None:
        """l_inf: a square gets x + epsilon or x - epsilon, one sign for each channel (Algorithm 2).

        The model is not asked about a square that changes nothing, nor again about one that it has refused since
        the image last changed: the answer is known.
        """
        corner = self.corner(places[:, :2])
        rows = self.unknown(live, corner, bits)
        if len(rows) == 0:
            return
        x_new, changed = self.painted(live, rows, corner[rows], self.threat.epsilon * signs[rows])
        if not bool(changed.all()):
            rows, x_new = rows[changed], x_new[changed]
        if len(rows) == 0:
            return
        height = losses.cw(self.victim.logits(x_new), live.y[rows])
        better = (height > live.height[rows]).nonzero().squeeze(1)
        if len(better) == 0:
            return
        rows = rows[better]
        live.best[rows], live.height[rows] = x_new[better], height[better]
        if self.remembers:
            live.refused[rows] = False

    def painted(self, live: ActiveRows, rows: Tensor, corner: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """The rows' points with their squares painted, and which of them that changes; few places are held at once."""
        x_new, changed = live.best[rows], torch.empty_like(rows, dtype=torch.bool)
        count = max(1, MOST_PLACES // len(self.patch))
        for here in (slice(begin, begin + count) for begin in range(0, len(rows), count)):
            index = self.index(corner[here])
            old, new = x_new[here].gather(1, index), live.x.take(index + rows[here, None] * live.x.shape[1])
            new.view(-1, self.channels, self.side**2).add_(shift[here, :, None])
            new.clamp_(0, 1)
            x_new[here].scatter_(1, index, new)
            changed[here] = (new - old).abs_().amax(1) > 0
        return x_new, changed

    def unknown(self, live: ActiveRows, corner: Tensor, bits: Tensor) -> Tensor:
        """Rows whose square of this query has not been refused yet; they are noted as asked. The bits are its signs."""
        if not self.remembers:
            return torch.arange(len(live.y), device=self.x.device)
        square = ((corner[:, 0] * self.width + corner[:, 1]) << self.channels) + bits
        rows = (~live.refused.gather(1, square[:, None]).squeeze(1)).nonzero().squeeze(1)
        live.refused[rows, square[rows]] = True
        return rows

    def tiles(self, live: ActiveRows) -> Tensor:
        """l_2 and l_1 start from a grid of bumps of random sign and orientation (Sec. 3.3)."""
        side, x = max(self.height // 5, 1), self.victim.images(live.x)
        begin = (self.height - 5 * side) // 2 if self.height >= 5 else 0
        delta = torch.zeros_like(x)
        for top in range(begin, min(begin + self.height // side * side, self.height - side + 1), side):
            for left in range(begin, min(begin + self.width // side * side, self.width - side + 1), side):
                patch = self.patches(side, live.draws.uniform(1)).view(-1, 1, side, side)
                signs = live.draws.signs(self.channels, 1, 1).to(x.dtype)
                delta[:, :, top : top + side, left : left + side] = patch * signs
        return self.inside(live, self.victim.flat(delta))

    def patches(self, side: int, uniform: Tensor) -> Tensor:
        """Each image's bump, upright or on its side, [n, 1, s * s]."""
        upright = bump(side, self.threat.norm).to(self.x)
        return torch.where(uniform[:, :, None] > 0.5, upright.T.flatten(), upright.flatten())

    def inside(self, live: ActiveRows, delta: Tensor) -> Tensor:
        """l_2: the perturbation stretched or shrunk to epsilon, then clipped; l_1: projected on ball and box."""
        if self.threat.norm == "l1":
            return self.threat.project(live.x + delta, live.x)
        return (live.x + delta * (self.threat.epsilon / delta.norm(dim=1, keepdim=True).clamp_min(1e-12))).clamp_(0, 1)

    def reshape(self, live: ActiveRows, places: Tensor, signs: Tensor) -> None:
        """l_2 and l_1: the mass of one square moves to another, whose bump is renewed (Algorithm 3)."""
        p, n, side = (2 if self.threat.norm == "l2" else 1), len(live.y), self.side
        area = side * side
        delta = live.best - live.x
        corner, source = self.corner(places[:, :2]), self.corner(places[:, 2:4])
        first, second = self.index(corner), self.index(source)
        old, emptied = (delta.gather(1, i).view(n, -1, area).abs().pow(p) for i in (first, second))
        i, j = (torch.arange(side, device=delta.device) + (source - corner)[:, k, None] for k in (0, 1))
        overlap = ((i >= 0) & (i < side))[:, :, None] & ((j >= 0) & (j < side))[:, None, :]
        mass = old.sum(2, keepdim=True)
        both = mass + emptied.masked_fill_(overlap.view(n, 1, area), 0).sum(2, keepdim=True)
        spare = (self.threat.epsilon**p - delta.abs().pow(p).sum(1)).clamp_min(0)[:, None, None] / self.channels
        budget = (spare + both).pow(1 / p) * (self.channels if p == 1 else 1)
        unit = delta.gather(1, first).view(n, -1, area) / (mass.pow(1 / p) + 1e-12)
        unit += self.patches(side, places[:, 4:]) * signs[:, :, None]
        unit *= budget / (unit.norm(dim=2, p=p, keepdim=True) + 1e-12)
        x_new = self.inside(live, delta.scatter_(1, second, 0).scatter_(1, first, unit.view(n, -1)))
        height = losses.cw(self.victim.logits(x_new), live.y)
        better = height > live.height
        live.best = torch.where(better[:, None], x_new, live.best)
        live.height = torch.where(better, height, live.height)
