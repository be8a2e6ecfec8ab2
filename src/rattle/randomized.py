"""Models that answer at random: the paper's ensemble f_{w+u}, and the mean over draws that attacks climb."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.forward import logits_along
from rattle.inputs import check_model, finite_logits, input_gradient, logits_of
from rattle.weights import Noise


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """In the body torch's own generators begin at this seed; afterwards they continue where they were."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type):
        torch.manual_seed(seed)
        yield


def log_mean(log_p: list[Tensor]) -> Tensor:
    """The log of the mean of probabilities given by their logs, [n, C] each."""
    return torch.stack(log_p).logsumexp(0) - math.log(len(log_p))


class Randomized(nn.Module):
    """The ensemble of f_{w+u} over draws of u: the log of its mean class probabilities.

    With a seed the draws are the same in every pass, and the ensemble is a deterministic model; with None they are
    fresh, and `evaluate` measures the expected accuracy. Differentiable in the images and the weights.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> ensemble, x = Randomized(model, Noise(sigma=0.1), draws=4), torch.rand(2, 1, 2, 2)
    >>> torch.equal(ensemble(x), ensemble(x)), round(ensemble(x).exp().sum().item(), 4)
    (True, 2.0)
    """

    def __init__(self, model: nn.Module, noise: Noise, draws: int = 16, *, seed: int | None = 0) -> None:
        super().__init__()
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise RattleError(f"draws must be a whole number of 1 or more, got {draws!r}")
        if not noise(check_model(model)):
            raise RattleError(f"{noise} moves no weight of the model: it needs sigma > 0 and a matrix or a filter")
        self.model, self.noise, self.draws, self.seed = model, noise, draws, seed

    def forward(self, x: Tensor) -> Tensor:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        found = []
        for _ in range(self.draws):
            u = self.noise(self.model, generator=generator)
            found.append(logits_along(self.model, x, u).log_softmax(1))
        return log_mean(found)

    def extra_repr(self) -> str:  # part of the key of cached results
        return f"noise={self.noise}, draws={self.draws}, seed={self.seed}"


class Expected(nn.Module):
    """What an attack climbs instead of a model that draws at random: the log of its mean class probabilities.

    Expectation over transformation (Athalye et al. 2018). Values are means over the same draws in every pass, so that
    an attack compares two points fairly; gradients are means over fresh draws, so that it does not fit the former.
    """

    def __init__(self, model: nn.Module, draws: int, seed: int) -> None:
        super().__init__()
        self.model, self.draws, self.seed = model, draws, seed
        self.passes = 0  # of single images through the model so far

    def forward(self, x: Tensor) -> Tensor:
        return MeanOverDraws.apply(x, self)  # type: ignore[return-value]


class MeanOverDraws(torch.autograd.Function):
    """One draw after the other, also backwards: the memory of one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, expected: Expected) -> Tensor:
        expected.passes += expected.draws * len(x)
        with seeded(expected.seed, x.device):
            log_p = log_mean(
                [finite_logits(logits_of(expected.model, x)).log_softmax(1) for _ in range(expected.draws)]
            )
        ctx.save_for_backward(x, log_p)
        ctx.expected = expected
        return log_p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """d log E[p] = E[p d log p] / E[p], with E[p] by the draws of the forward pass."""
        x, log_p = ctx.saved_tensors
        expected = ctx.expected
        expected.passes += expected.draws * len(x)
        total = torch.zeros_like(x)
        for _ in range(expected.draws):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                drawn = finite_logits(logits_of(expected.model, leaf)).log_softmax(1)
                share = (drawn - log_p).exp().clamp_max(expected.draws).detach()  # at most what one draw of them has
                total += input_gradient((gradients[0] * share * drawn).sum(), leaf)
        return total / expected.draws, None
