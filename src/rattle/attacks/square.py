"""Square Attack (Andriushchenko et al. 2020; for l_1 Croce and Hein 2021): random search by square patches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_at_least
from rattle.attacks.keeping import kept
from rattle.attacks.patches import Answer, Patches
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs, is_small
from rattle.errors import RattleError
from rattle.inputs import check_batch, finite
from rattle.randomness import ImageStreams, Randomness
from rattle.threat import Threat

MOST_INDICES = 2**16  # pixels changed at once: their indices are eight bytes each
BLOCK = 50  # queries whose random numbers are drawn at once
ROWS, AHEAD = 256, 4  # few images ask up to AHEAD queries at once, about ROWS in all; 5 % of them are asked in vain
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries after which the patch's area halves


def patch_side(query: int, p_init: float, height: int, width: int, norm: str) -> int:
    """Side of the patch at a query: its share of the image starts at p_init and halves on a fixed schedule (Sec. 3)."""
    side = round(math.sqrt(p_init / 2 ** sum(query > q for q in HALVED_AFTER) * height * width))
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
    """Random search: propose a new square patch and accept it where the loss rises (Algorithm 1); logits only."""

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
        return best_of_runs(self, model, x, y, generator)

    @torch.no_grad()
    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """One random search: the point of highest loss of each image; of several searches the last one's."""
        result, live = RunResult(rows.x), Search(self, model, rows, draws)
        for _ in kept("steps", range(self.queries + 1), live, result):
            result.pack_broken(live, live.best, live.loss > 0)
            if len(live.y) == 0 or int(live.at.min()) == self.queries:
                break
            live.propose()
        return result.record(live, live.best, torch.full_like(live.loss, restart))


