"""FAB, the fast adaptive boundary attack (Croce and Hein 2020, arXiv 1907.02044), plain and targeted."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs
from rattle.inputs import check_batch, input_gradient
from rattle.randomness import ImageStreams, Randomness
from rattle.settings import Count, CountOrZero, OneOrMore, PositiveShare, Share, check_settings
from rattle.threat import Norm, Threat

MOST_NEWTON_STEPS = 1000  # about ten are needed; a gradient that overflowed would never converge
DUAL: dict[Norm, float] = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}  # the norm that measures a plane's distance


def dot(a: Tensor, b: Tensor) -> Tensor:
    """<a_i, b_i> of each row, [n, 1], in one pass."""
    return torch.linalg.vecdot(a, b)[:, None]


def project_to_hyperplane(x: Tensor, w: Tensor, gap: Tensor, norm: Norm) -> Tensor:
    """The smallest d, in `norm`, with <w, x + d> = <w, x> - gap and x + d in [0, 1] (eq. 6); the most the box allows.

    Every coordinate moves against sign(gap) w, for l_inf by the same amount, for l_2 in proportion to |w|, each until
    it meets the box (`solve_level`). For l_1 the coordinates of largest |w| go first (`fill_greedy`).
    """
    direction, size, amount = -gap.sign() * w.sign(), w.abs(), gap.abs()
    room = (0.5 - x).mul_(direction).add_(0.5)  # 1 - x upwards, x downwards; where() takes 10 times as long
    if norm == "l1":
        return direction * fill_greedy(size, room, amount)
    return direction * solve_level(size, size if norm == "l2" else None, room, amount)


def solve_level(size: Tensor, rate: Tensor | None, room: Tensor, amount: Tensor) -> Tensor:
    """min(level * rate, room) with <size, .> = amount, the level by Newton's method from the left; no sorting.

    A tangent of a concave function lies above it, so no step overshoots. `rate` None stands for ones.
    """
    slopes = size if rate is None else size * rate
    level, free = amount / slopes.sum(1, keepdim=True).clamp_min(1e-30), torch.empty_like(room)
    filled = torch.zeros_like(room)
    for _ in range(MOST_NEWTON_STEPS):
        wanted = level if rate is None else rate * level
        filled = torch.minimum(wanted, room)
        short = amount - dot(size, filled)
        slope = dot(slopes, torch.lt(wanted, room, out=free))
        if bool(((short <= 1e-5 * amount) | (slope == 0)).all()):
            break
        level = (level + short.clamp_min(0) / slope.clamp_min(1e-30)).clamp_max(1e12)
    return filled


def fill_greedy(size: Tensor, room: Tensor, amount: Tensor) -> Tensor:
    """The 0 <= d <= room of least sum with <size, d> = amount: fill up the coordinates of largest size first."""
    size, order = size.sort(1, descending=True)
    capacity = size * room.gather(1, order)
    spent = torch.minimum((amount - capacity.cumsum(1) + capacity).clamp_min(0), capacity)
    return torch.zeros_like(room).scatter_(1, order, spent / size.clamp_min(1e-30))


def linear_boundaries(
    model: FlatModel, points: Tensor, y: Tensor, classes: Tensor | None, norm: Norm
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of one column of `classes` [n, k] after the other (None: all wrong ones), at these points: the margin [n, 1],
    its gradient [n, d] and how far the boundary would be if the model were linear, [n, 1]. One forward pass in all."""
    leaf = points.detach().requires_grad_()
    logits = model.logits(leaf)
    if classes is None:  # counted from the label on, so that the label's own gradient is not computed
        classes = (y[:, None] + torch.arange(1, logits.shape[1], device=y.device)) % logits.shape[1]
    for k, target in enumerate(classes.T):
        f = losses.cw_targeted(logits, y, target)
        w = input_gradient(f.sum(), leaf, keep_graph=k + 1 < classes.shape[1])
        f = f.detach()[:, None]
        yield f, w, f.abs() / (w.norm(dim=1, p=DUAL[norm], keepdim=True) + 1e-12)


