"""Auto-PGD (Croce and Hein 2020, Algorithm 1; for l_1 Croce and Hein 2021): PGD that sets its own step size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import check_at_least
from rattle.attacks.keeping import kept
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs
from rattle.errors import RattleError
from rattle.inputs import check_batch
from rattle.randomness import ImageStreams, Randomness
from rattle.threat import Threat

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # (logits, y, target) -> [n]
    "ce": lambda z, y, _: losses.ce(z, y),
    "cw": lambda z, y, _: losses.cw(z, y),
    "dlr": lambda z, y, _: losses.dlr(z, y),
    "cw-targeted": losses.cw_targeted,
    "dlr-targeted": losses.dlr_targeted,
}
FEWEST_CLASSES = {"ce": 2, "dlr": 3, "dlr-targeted": 4}  # what each loss needs


def effective_loss(loss: str, classes: int) -> str:
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
    """Momentum PGD that halves its step and returns to its best point when the loss stops rising (Algorithm 1)."""

    threat: Threat = Threat()
    loss: Literal["ce", "dlr", "dlr-targeted"] = "ce"  # maximised; the margin where DLR has too few classes
    targets: int = 9  # dlr-targeted: the most likely wrong classes, one run each; at most C - 1
    steps: int = 100  # of each run
    restarts: int = 1  # runs from random points; images broken by one take no part in the next
    eot: int = 1  # gradients averaged at each step, for models that draw at random
    rho: float = 0.75  # a step size stays while the loss rose in more than this share of the steps since the last check
    eps_schedule: bool = False  # l_1: run in a ball of 3 epsilon, then 2, then 1

    def __post_init__(self) -> None:
        check_at_least(self, targets=1, steps=1, restarts=1, eot=1)
        if not 0 <= self.rho <= 1:
            raise RattleError(f"attack.rho must be in [0, 1], got {self.rho}")
        if self.eps_schedule and self.threat.norm != "l1":
            raise RattleError(f"attack.eps_schedule is for the l1 threat, got {self.threat.norm}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        targets = self.targets if self.loss == "dlr-targeted" else 0
        return best_of_runs(self, model, x, y, generator, targets=targets, share=0.75)  # rows are large: hold fewer

    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """One random start; with `eps_schedule` through larger balls first, of which only the last points are used."""
        if not self.eps_schedule:
            return self.ascend(model, self.threat, rows, self.threat.random_start(rows.x, draws), self.steps)
        last = RunResult(rows.x + draws.normal(rows.x.shape[1]).to(rows.x.dtype))
        larger = min(self.steps, math.ceil(0.3 * self.steps))  # 30 % of the steps each (Croce and Hein 2021, Sec. 3)
        steps = larger, min(self.steps - larger, larger), max(self.steps - 2 * larger, 0)
        for ball in kept("balls", range(3), last):
            threat = replace(self.threat, epsilon=(3 - ball) * self.threat.epsilon)
            found = self.ascend(model, threat, rows, threat.project(last.x_adv, rows.x), steps[ball])
            last.x_adv, last.score = found.x_adv, found.score
        return last

    def ascend(self, model: FlatModel, threat: Threat, rows: TargetRows, start: Tensor, steps: int) -> RunResult:
        """Algorithm 1 from `start`: the point of highest loss of each row, or the first that is misclassified."""
        result = RunResult(rows.x)
        logits, loss, gradient = self.loss_and_grad(model, rows, start)
        live = (L1Ascent if threat.norm == "l1" else Ascent)(self, threat, steps, rows, start, logits, loss, gradient)
        for step in kept("steps", range(steps + 1), live, result):
            if threat == self.threat:  # a point of a larger ball breaks nothing
                result.pack_broken(live, live.x_adv, live.logits.argmax(1) != live.y)
            if len(live.y) == 0 or step == steps:
                break
            live.x_old, live.x_adv = live.x_adv, live.next_point(first=step == 0)
            live.logits, loss, gradient = self.loss_and_grad(model, live, live.x_adv, gradient=step + 1 < steps)
            live.record(loss, gradient)
            live.adapt(step + 1)
        return result.record(live, live.best, live.best_loss)

    def loss_and_grad(
        self, model: FlatModel, rows: TargetRows, x_adv: Tensor, *, gradient: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, loss [n] and its gradient [n, d] at x_adv, averaged over `eot` passes; zeros without `gradient`."""
        logits = loss = total = x_adv.new_zeros(())
        for _ in range(self.eot if gradient else 1):
            with torch.set_grad_enabled(gradient):
                leaf = x_adv.detach().requires_grad_(gradient)
                logits = model.logits(leaf)
                loss = LOSSES[effective_loss(self.loss, logits.shape[1])](logits, rows.y, rows.target)
            if gradient:
                total = total + torch.autograd.grad(loss.sum() / self.eot, leaf)[0]
        return logits.detach(), loss.detach(), total.expand_as(x_adv)


