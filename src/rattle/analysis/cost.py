"""How long landscapes take here: one evaluation of the loss and one gradient are timed, and multiplied."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from rattle import losses
from rattle.analysis.flatness import STARTS, STEPS
from rattle.analysis.landscape import input_gradient, mean_loss
from rattle.attacks.base import attack_mode

if TYPE_CHECKING:
    from rattle.analysis.prepare import LandscapeConfig

HESSIAN = 3  # gradients that a Hessian-vector product takes about as long as


def seconds_of(work: Callable[[], object]) -> float:
    """The faster of two calls: the first one warms up."""
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def landscape_seconds(model: nn.Module, x: Tensor, y: Tensor, config: "LandscapeConfig") -> float:
    """Seconds for the landscapes and flatness numbers of one run, on the images [n] of its weight landscapes."""
    with attack_mode(model):
        value = seconds_of(lambda: mean_loss(model, x, y, losses.ce, len(x)))
        gradient = seconds_of(lambda: input_gradient(model, x, y, losses.ce))
    line, surface = config.line_points, config.surface_points**2
    attacked = line + (surface if config.surface_attacked else 0)
    values = config.images * config.points**2 / len(x) + line + surface + 2 * attacked + config.draws
    gradients = config.attack_steps * attacked + STARTS * (STEPS + 1) + 2 * HESSIAN * config.iterations
    return values * value + gradients * gradient


def rounded(seconds: float) -> str:
    """As exact as an estimate is.

    >>> rounded(42), rounded(600), rounded(10000)
    ('42 s', '10 min', '2.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
