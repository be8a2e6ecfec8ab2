"""Auto-PGD (Croce and Hein 2020, Algorithm 1; for l_1 Croce and Hein 2021): PGD that sets its own step size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_batch
from rattle.attacks.batchnorm import attack_mode
from rattle.attacks.rows import ActiveRows, FlatModel, best_of_runs
from rattle.errors import RattleError
from rattle.randomness import ImageStreams, Randomness
from rattle.threat import Threat

Loss = Literal["ce", "dlr", "dlr-targeted"]
Height = Callable[[Tensor, Tensor, Tensor], Tensor]  # (logits, y, target) -> [n], the larger the worse for the model

HEIGHTS: dict[str, Height] = {
    "ce": lambda z, y, _: losses.ce(z, y),
    "cw": lambda z, y, _: losses.cw(z, y),
    "dlr": lambda z, y, _: losses.dlr(z, y),
    "cw-targeted": losses.cw_targeted,
    "dlr-targeted": losses.dlr_targeted,
}
FEWEST_CLASSES = {"ce": 2, "dlr": 3, "dlr-targeted": 4}  # what each loss needs
MOMENTUM = 0.75  # alpha of eq. (4)
STAGES = ((3, 0.3), (2, 0.3), (1, 0.4))  # l_1: radii in epsilons and shares of the steps (Croce and Hein 2021, Sec. 3)


def defined(loss: str, classes: int) -> str:
    """The loss itself, or the margin that DLR rescales when there are too few classes for DLR."""
    return loss if classes >= FEWEST_CLASSES[loss] else loss.replace("dlr", "cw")


def checkpoints(steps: int) -> set[int]:
    """After which steps the step size is reconsidered: gaps of 22 %, falling by 3 % to 6 % of the steps (Sec. 3)."""
    gap, fall, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    found, step = set(), gap
    while step <= steps:
        found.add(step)
        gap = max(gap - fall, least)
        step += gap
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class APGD:
    """Momentum PGD that halves its step and returns to its best point when the loss stops rising.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> x_adv = APGD(threat=Threat(epsilon=0.1), loss="dlr", steps=10)(model, x, y)
    >>> bool((x_adv - x).abs().max() <= 0.1 + 1e-6)
    True
    """

    threat: Threat = Threat()
    loss: Loss = "ce"  # what is climbed; with too few classes for DLR, the margin that it rescales
    targets: int = 9  # dlr-targeted: the most likely wrong classes, one run each; at most C - 1
    steps: int = 100
    restarts: int = 1  # runs from random points; images broken by one take no part in the next
    eot: int = 1  # gradients averaged at each step, for models that draw at random
    rho: float = 0.75  # a step is kept while the loss rose in more than this share of the steps since the last check
    shrinking: bool = False  # l_1: climb in 3 epsilon, then 2, then 1

    def __post_init__(self) -> None:
        for name in ("targets", "steps", "restarts", "eot"):
            if getattr(self, name) < 1:
                raise RattleError(f"attack.{name} must be >= 1, got {getattr(self, name)}")
        if self.loss not in FEWEST_CLASSES:
            raise RattleError(f"attack.loss must be ce, dlr or dlr-targeted, got {self.loss!r}")
        if not 0 <= self.rho <= 1:
            raise RattleError(f"attack.rho must be in [0, 1], got {self.rho}")
        if self.shrinking and self.threat.norm != "l1":
            raise RattleError(f"attack.shrinking is for the l1 threat, got {self.threat.norm}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        check_batch(x, y)
        if self.threat.epsilon == 0:
            return x.clone()
        targets = self.targets if self.loss == "dlr-targeted" else 0
        with attack_mode(model):  # a row of a climb takes more memory than an image of the reference's: hold fewer
            return best_of_runs(self.run, model, x, y, generator, targets=targets, restarts=self.restarts, share=0.75)

    def run(self, victim: FlatModel, rows: ActiveRows, draws: ImageStreams, *, restart: int) -> tuple[Tensor, Tensor]:
        """One start; with `shrinking`, through balls of falling radius, of which only the last counts."""
        if not self.shrinking:
            return self.climb(victim, self.threat, rows, self.threat.random_start(rows.x, draws), self.steps)
        start, left = rows.x + draws.normal(rows.x.shape[1]).to(rows.x.dtype), self.steps
        for factor, share in STAGES:
            threat = replace(self.threat, epsilon=factor * self.threat.epsilon)
            steps = left if factor == 1 else min(left, math.ceil(share * self.steps))
            left -= steps
            start = threat.project(start, rows.x)
            if factor == 1:
                return self.climb(victim, threat, rows, start, steps, warm=True)
            start, _ = self.climb(victim, threat, rows, start, steps, warm=True, leave=False)
        raise AssertionError("the last stage returns")

    def climb(
        self,
        victim: FlatModel,
        threat: Threat,
        rows: ActiveRows,
        start: Tensor,
        steps: int,
        *,
        warm: bool = False,
        leave: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 1 from `start`: the highest point of each row and its loss, inf where it is misclassified."""
        points, heights = start.clone(), start.new_full((len(start),), -torch.inf)
        live = ActiveRows(**vars(rows), row=torch.arange(len(start), device=start.device), x_adv=start, x_old=start)
        logits, live.loss, live.gradient = self.look(victim, live, gradient=True)
        live.best, live.best_gradient, live.best_loss = live.x_adv.clone(), live.gradient.clone(), live.loss
        schedule = (
            Sparsity(threat, steps, live, warm) if threat.norm == "l1" else Halving(threat, steps, live, self.rho)
        )
        for step in range(steps + 1):
            if leave:
                hit = logits.argmax(1) != live.y
                if bool(hit.any()):
                    points[live.row[hit]], heights[live.row[hit]] = live.x_adv[hit], torch.inf
                    broken = hit.new_zeros(int(rows.image.max()) + 1).index_fill_(0, live.image[hit], True)
                    live.keep(~broken[live.image])
            if len(live.y) == 0 or step == steps:
                break
            x_new = schedule.step(live, first=step == 0)
            live.x_old, live.x_adv = live.x_adv, x_new
            before = live.loss
            logits, live.loss, live.gradient = self.look(victim, live, gradient=step + 1 < steps)
            higher = (live.loss > live.best_loss).nonzero().squeeze(1)
            live.best[higher], live.best_gradient[higher] = live.x_adv[higher], live.gradient[higher]
            live.best_loss = torch.maximum(live.loss, live.best_loss)
            schedule.after(live, step + 1, live.loss > before)
        points[live.row], heights[live.row] = live.best, live.best_loss
        return points, heights

    def look(self, victim: FlatModel, live: ActiveRows, *, gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, loss [n] and its gradient [n, d] at x_adv; the gradient averaged over `eot` draws of the model."""
        total, times = live.x_adv.new_zeros(()), self.eot if gradient else 1
        while True:
            with torch.set_grad_enabled(gradient):
                leaf = live.x_adv.detach().requires_grad_(gradient)
                logits = victim.logits(leaf)
                loss = HEIGHTS[defined(self.loss, logits.shape[1])](logits, live.y, live.target)
            if gradient:
                total = total + torch.autograd.grad(loss.sum() / self.eot, leaf)[0]
            times -= 1
            if times == 0:
                return logits.detach(), loss.detach(), total.expand_as(live.x_adv)


class Halving:
    """The step-size rule for l_inf and l_2 (Sec. 3, conditions 1 and 2)."""

    def __init__(self, threat: Threat, steps: int, live: ActiveRows, rho: float) -> None:
        self.threat, self.rho, self.checks, self.last_check = threat, rho, checkpoints(steps), 0
        live.step_size = torch.full_like(live.loss, 2 * threat.epsilon)
        live.rises = torch.zeros_like(live.loss)
        live.loss_at_check, live.halved = live.best_loss, torch.ones_like(live.loss, dtype=torch.bool)
        if threat.norm == "linf":  # here the projection is a clamp, whose bounds stay
            live.low, live.high = (live.x - threat.epsilon).clamp_(0, 1), (live.x + threat.epsilon).clamp_(0, 1)

    def step(self, live: ActiveRows, *, first: bool) -> Tensor:
        """Eq. (4): a projected step, then momentum, projected again."""
        z = self.inside(live, self.threat.ascend(live.x_adv, live.gradient, live.step_size[:, None]))
        if first:
            return z
        a = MOMENTUM  # x' + a (z - x') + (1 - a) (x' - x'_old), in place
        return self.inside(live, z.mul_(a).add_(live.x_adv, alpha=2 - 2 * a).sub_(live.x_old, alpha=1 - a))

    def inside(self, live: ActiveRows, z: Tensor) -> Tensor:
        if self.threat.norm == "linf":
            return torch.clamp(z, live.low, live.high, out=z)
        return self.threat.project(z, live.x)

    def after(self, live: ActiveRows, step: int, rose: Tensor) -> None:
        """At a checkpoint, halve the step and go back to the best point where the loss has stalled."""
        live.rises = live.rises + rose
        if step not in self.checks:
            return
        oscillates = live.rises <= self.rho * (step - self.last_check)
        stuck = ~live.halved & (live.loss_at_check >= live.best_loss)
        live.halved = oscillates | stuck
        live.step_size = torch.where(live.halved, live.step_size / 2, live.step_size)
        live.x_adv = torch.where(live.halved[:, None], live.best, live.x_adv)
        live.gradient = torch.where(live.halved[:, None], live.best_gradient, live.gradient)
        live.loss_at_check, live.rises, self.last_check = live.best_loss, torch.zeros_like(live.rises), step


class Sparsity:
    """The rule for l_1 (Croce and Hein 2021, Algorithm 1): how many coordinates move, and how far."""

    def __init__(self, threat: Threat, steps: int, live: ActiveRows, warm: bool) -> None:
        self.threat, self.every = threat, max(int(0.04 * steps), 1)
        d = live.x.shape[1]
        moved = (live.x_adv != live.x).sum(1).to(live.x.dtype)
        live.moved = moved if warm else torch.full_like(moved, d)
        live.share = moved / d / 1.5 if warm else torch.full_like(moved, 0.2)
        live.step_size = torch.full_like(moved, threat.epsilon)

    def step(self, live: ActiveRows, *, first: bool) -> Tensor:
        """Move the coordinates of largest gradient by the same amount, the step's l_1 length in all, and project."""
        size = live.gradient.abs()
        d = size.shape[1]
        rank = ((1 - live.share) * d).clamp(0, d - 1).long()
        least = size.sort(1).values.gather(1, rank[:, None])
        direction = live.gradient.sign() * (size >= least)
        length = direction.abs().sum(1, keepdim=True).clamp_min(1e-10)
        return self.threat.project(live.x_adv + live.step_size[:, None] * direction / length, live.x)

    def after(self, live: ActiveRows, step: int, rose: Tensor) -> None:
        if step % self.every:
            return
        epsilon = self.threat.epsilon
        moved = (live.best != live.x).sum(1).to(live.x.dtype)
        sparser = moved < 0.95 * live.moved
        live.share, live.moved = moved / live.x.shape[1] / 1.5, moved
        live.step_size = torch.where(sparser, epsilon, (live.step_size / 1.5).clamp(epsilon / 10, epsilon))
        live.x_adv = torch.where(sparser[:, None], live.best, live.x_adv)
        live.gradient = torch.where(sparser[:, None], live.best_gradient, live.gradient)