class Ascent(TargetRows):
    """The variables of Algorithm 1, one entry per row, and its steps for l_inf and l_2."""

    def __init__(
        self,
        attack: APGD,
        threat: Threat,
        steps: int,
        rows: TargetRows,
        start: Tensor,
        logits: Tensor,
        loss: Tensor,
        gradient: Tensor,
    ) -> None:
        super().__init__(**vars(rows))
        self.attack, self.threat, self.steps, self.last_check = attack, threat, steps, 0
        self.x_adv = self.x_old = start  # current point and the one before, [r, d]
        self.logits, self.loss, self.gradient = logits, loss, gradient  # at x_adv: [r, C], [r], [r, d]
        self.best, self.best_loss, self.best_gradient = start.clone(), loss, gradient.clone()  # where it was highest
        self.low, self.high = threat.box(self.x) or (None, None)  # l_inf: what a projection clips to, [r, d]
        self.step_size = torch.full_like(loss, 2 * threat.epsilon)
        self.rises = torch.zeros_like(loss)  # how often the loss rose since the last check
        self.loss_at_check = loss  # the best loss then
        self.halved = torch.ones_like(loss, dtype=torch.bool)  # whether the last check halved the step size

    def next_point(self, *, first: bool) -> Tensor:
        """Eq. (4): a projected step, then momentum, projected again."""
        z = self.project(self.threat.ascend(self.x_adv, self.gradient, self.step_size[:, None]))
        if first:
            return z
        a = 0.75  # the momentum alpha: x' + a (z - x') + (1 - a) (x' - x'_old), in place
        return self.project(z.mul_(a).add_(self.x_adv, alpha=2 - 2 * a).sub_(self.x_old, alpha=1 - a))

    def project(self, z: Tensor) -> Tensor:
        """Onto ball and [0, 1], in place for l_inf: a pass over the numbers instead of four."""
        return self.threat.project(z, self.x) if self.low is None else z.clamp_(self.low, self.high)

    def record(self, loss: Tensor, gradient: Tensor) -> None:
        """Loss and gradient at x_adv, which becomes the best point where the loss is higher than ever."""
        self.rises, self.loss, self.gradient = self.rises + (loss > self.loss), loss, gradient
        higher = (loss > self.best_loss).nonzero().squeeze(1)
        self.best[higher], self.best_gradient[higher] = self.x_adv[higher], gradient[higher]
        self.best_loss = torch.maximum(loss, self.best_loss)

    def adapt(self, step: int) -> None:
        """At a checkpoint, halve the step where the loss rose too rarely or its maximum did not grow (Sec. 3)."""
        if step not in checkpoints(self.steps):
            return
        oscillates = self.rises <= self.attack.rho * (step - self.last_check)
        stuck = ~self.halved & (self.loss_at_check >= self.best_loss)
        self.halved = oscillates | stuck
        self.step_size = torch.where(self.halved, self.step_size / 2, self.step_size)
        self.return_to_best(self.halved)
        self.loss_at_check, self.rises, self.last_check = self.best_loss, torch.zeros_like(self.rises), step

    def return_to_best(self, rows: Tensor) -> None:
        """Continue from the best point in the rows of the mask."""
        self.x_adv = torch.where(rows[:, None], self.best, self.x_adv)
        self.gradient = torch.where(rows[:, None], self.best_gradient, self.gradient)


class L1Ascent(Ascent):
    """The steps for l_1 (Croce and Hein 2021, Algorithm 1): how many coordinates move, and how far."""

    def __init__(self, attack: APGD, threat: Threat, *variables: Any) -> None:
        super().__init__(attack, threat, *variables)
        moved = (self.x_adv != self.x).sum(1).to(self.x.dtype)
        self.moved = moved if attack.eps_schedule else torch.full_like(moved, self.x.shape[1])  # at the last check
        self.share = moved / self.x.shape[1] / 1.5 if attack.eps_schedule else torch.full_like(moved, 0.2)  # in a step
        self.step_size = torch.full_like(moved, threat.epsilon)  # l_1 length of a step

    def next_point(self, *, first: bool) -> Tensor:
        """Move the coordinates of largest gradient by the same amount, the step's l_1 length in all, and project."""
        size, d = self.gradient.abs(), self.x.shape[1]
        rank = ((1 - self.share) * d).clamp(0, d - 1).long()
        direction = self.gradient.sign() * (size >= size.sort(1).values.gather(1, rank[:, None]))
        length = direction.abs().sum(1, keepdim=True).clamp_min(1e-10)
        return self.threat.project(self.x_adv + self.step_size[:, None] * direction / length, self.x)

    def adapt(self, step: int) -> None:
        """Where the best point became sparser, return to it with the full step; elsewhere shorten the step."""
        if step % max(int(0.04 * self.steps), 1):
            return
        epsilon, moved = self.threat.epsilon, (self.best != self.x).sum(1).to(self.x.dtype)
        sparser = moved < 0.95 * self.moved
        self.share, self.moved = moved / self.x.shape[1] / 1.5, moved
        self.step_size = torch.where(sparser, epsilon, (self.step_size / 1.5).clamp(epsilon / 10, epsilon))
        self.return_to_best(sparser)