@dataclass
class FABRows(TargetRows):
    """The variables of Algorithm 1."""

    x_adv: Tensor  # current point, [r, d]
    nearest: Tensor  # adversarial point nearest to x so far, [r, d]
    distance: Tensor  # of that point, [r]; inf before there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class FAB:
    """Follow the linearised boundary towards the image (Algorithm 1), until an adversarial point is in the ball."""

    threat: Threat = Threat()
    targets: CountOrZero = 9  # the most likely wrong classes, one run each; 0: towards the nearest boundary
    steps: Count = 100  # steps of each run
    restarts: Count = 1  # the first run starts at the image, further ones at random within half the ball
    alpha_max: Share = 0.1  # largest weight of the projection of the image itself
    overshoot: OneOrMore = 1.05  # eta: how far beyond the boundary a step goes
    backward: PositiveShare = 0.9  # beta: how far back towards the image after a success

    def __post_init__(self) -> None:
        check_settings(self, "attack")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        return best_of_runs(self, model, x, y, generator, targets=self.targets)

    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """The nearest adversarial point of each row, moved into the ball, with minus its distance as score."""
        result = RunResult(rows.x)
        start = rows.x if restart == 0 else (rows.x + self.threat.random_start(rows.x, draws)) / 2
        nowhere = torch.full_like(rows.x[:, 0], torch.inf)
        live = FABRows(**vars(rows), x_adv=start, nearest=rows.x.clone(), distance=nowhere)
        for _ in range(self.steps):
            margin, w = self.boundary(model, live)
            live.x_adv = self.step(live, margin, w)
            with torch.no_grad():
                adversarial = model.logits(live.x_adv).argmax(1) != live.y
            distance = self.threat.distance(live.x_adv, live.x)
            nearer = adversarial & (distance < live.distance)
            live.nearest[nearer], live.distance[nearer] = live.x_adv[nearer], distance[nearer]
            live.x_adv[adversarial] = torch.lerp(live.x[adversarial], live.x_adv[adversarial], self.backward)
            result.pack_broken(live, live.nearest, live.distance <= self.threat.epsilon)
            if len(live.y) == 0:
                break
        return result.record(live, self.threat.project(live.nearest, live.x), -live.distance)

    def step(self, live: FABRows, margin: Tensor, w: Tensor) -> Tensor:
        """Eq. (9): project x' and x on the plane, overshoot, and mix the two by their distances to it."""
        here = project_to_hyperplane(live.x_adv, w, margin, self.threat.norm)
        there = project_to_hyperplane(live.x, w, margin + dot(w, live.x - live.x_adv), self.threat.norm)
        zero = here.new_zeros(())
        a = self.threat.distance(here, zero).clamp_min_(1e-8)[:, None]
        b = self.threat.distance(there, zero).clamp_min_(1e-8)[:, None]
        alpha = (a / (a + b)).clamp_max(self.alpha_max)
        from_here = live.x_adv.add(here, alpha=self.overshoot)
        from_x = live.x.add(there, alpha=self.overshoot)
        return torch.lerp(from_here, from_x, alpha).clamp_(0, 1)

    def boundary(self, model: FlatModel, live: FABRows) -> tuple[Tensor, Tensor]:
        """Margin [n, 1] and its gradient [n, d] for the target, or for the class of nearest linear boundary (eq. 8)."""
        if self.targets:
            target = live.target[:, None]
            margin, w, _ = next(linear_boundaries(model, live.x_adv, live.y, target, self.threat.norm))
            return margin, w
        nearest = live.x.new_full((len(live.y), 1), torch.inf)
        margin, w = torch.zeros_like(nearest), torch.zeros_like(live.x)
        for f, gradient, away in linear_boundaries(model, live.x_adv, live.y, None, self.threat.norm):
            closer = away < nearest
            nearest = torch.where(closer, away, nearest)
            margin = torch.where(closer, f, margin)
            w = torch.where(closer, gradient, w)
        return margin, w
