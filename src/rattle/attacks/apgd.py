"""Auto-PGD (Croce and Hein 2020, Algorithm 1; for l_1 Croce and Hein 2021): PGD that sets its own step size."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs
from rattle.errors import RattleError
from rattle.inputs import check_batch, input_gradient
from rattle.randomness import ImageStreams, Randomness
from rattle.settings import Count, Share, check_settings
from rattle.threat import Threat

FEWEST_CLASSES = {"dlr": 3, "dlr-targeted": 4}  # with fewer, the margin that DLR rescales is maximised
ALPHA = 0.75  # the momentum of eq. (4): weight of the new step


def step_size_checkpoints(steps: int) -> set[int]:
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
    loss: Literal["ce", "dlr", "dlr-targeted"] = "ce"  # loss to maximise; the margin if DLR has too few classes
    targets: Count = 9  # dlr-targeted: the most likely wrong classes, one run each; at most C - 1
    steps: Count = 100  # steps of each run
    restarts: Count = 1  # runs from random points; the next run skips the images that are broken
    eot: Count = 1  # gradients averaged at each step, for models that answer at random
    rho: Share = 0.75  # the step size is kept while the loss rises in more than this fraction of the steps
    eps_schedule: bool = False  # l_1: run in a ball of 3 epsilon, then 2, then 1

    def __post_init__(self) -> None:
        check_settings(self, "attack")
        if self.eps_schedule and self.threat.norm != "l1":
            raise RattleError(f"attack.eps_schedule is for the l1 threat, got {self.threat.norm}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        targets = self.targets if self.loss == "dlr-targeted" else 0
        return best_of_runs(self, model, x, y, generator, targets=targets, share=0.75)  # rows are large: hold fewer

    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """One random start; with `eps_schedule` in larger balls first, each from the last points of the one before."""
        if not self.eps_schedule:
            start = self.threat.random_start(rows.x, draws)
            return self.ascend(model, self.threat, rows, start, self.steps)
        larger = min(self.steps, math.ceil(0.3 * self.steps))  # 30 % of the steps each (Croce and Hein 2021, Sec. 3)
        second = min(self.steps - larger, larger)
        result = RunResult(rows.x + draws.normal(rows.x.shape[1]).to(rows.x.dtype))
        for factor, steps in ((3, larger), (2, second), (1, self.steps - larger - second)):
            threat = replace(self.threat, epsilon=factor * self.threat.epsilon)
            start = threat.project(result.x_adv, rows.x)
            result = self.ascend(model, threat, rows, start, steps)
        return result

    def ascend(self, model: FlatModel, threat: Threat, rows: TargetRows, start: Tensor, steps: int) -> RunResult:
        """Algorithm 1 from `start`: the point of highest loss of each row, or the first that is misclassified."""
        result = RunResult(rows.x)
        logits, loss, gradient = self.loss_and_grad(model, rows, start)
        live = Ascent(
            **vars(rows),
            x_adv=start,
            x_old=start,
            loss=loss,
            gradient=gradient,
            best=start.clone(),
            best_loss=loss,
            best_gradient=gradient.clone(),
            step_size=torch.full_like(loss, threat.epsilon if threat.norm == "l1" else 2 * threat.epsilon),
            rises=torch.zeros_like(loss),
            loss_at_check=loss,
            halved=torch.ones_like(loss, dtype=torch.bool),
            moved=torch.full_like(loss, start.shape[1]),
            share=torch.full_like(loss, 0.2),
        )
        if self.eps_schedule:
            live.moved = (start != rows.x).sum(1).to(start.dtype)
            live.share = live.moved / start.shape[1] / 1.5
        counts = threat == self.threat  # a point of a larger ball breaks nothing
        if counts:
            result.pack_broken(live, live.x_adv, logits.argmax(1) != live.y)
        checks, last_check = step_size_checkpoints(steps), 0
        for step in range(1, steps + 1):
            if len(live.y) == 0:
                break
            x_next = next_point_l1(live, threat) if threat.norm == "l1" else next_point(live, threat, first=step == 1)
            live.x_old, live.x_adv = live.x_adv, x_next
            logits, loss, gradient = self.loss_and_grad(model, live, live.x_adv)
            live.record(loss, gradient)
            if counts:
                result.pack_broken(live, live.x_adv, logits.argmax(1) != live.y)
            if threat.norm == "l1":
                if step % max(int(0.04 * steps), 1) == 0:
                    adapt_l1(live, threat.epsilon)
            elif step in checks:
                adapt_step_size(live, self.rho * (step - last_check))
                last_check = step
        return result.record(live, live.best, live.best_loss)

    def loss_and_grad(self, model: FlatModel, rows: TargetRows, x_adv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and loss [r] of the last of `eot` passes at x_adv, and the gradient [r, d] averaged over them."""
        logits = loss = gradient = torch.zeros_like(x_adv)
        for _ in range(self.eot):
            leaf = x_adv.detach().requires_grad_()
            logits = model.logits(leaf)
            loss = self.sample_losses(logits, rows.y, rows.target)
            gradient = gradient + input_gradient(loss.sum(), leaf)
        return logits.detach(), loss.detach(), gradient / self.eot

    def sample_losses(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """The loss of each row, [r]."""
        if self.loss == "ce":
            return losses.ce(logits, y)
        enough = logits.shape[1] >= FEWEST_CLASSES[self.loss]
        if self.loss == "dlr":
            return losses.dlr(logits, y) if enough else losses.cw(logits, y)
        return losses.dlr_targeted(logits, y, target) if enough else losses.cw_targeted(logits, y, target)


@dataclass
class Ascent(TargetRows):
    """The variables of Algorithm 1, one entry per row."""

    x_adv: Tensor  # current point, [r, d]
    x_old: Tensor  # the one before, [r, d]
    loss: Tensor  # at x_adv, [r]
    gradient: Tensor  # at x_adv, [r, d]
    best: Tensor  # point of highest loss so far, [r, d]
    best_loss: Tensor  # [r]
    best_gradient: Tensor  # [r, d]
    step_size: Tensor  # [r, 1]
    rises: Tensor  # how often the loss rose since the last checkpoint, [r]
    loss_at_check: Tensor  # the best loss at the last checkpoint, [r]
    halved: Tensor  # whether the last checkpoint halved the step size, [r] bool
    moved: Tensor  # l_1: coordinates that the best point moved, at the last checkpoint, [r]
    share: Tensor  # l_1: share of the coordinates that a step moves, [r]

    def record(self, loss: Tensor, gradient: Tensor) -> None:
        """Loss and gradient at x_adv, which becomes the best point where the loss is higher than ever."""
        self.rises = self.rises + (loss > self.loss)
        self.loss, self.gradient = loss, gradient
        higher = loss > self.best_loss
        self.best[higher], self.best_gradient[higher] = self.x_adv[higher], gradient[higher]
        self.best_loss = torch.maximum(loss, self.best_loss)

    def return_to_best(self, rows: Tensor) -> None:
        """Continue from the best point in the rows of the mask."""
        self.x_adv = torch.where(rows[:, None], self.best, self.x_adv)
        self.gradient = torch.where(rows[:, None], self.best_gradient, self.gradient)


def next_point(live: Ascent, threat: Threat, *, first: bool) -> Tensor:
    """Eq. (4): a projected step z, then x' + alpha (z - x') + (1 - alpha) (x' - x'_old), projected again."""
    z = threat.project(threat.ascend(live.x_adv, live.gradient, live.step_size[:, None]), live.x)
    if first:
        return z
    z.mul_(ALPHA).add_(live.x_adv, alpha=2 - 2 * ALPHA).sub_(live.x_old, alpha=1 - ALPHA)
    return threat.project(z, live.x)


def adapt_step_size(live: Ascent, fewest_rises: float) -> None:
    """At a checkpoint, halve the step where the loss rose too rarely or its maximum did not grow (Sec. 3)."""
    oscillates = live.rises <= fewest_rises
    stuck = ~live.halved & (live.loss_at_check >= live.best_loss)
    live.halved = oscillates | stuck
    live.step_size = torch.where(live.halved, live.step_size / 2, live.step_size)
    live.return_to_best(live.halved)
    live.loss_at_check, live.rises = live.best_loss, torch.zeros_like(live.rises)


def next_point_l1(live: Ascent, threat: Threat) -> Tensor:
    """Move the coordinates of largest gradient by the same amount, the step's l_1 length in all, and project."""
    size, d = live.gradient.abs(), live.x.shape[1]
    rank = ((1 - live.share) * d).clamp(0, d - 1).long()
    threshold = size.sort(1).values.gather(1, rank[:, None])
    direction = live.gradient.sign() * (size >= threshold)
    length = direction.abs().sum(1, keepdim=True).clamp_min(1e-10)
    return threat.project(live.x_adv + live.step_size[:, None] * direction / length, live.x)


def adapt_l1(live: Ascent, epsilon: float) -> None:
    """Where the best point became sparser, return to it with the full step; elsewhere shorten the step (2021, Sec. 3).

    The share of coordinates that the next steps move follows the best point.
    """
    moved = (live.best != live.x).sum(1).to(live.x.dtype)
    sparser = moved < 0.95 * live.moved
    live.share, live.moved = moved / live.x.shape[1] / 1.5, moved
    live.step_size = torch.where(sparser, epsilon, (live.step_size / 1.5).clamp(epsilon / 10, epsilon))
    live.return_to_best(sparser)
