"""Shared by the attack tests: linear models whose smallest perturbations are known, and one row for each attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, PGD, Attack, RayS, Square
from rattle.randomness import ImageStreams
from rattle.threat import Norm, Threat

DUAL = {"linf": 1.0, "l2": 2.0, "l1": float("inf")}
NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")


@dataclass(frozen=True)
class Linear:
    """Images, labels, a linear model that gets them right, and each image's exact distance to the boundary."""

    model: nn.Module
    x: Tensor
    y: Tensor
    distance: dict[str, Tensor]

    def threat(self, norm: Norm, *, gap: float = 0.03) -> Threat:
        """A ball that holds the boundary of about half of the images, none of them within `gap` of its surface."""
        d = self.distance[norm].sort().values
        middle = range(len(d) // 4, 3 * len(d) // 4)
        i = max(middle, key=lambda k: float(d[k + 1] / d[k]))
        epsilon = float((d[i] * d[i + 1]).sqrt())
        assert d[i + 1] / d[i] > (1 + gap) ** 2, "no gap between the distances: take another seed"
        return Threat(norm=norm, epsilon=epsilon)


def linear(classes: int, *, n: int = 24, side: int = 6, spread: float = 0.6, seed: int = 0) -> Linear:
    """Images near grey, so that no shortest way to the boundary leaves [0, 1]; the last row and column carry no weight
    because the square attack never changes them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, 1, side, side, generator=generator).mul_(spread)
    weight[..., -1, :] = weight[..., :, -1] = 0
    head = nn.Linear(side * side, classes)
    with torch.no_grad():
        head.weight.copy_(weight.flatten(1))
        head.bias.copy_(-0.5 * head.weight.sum(1))  # a grey image is on every boundary
        x = 0.5 + 0.1 * torch.randn(40 * n, 1, side, side, generator=generator).clamp(-2, 2)
        logits = head(x.flatten(1))
        y = logits.argmax(1)
        wide = {norm: distances(head.weight, logits, y, norm) for norm in NORMS}
        usable = ((wide["l1"] < 0.25) & (wide["linf"] > 1e-3)).nonzero().squeeze(1)[:n]
    assert len(usable) == n
    model = nn.Sequential(nn.Flatten(), head)
    return Linear(model, x[usable], y[usable], {norm: d[usable] for norm, d in wide.items()})


def distances(weight: Tensor, logits: Tensor, y: Tensor, norm: str) -> Tensor:
    """min over wrong k of (z_y - z_k) / ||w_y - w_k||_dual, [n]."""
    gap = logits.gather(1, y[:, None]) - logits
    steepness = (weight[y][:, None] - weight).norm(dim=2, p=DUAL[norm]).clamp_min(1e-12)
    return (gap / steepness).scatter(1, y[:, None], float("inf")).amin(1)


def robust(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1) == y


def robust_after(attack: Attack, case: Linear) -> Tensor:
    """Which images of a case an attack does not break, [n] bool; its points lie inside the ball."""
    x_adv = attack(case.model, case.x, case.y, generator=ImageStreams(0, torch.arange(len(case.x))))
    assert attack.threat.contains(x_adv, case.x).all()
    return robust(case.model, x_adv, case.y)


class SmallNet(nn.Module):
    """A convolution with BatchNorm: what an attack must leave as it finds it."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU(), nn.Flatten())
        self.head = nn.Linear(6 * 36, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def small_case(n: int = 10, classes: int = 5) -> tuple[nn.Module, Tensor, Tensor]:
    """In double precision, where a batch's composition cannot tip a sign."""
    torch.manual_seed(1)
    model = SmallNet(classes).double().train()
    model(torch.rand(64, 2, 6, 6, dtype=torch.float64))
    x = torch.rand(n, 2, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        y = model.eval()(x).argmax(1)
    y[0] = (y[0] + 1) % classes  # one image is misclassified from the start
    return model.train(), x, y


# One row for each attack: its name, how a quick one is made, and the norms it knows.
ATTACKS: dict[str, tuple[Callable[[Threat], Attack], tuple[Norm, ...]]] = {
    "pgd": (lambda threat: PGD(threat=threat, steps=3, step_size=threat.epsilon), NORMS),
    "apgd-ce": (lambda threat: APGD(threat=threat, steps=8, restarts=2), NORMS),
    "apgd-dlr": (lambda threat: APGD(threat=threat, loss="dlr", steps=8), NORMS),
    "apgd-t": (lambda threat: APGD(threat=threat, loss="dlr-targeted", targets=3, steps=8), NORMS),
    "apgd-eps-schedule": (lambda threat: APGD(threat=threat, steps=10, eps_schedule=True), ("l1",)),
    "fab": (lambda threat: FAB(threat=threat, targets=0, steps=5, restarts=2), NORMS),
    "fab-t": (lambda threat: FAB(threat=threat, targets=3, steps=5), NORMS),
    "square": (lambda threat: Square(threat=threat, queries=60), NORMS),
    "rays": (lambda threat: RayS(threat=threat, queries=60), ("linf",)),
}
ROWS = [(name, norm) for name, (_, norms) in ATTACKS.items() for norm in norms]
RADIUS = {"linf": 0.05, "l2": 0.3, "l1": 1.0}


def quick(name: str, norm: Norm, *, scale: float = 1.0) -> Attack:
    return ATTACKS[name][0](Threat(norm=norm, epsilon=scale * RADIUS[norm]))
