"""MMA training (Ding et al. 2020): every image is moved to its own decision boundary, and the boundary moves away."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.errors import RattleError
from rattle.forward import Outputs
from rattle.inputs import check_batch, input_gradient, logits_of
from rattle.losses import ce, of_class, of_others
from rattle.objectives.base import InnerAttack, Memory, Method, Objective, StepContext, Terms
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.settings import BelowOne, Positive
from rattle.threat import Threat, per_image
from rattle.weights import Tensors

REACH = 1.05  # the search goes beyond d_max, so that an image on d_max differs from one farther away
SEARCH_STEPS = 10  # halvings of the bracket around the boundary
STEP = 2.5  # PGD's K steps together, over the radius


@dataclass(frozen=True, slots=True, kw_only=True)
class MMA(Objective):
    """clean_weight CE(f(x), y) + (1 - clean_weight) [d < d_max] CE(f(x + delta), y), both means over all images.

    delta leads to the boundary, d is its length (0 where x is misclassified); d of each image is where the search for
    its delta starts in the next epoch.
    """

    title = "MMA"
    unused = ("step_size", "loss", "start", "restarts")
    needs_run = True
    remembers_images = True
    d_max: Positive = 4.0  # d_max over the threat's epsilon: images farther from the boundary count no more
    start: Positive = 0.16  # the least radius at which an image's search starts, over the threat's epsilon
    clean_weight: BelowOne = 1 / 3  # weight of the cross-entropy at x

    def __post_init__(self) -> None:
        Objective.__post_init__(self)
        if self.start > self.d_max:
            raise RattleError(f"objective.start must be at most objective.d_max {self.d_max:g}, got {self.start}")

    def state(self, *, images: int, classes: int, batch: torch.Size) -> Tensors:
        return {"margin": torch.zeros(images)}  # d over d_max

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        epsilon = pgd.threat.epsilon
        return BoundaryPGD(
            threat=pgd.threat,
            steps=pgd.steps,
            start=self.start * epsilon,
            d_max=self.d_max * epsilon,
            memory=context.memory,
        )

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        margin = ce(outputs.logits_adv, y)
        if "margin" in context.memory.tensors:  # in a run
            margin = (context.memory["margin"] < 1) * margin
        clean = ce(outputs.clean, y).mean()
        return {"clean": self.clean_weight * clean, "margin": (1 - self.clean_weight) * margin.mean()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryPGD:
    """AN-PGD: a direction by PGD in a ball of each image's own radius, then bisection along it for the boundary.

    The boundary is where the soft logit margin is 0. Images beyond it already stay where they are.
    """

    threat: Threat  # its norm
    steps: int  # K
    start: float  # the least radius of PGD's ball
    d_max: float
    memory: Memory  # "margin": the distance that was found, over d_max

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        draws = streams(generator, len(x), x.device)
        radius = (self.d_max * self.memory["margin"].to(x.dtype)).clamp_min(self.start)
        x_adv, found = x.clone(), torch.zeros_like(radius)
        with attack_mode(model):
            with torch.no_grad():
                right = soft_margin(logits_of(model, x), y) < 0
            if bool(right.any()):
                some = x[right], y[right], per_image(radius[right], x)
                x_adv[right], found[right] = self.search(model, *some, draws[right])
        self.memory["margin"] = found / self.d_max
        return x_adv

    def search(
        self, model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, draws: ImageStreams
    ) -> tuple[Tensor, Tensor]:
        """The points where the boundary is crossed, and their distances, before they are clipped to [0, 1]."""
        x_adv = self.climb(model, x, y, radius, draws)
        with torch.no_grad():
            unit = (x_adv - x) / self.threat.distance(x_adv, x).clamp_min(1e-12).view_as(radius)
            low, high, middle = torch.zeros_like(radius), torch.full_like(radius, REACH * self.d_max), radius
            for _ in range(SEARCH_STEPS):
                right = soft_margin(logits_of(model, (x + middle * unit).clamp(0, 1)), y).view_as(radius) < 0
                low, high = torch.where(right, middle, low), torch.where(right, high, middle)
                middle = (low + high) / 2
            return (x + middle * unit).clamp(0, 1), middle.flatten()

    def climb(self, model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, draws: ImageStreams) -> Tensor:
        """PGD on the soft logit margin, each image in a ball of its own radius."""
        x_adv = self.threat.random_start(x, draws, radius)
        for _ in range(self.steps):
            x_adv = x_adv.detach().requires_grad_()
            gradient = input_gradient(soft_margin(logits_of(model, x_adv), y).sum(), x_adv)
            moved = self.threat.ascend(x_adv.detach(), gradient, STEP / self.steps * radius)
            x_adv = self.threat.project(moved, x, radius)
        return x_adv.detach()


def soft_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The soft logit margin log sum_{k != y} exp z_k - z_y (Ding et al. 2020): below 0 exactly where p_y > 1/2."""
    return of_others(logits, y).logsumexp(1) - of_class(logits, y)


METHOD = Method(
    objective=MMA(),
)
