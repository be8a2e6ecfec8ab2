"""Square Attack (Andriushchenko et al. 2020; for l_1 Croce and Hein 2021): random search by square patches."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_at_least, check_batch
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.flat_model import FlatModel
from rattle.attacks.rows import ActiveRows, PerRow, spawn
from rattle.errors import RattleError
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.threat import Threat

MOST_INDICES = 2**16  # pixels changed at once: their indices are eight bytes each
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
    """Random search: propose a new square patch and accept it where the loss rises (Algorithm 1); logits only.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> x, y = torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> x_adv = Square(threat=Threat(epsilon=0.1), queries=20)(model, x, y)
    >>> bool((x_adv - x).abs().max() <= 0.1 + 1e-6)
    True
    """

    threat: Threat = Threat()
    queries: int = 5000  # forward passes for each image and restart
    p_init: float = 0.8  # share of the image that the first patches cover
    restarts: int = 1  # further searches on the images that are not broken yet

    def __post_init__(self) -> None:
        check_at_least(self, queries=1, restarts=1)
        if not 0 < self.p_init <= 1:
            raise RattleError(f"attack.p_init must be in (0, 1], got {self.p_init}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        if x.ndim != 4:
            raise RattleError(f"the square attack needs images [n, C, H, W], got shape {list(x.shape)}")
        if self.threat.epsilon == 0:
            return x.clone()
        draws = streams(generator, x)
        with attack_mode(model), torch.no_grad():
            flat_model = FlatModel(model, x)
            flat = flat_model.flat(x)
            points, active = flat.clone(), (flat_model.clean_logits(flat, y).argmax(1) == y).nonzero().squeeze(1)
            for restart in range(self.restarts):
                if len(active):
                    search = Search(self, flat_model, flat[active], y[active], spawn(draws[active], restart))
                    points[active], broken = search.run()
                    active = active[~broken]
            return flat_model.images(points)


@dataclass
class Proposals(PerRow):
    """Random numbers of the next BLOCK queries."""

    places: Tensor  # uniforms, [r, BLOCK, 5]: corner of the new patch, of the emptied one, orientation
    signs: Tensor  # of each channel, [r, BLOCK, C]
    codes: Tensor  # the signs as bits of one integer, [r, BLOCK]


@dataclass
class SquareRows(ActiveRows):
    """The search of each image."""

    draws: ImageStreams
    best: Tensor  # point of highest loss so far, [r, d]
    loss: Tensor  # its margin loss, [r]; positive where it is misclassified
    proposals: Proposals
    rejected: Tensor | None  # patches known not to raise the loss of `best`, [r, H * W * 2^C]; None: not memoized


class Search:
    """One random search on the rows of unbroken images; each image draws its own patches."""

    def __init__(self, attack: Square, flat_model: FlatModel, x: Tensor, y: Tensor, draws: ImageStreams) -> None:
        self.attack, self.flat_model, self.threat = attack, flat_model, attack.threat
        self.channels, self.height, self.width = flat_model.shape
        self.strides = flat_model.images(x).stride()[1:]
        self.resize(1, x)
        best = self.stripes(x, draws) if self.threat.norm == "linf" else self.tiles(x, draws)
        self.live = SquareRows(
            row=torch.arange(len(y), device=x.device),
            x=x,
            y=y,
            draws=draws,
            best=best,
            loss=losses.cw(flat_model.logits(best), y),
            proposals=self.propose(x, draws),
            rejected=None,
        )
        deterministic = torch.equal(flat_model.logits(x[:2]), flat_model.logits(x[:2]))
        if self.threat.norm == "linf" and self.channels <= 4 and deterministic:
            self.live.rejected = y.new_zeros(len(y), self.height * self.width << self.channels, dtype=torch.bool)

    def run(self) -> tuple[Tensor, Tensor]:
        """The point of highest loss of each image, and which images it breaks."""
        live = self.live
        points, broken = torch.empty_like(live.x), torch.zeros_like(live.y, dtype=torch.bool)
        for query in range(self.attack.queries + 1):
            hit = live.loss > 0
            if bool(hit.any()):
                points[live.row[hit]], broken[live.row[hit]] = live.best[hit], True
                live.select(~hit)
            if len(live) == 0 or query == self.attack.queries:
                break
            number = query % BLOCK
            if query and number == 0:
                live.proposals = self.propose(live.x, live.draws)
            side = patch_side(query, self.attack.p_init, self.height, self.width, self.threat.norm)
            if side != self.side:
                self.resize(side, live.x)
                if live.rejected is not None:  # they were patches of the former size
                    live.rejected = torch.zeros_like(live.rejected)
            places, signs = live.proposals.places[:, number], live.proposals.signs[:, number]
            if self.threat.norm == "linf":
                self.propose_linf(live, places, signs, live.proposals.codes[:, number])
            else:
                self.propose_lp(live, places, signs)
        points[live.row] = live.best
        return points, broken

    def propose(self, x: Tensor, draws: ImageStreams) -> Proposals:
        """Draw the random numbers of the next BLOCK queries."""
        places, signs = draws.uniform(BLOCK, 5).to(x.dtype), draws.signs(BLOCK, self.channels).to(x.dtype)
        return Proposals(places, signs, (signs > 0).long() @ (2 ** torch.arange(self.channels, device=x.device)))

    def resize(self, side: int, x: Tensor) -> None:
        """Use patches of this side: where their pixels lie in a row, counted from the corner, [C * s * s]."""
        c, i, j = (torch.arange(k, device=x.device) for k in (self.channels, side, side))
        along_c, along_h, along_w = self.strides
        self.patch = (c[:, None, None] * along_c + i[:, None] * along_h + j * along_w).flatten()
        self.side, self.span = side, x.new_tensor([self.height - side, self.width - side])

    def corner(self, places: Tensor) -> Tensor:
        """Top left corners from uniforms, [n, 2]; as in the reference, never the last place when there are several."""
        return (places * self.span).long()

    def index(self, corner: Tensor) -> Tensor:
        """Indices of the patch's pixels in each row, [n, C * s * s]."""
        _, along_h, along_w = self.strides
        return (corner[:, :1] * along_h + corner[:, 1:] * along_w) + self.patch

    def stripes(self, x: Tensor, draws: ImageStreams) -> Tensor:
        """l_inf starts from vertical stripes of x +- epsilon."""
        signs = draws.signs(self.channels, 1, self.width).to(x.dtype)
        return self.flat_model.flat((self.flat_model.images(x) + self.threat.epsilon * signs).clamp_(0, 1))

    def propose_linf(self, live: SquareRows, places: Tensor, signs: Tensor, codes: Tensor) -> None:
        """l_inf: a square gets x + epsilon or x - epsilon, one sign for each channel (Algorithm 2).

        The model is not called for a square that changes nothing, nor again for one that was rejected since the
        image last changed: the answer is known.
        """
        corner = self.corner(places[:, :2])
        rows = self.not_rejected(live, corner, codes)
        if len(rows) == 0:
            return
        x_new, changed = self.with_square(live, rows, corner[rows], self.threat.epsilon * signs[rows])
        if not bool(changed.all()):
            rows, x_new = rows[changed], x_new[changed]
        if len(rows) == 0:
            return
        loss = losses.cw(self.flat_model.logits(x_new), live.y[rows])
        better = (loss > live.loss[rows]).nonzero().squeeze(1)
        rows = rows[better]
        if len(rows) == 0:
            return
        live.best[rows], live.loss[rows] = x_new[better], loss[better]
        if live.rejected is not None:
            live.rejected[rows] = False

    def not_rejected(self, live: SquareRows, corner: Tensor, codes: Tensor) -> Tensor:
        """Rows whose square has not been rejected yet; marks it as rejected until `best` changes."""
        if live.rejected is None:
            return torch.arange(len(live), device=live.x.device)
        square = ((corner[:, 0] * self.width + corner[:, 1]) << self.channels) + codes
        rows = (~live.rejected.gather(1, square[:, None]).squeeze(1)).nonzero().squeeze(1)
        live.rejected[rows, square[rows]] = True
        return rows

    def with_square(self, live: SquareRows, rows: Tensor, corner: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """The best points of these rows with a square of x + shift, and which of them it changes; in small parts."""
        x_new, changed = live.best[rows], torch.empty_like(rows, dtype=torch.bool)
        count = max(1, MOST_INDICES // len(self.patch))
        for part in (slice(begin, begin + count) for begin in range(0, len(rows), count)):
            index = self.index(corner[part])
            old, new = x_new[part].gather(1, index), live.x.take(index + rows[part, None] * live.x.shape[1])
            new.view(-1, self.channels, self.side**2).add_(shift[part, :, None])
            new.clamp_(0, 1)
            x_new[part].scatter_(1, index, new)
            changed[part] = (new - old).abs_().amax(1) > 0
        return x_new, changed

    def tiles(self, x: Tensor, draws: ImageStreams) -> Tensor:
        """l_2 and l_1 start from a grid of bumps of random sign and orientation (Sec. 3.3)."""
        side, images = max(self.height // 5, 1), self.flat_model.images(x)
        begin = (self.height - 5 * side) // 2 if self.height >= 5 else 0
        delta = torch.zeros_like(images)
        for top in range(begin, min(begin + self.height // side * side, self.height - side + 1), side):
            for left in range(begin, min(begin + self.width // side * side, self.width - side + 1), side):
                patch = self.bumps(x, side, draws.uniform(1)).view(-1, 1, side, side)
                signs = draws.signs(self.channels, 1, 1).to(x.dtype)
                delta[:, :, top : top + side, left : left + side] = patch * signs
        return self.scale_to_ball(x, self.flat_model.flat(delta))

    def bumps(self, x: Tensor, side: int, uniform: Tensor) -> Tensor:
        """Each image's bump, transposed where its uniform exceeds 1/2, [n, 1, s * s]."""
        upright = bump(side, self.threat.norm).to(x)
        return torch.where(uniform[:, :, None] > 0.5, upright.T.flatten(), upright.flatten())

    def scale_to_ball(self, x: Tensor, delta: Tensor) -> Tensor:
        """l_2: the perturbation scaled to length epsilon, then clipped; l_1: projected on ball and box."""
        if self.threat.norm == "l1":
            return self.threat.project(x + delta, x)
        return (x + delta * (self.threat.epsilon / delta.norm(dim=1, keepdim=True).clamp_min(1e-12))).clamp_(0, 1)

    def propose_lp(self, live: SquareRows, places: Tensor, signs: Tensor) -> None:
        """l_2 and l_1: the mass of one square moves to another, whose bump is renewed (Algorithm 3)."""
        p, n, area = (2 if self.threat.norm == "l2" else 1), len(live), self.side * self.side
        delta = live.best - live.x
        corner, source = self.corner(places[:, :2]), self.corner(places[:, 2:4])
        first, second = self.index(corner), self.index(source)
        old, emptied = (delta.gather(1, i).view(n, -1, area).abs().pow(p) for i in (first, second))
        i, j = (torch.arange(self.side, device=delta.device) + (source - corner)[:, k, None] for k in (0, 1))
        overlap = ((i >= 0) & (i < self.side))[:, :, None] & ((j >= 0) & (j < self.side))[:, None, :]
        mass = old.sum(2, keepdim=True)
        both = mass + emptied.masked_fill_(overlap.view(n, 1, area), 0).sum(2, keepdim=True)
        spare = (self.threat.epsilon**p - delta.abs().pow(p).sum(1)).clamp_min(0)[:, None, None] / self.channels
        budget = (spare + both).pow(1 / p) * (self.channels if p == 1 else 1)
        unit = delta.gather(1, first).view(n, -1, area) / (mass.pow(1 / p) + 1e-12)
        unit += self.bumps(live.x, self.side, places[:, 4:]) * signs[:, :, None]
        unit *= budget / (unit.norm(dim=2, p=p, keepdim=True) + 1e-12)
        x_new = self.scale_to_ball(live.x, delta.scatter_(1, second, 0).scatter_(1, first, unit.view(n, -1)))
        loss = losses.cw(self.flat_model.logits(x_new), live.y)
        better = loss > live.loss
        live.best = torch.where(better[:, None], x_new, live.best)
        live.loss = torch.where(better, loss, live.loss)