class Search(TargetRows):
    """The variables of one random search; each image draws its own patches."""

    def __init__(self, attack: Square, model: FlatModel, rows: TargetRows, draws: ImageStreams) -> None:
        super().__init__(**vars(rows))
        self.attack, self.threat, self.model, self.draws = attack, attack.threat, model, draws
        (self.channels, self.height, self.width), self.side = model.shape, 1
        self.best = self.stripes() if self.threat.norm == "linf" else self.tiles()  # point of highest loss, [n, d]
        self.loss = losses.cw(model.logits(self.best), self.y)  # positive where it is misclassified, [n]
        self.places = self.signs = self.loss  # of the next queries, see `propose`; a stored state has these types
        self.first = self.squares = self.y
        self.rejected = None  # patches that did not raise the loss of `best`, [n, H * W * 2^C]; None: not memoized
        self.at, self.stop = torch.zeros_like(self.y), 0  # next query of each image, and where they wait for each other
        self.most = max(len(self.y), ROWS if is_small(self.x) else 0)  # rows in a pass
        deterministic = torch.equal(model.logits(self.x[:2]), model.logits(self.x[:2]))
        self.known = self.x.new_empty(len(self.y), 0)  # layers' answers to `best`; empty: whole passes are taken
        self.patches = Patches(model, self.x) if self.threat.norm == "linf" and deterministic else None
        if self.threat.norm == "linf" and self.channels <= 4 and deterministic:
            self.rejected = self.y.new_zeros(len(self.y), self.height * self.width << self.channels, dtype=torch.bool)

    def propose(self) -> None:
        """Change a patch of each image and keep the change where the loss rises; of few images several in turn."""
        query = int(self.at.min())
        if query == self.stop:
            self.begin(query)
        if self.threat.norm == "linf":
            self.propose_linf()
        else:
            self.propose_lp(self.places[:, query % BLOCK], self.signs[:, query % BLOCK])
            self.at += 1

    def begin(self, query: int) -> None:
        """Prepare the queries up to `stop`: those of a block whose patches have one size."""
        side = self.side_at(query)
        if query % BLOCK == 0:  # draw uniforms of two corners and an orientation, and signs of the channels
            self.places = self.draws.uniform(BLOCK, 5).to(self.x.dtype)
            self.signs = self.draws.signs(BLOCK, self.channels).to(self.x.dtype)
        if side != self.side and self.rejected is not None:
            self.rejected = torch.zeros_like(self.rejected)
        if side != self.side and self.patches is not None:
            self.known = self.patches.begin(self.best, side, self.ahead(len(self.y)))
        self.side = side
        corners = self.corner(self.places[:, :, :2])
        self.first = self.model.pixels[0, corners[..., 0], corners[..., 1]]
        codes = (self.signs > 0).long() @ (2 ** torch.arange(self.channels, device=self.x.device))
        self.squares = ((corners[..., 0] * self.width + corners[..., 1]) << self.channels) + codes
        end = min(query - query % BLOCK + BLOCK, self.attack.queries)
        self.stop = next((later for later in range(query + 1, end) if self.side_at(later) != side), end)

    def side_at(self, query: int) -> int:
        return patch_side(query, self.attack.p_init, self.height, self.width, self.threat.norm)

    def ahead(self, images: int) -> int:
        """How many queries an image asks at once: passes of few images are slow, and after the first ones most fail."""
        return 1 if self.patches is None or self.stop <= BLOCK else max(1, min(AHEAD, self.most // images))

    def corner(self, places: Tensor) -> Tensor:
        """Top left corners from uniforms, [..., 2]; as in the reference, never the last of several places."""
        return (places * places.new_tensor([self.height - self.side, self.width - self.side])).long()

    def index(self, corner: Tensor) -> Tensor:
        """Indices of the patch's pixels in each row, [n, C * s * s]."""
        pixels = self.model.pixels
        return pixels[0, corner[:, :1], corner[:, 1:]] + pixels[:, : self.side, : self.side].flatten()

    def stripes(self) -> Tensor:
        """l_inf starts from vertical stripes of x +- epsilon."""
        signs = self.draws.signs(self.channels, 1, self.width).to(self.x.dtype)
        return self.model.flat((self.model.images(self.x) + self.threat.epsilon * signs).clamp_(0, 1))

    def propose_linf(self) -> None:
        """l_inf: a square gets x + epsilon or x - epsilon, one sign for each channel (Algorithm 2).

        Each image asks its next queries at once, each as if those before it failed; where one did not, those after it
        are asked again. A square that changes nothing or was rejected since the image last changed is not tried: the
        answer is known.
        """
        rows = (self.at < self.stop).nonzero().squeeze(1)
        ahead = self.ahead(len(rows))
        query = (self.at[rows, None] + torch.arange(ahead, device=rows.device)).flatten()
        row, query = self.unknown(rows.repeat_interleave(ahead), query)
        success = self.ask(row, query)[rows]
        self.at[rows] = torch.where(success < self.stop, success + 1, self.at[rows] + ahead).clamp_max_(self.stop)

    def unknown(self, row: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Those queries before `stop` that were not rejected yet; marks them until `best` changes."""
        row, query = (each[query < self.stop] for each in (row, query))
        if self.rejected is None:
            return row, query
        square = self.squares[row, query % BLOCK]
        new = ~self.rejected[row, square]
        self.rejected[row, square] = True
        return row[new], query[new]

    def ask(self, row: Tensor, query: Tensor) -> Tensor:
        """Make the first change of each image that raises its loss; the numbers of those queries [n], else `stop`."""
        success, place = torch.full_like(self.y, self.stop), query % BLOCK
        first = self.first[row, place] + row * self.x.shape[1]
        old, new = self.squares_at(first, self.threat.epsilon * self.signs[row, place])
        if not bool((changed := (new != old).any(1)).all()):
            row, query, place, first, old, new = (each[changed] for each in (row, query, place, first, old, new))
        if len(row) == 0:
            return success
        loss, answer = self.loss_of_squares(row, place, old, new)
        better = loss > self.loss[row]
        success.scatter_reduce_(0, row[better], query[better], "amin")
        better &= query == success[row]
        self.loss[row[better]] = loss[better]
        self.write(self.best, first[better], new[better])
        if answer is not None:
            answer.accept(better)
        if self.rejected is not None:
            self.rejected[row[better]] = False
        return success

    def loss_of_squares(self, row: Tensor, place: Tensor, old: Tensor, new: Tensor) -> tuple[Tensor, Answer | None]:
        """The loss of rows of `best` with new squares for old ones, and the answer of `patches` where it was asked."""
        if self.patches is None or self.known.shape[1] == 0:
            return losses.cw(self.logits(row, place, old, new), self.y[row]), None
        where = self.squares[row, place] >> self.channels
        corner = torch.stack([where // self.width, where % self.width], 1)
        patch = new.view(-1, self.channels, self.side, self.side)
        answer = self.patches.answer(self.known, self.side, row, corner, patch)
        loss = losses.cw(finite(answer.logits), self.y[row])
        broken = loss > 0
        if bool(broken.any()):  # the network itself decides whether an image is broken
            logits = self.logits(*(each[broken] for each in (row, place, old, new)))
            loss[broken] = losses.cw(logits, self.y[row[broken]])
        return loss, answer

    def logits(self, row: Tensor, place: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """Of whole images; where each is asked once they are changed in place and back, so that none is copied."""
        in_place = len(row) == len(self.best) and bool((row.diff() > 0).all())
        images, at = (self.best, row) if in_place else (self.best[row], torch.arange(len(row), device=row.device))
        first = self.first[row, place] + at * images.shape[1]
        self.write(images, first, new)
        logits = self.model.logits(images)
        if in_place:
            self.write(images, first, old)
        return logits

    def pixels_of(self, first: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """From their first pixels the indices of squares in all images laid end to end, in parts of bounded size."""
        square = self.model.pixels[:, : self.side, : self.side].flatten()
        count = max(1, MOST_INDICES // len(square))
        for part in (slice(begin, begin + count) for begin in range(0, len(first), count)):
            yield part, first[part, None] + square

    def squares_at(self, first: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """What squares hold in `best`, and what x + shift puts there, each [n, C * s * s]."""
        old = self.best.new_empty(len(first), self.channels * self.side**2)
        new = torch.empty_like(old)
        for part, index in self.pixels_of(first):
            old[part], new[part] = self.best.take(index), self.x.take(index)
        new.view(-1, self.channels, self.side**2).add_(shift[:, :, None])
        return old, new.clamp_(0, 1)

    def write(self, images: Tensor, first: Tensor, values: Tensor) -> None:
        for part, index in self.pixels_of(first):
            images.view(-1).scatter_(0, index.flatten(), values[part].flatten())

    def tiles(self) -> Tensor:
        """l_2 and l_1 start from a grid of bumps of random sign and orientation (Sec. 3.3)."""
        side, images = max(self.height // 5, 1), self.model.images(self.x)
        begin = (self.height - 5 * side) // 2 if self.height >= 5 else 0
        delta = torch.zeros_like(images)
        for top in range(begin, min(begin + self.height // side * side, self.height - side + 1), side):
            for left in range(begin, min(begin + self.width // side * side, self.width - side + 1), side):
                patch = self.bumps(side, self.draws.uniform(1)).view(-1, 1, side, side)
                signs = self.draws.signs(self.channels, 1, 1).to(self.x.dtype)
                delta[:, :, top : top + side, left : left + side] = patch * signs
        return self.scale_to_ball(self.model.flat(delta))

    def bumps(self, side: int, uniform: Tensor) -> Tensor:
        """Each image's bump, transposed where its uniform exceeds 1/2, [n, 1, s * s]."""
        upright = bump(side, self.threat.norm).to(self.x)
        return torch.where(uniform[:, :, None] > 0.5, upright.T.flatten(), upright.flatten())

    def scale_to_ball(self, delta: Tensor) -> Tensor:
        """l_2: the perturbation scaled to length epsilon, then clipped; l_1: projected on ball and box."""
        if self.threat.norm == "l1":
            return self.threat.project(self.x + delta, self.x)
        return (self.x + delta * (self.threat.epsilon / delta.norm(dim=1, keepdim=True).clamp_min(1e-12))).clamp_(0, 1)

    def propose_lp(self, places: Tensor, signs: Tensor) -> None:
        """l_2 and l_1: the mass of one square moves to another, whose bump is renewed (Algorithm 3)."""
        p, n, area = (2 if self.threat.norm == "l2" else 1), len(self.y), self.side * self.side
        delta = self.best - self.x
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
        unit += self.bumps(self.side, places[:, 4:]) * signs[:, :, None]
        unit *= budget / (unit.norm(dim=2, p=p, keepdim=True) + 1e-12)
        x_new = self.scale_to_ball(delta.scatter_(1, second, 0).scatter_(1, first, unit.view(n, -1)))
        loss = losses.cw(self.model.logits(x_new), self.y)
        better = loss > self.loss
        self.best = torch.where(better[:, None], x_new, self.best)
        self.loss = torch.where(better, loss, self.loss)
