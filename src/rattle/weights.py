"""Weights changed for a while: run the body of a `with` at w + delta, in evaluation mode, or with statistics frozen.

`perturbed` serves both u ~ N(0, sigma^2) (paper, Algorithm 1) and AWP (Wu et al. 2020). Everything is restored bit for
bit, also after an exception: from copies, because adding and then subtracting rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rattle.errors import RattleError, check_choices

Delta = Mapping[str, Tensor]


@contextmanager
def perturbed(model: nn.Module, delta: Delta) -> Iterator[None]:
    """Run the body at w + delta, delta by parameter name; w is restored bit for bit."""
    parameters = dict(model.named_parameters())
    changed: list[Tensor] = [parameters[name] for name in delta]
    with torch.no_grad():
        copies = [p.detach().clone() for p in changed]
        if changed:
            torch._foreach_add_(changed, list(delta.values()))
    try:
        yield
    finally:
        if changed:
            with torch.no_grad():
                torch._foreach_copy_(changed, copies)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run the body in evaluation mode; each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def frozen_bn_stats(model: nn.Module) -> Iterator[None]:
    """In the body, train-mode BatchNorm still normalises by the batch, but its running statistics do not move."""
    norms = [(m, m.track_running_stats) for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    buffers = [(m, m.running_mean, m.running_var, m.num_batches_tracked) for m, _ in norms]
    for module, _ in norms:
        module.running_mean = module.running_var = module.num_batches_tracked = None
        module.track_running_stats = False
    try:
        yield
    finally:
        for module, tracked in norms:
            module.track_running_stats = tracked
        for module, mean, var, count in buffers:
            module.running_mean, module.running_var, module.num_batches_tracked = mean, var, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """u ~ N(0, sigma^2) on the weights (paper, Section 4)."""

    sigma: float = 0.01  # standard deviation of u: 0.01 in the paper, 1e-4 in the authors' release, 0 for none
    where: Literal["matrices", "convolutions"] = "matrices"  # which weights get it: all with ndim > 1 | only ndim 4

    def __post_init__(self) -> None:
        check_choices(self, "noise")
        if not self.sigma >= 0:
            raise RattleError(f"noise.sigma must be >= 0, got {self.sigma}")

    def __call__(self, model: nn.Module, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of u by parameter name, on the generator's device; biases and normalisation layers get none."""
        if self.sigma == 0:
            return {}
        ndim = 2 if self.where == "matrices" else 4
        device = generator.device if generator is not None else "cpu"
        return {
            name: (self.sigma * torch.randn(p.shape, generator=generator, device=device)).to(p)
            for name, p in model.named_parameters()
            if p.ndim >= ndim
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AWP:
    """Adversarial weight perturbation (Wu et al. 2020, eq. 8): v = gamma ||w|| d / ||d||, per tensor with ndim > 1.

    d is the gradient of the full loss, taken on the model itself with frozen statistics: no proxy copy is needed.
    """

    gamma: float = 0.005  # gamma: ||v|| over ||w||; 0.005 on TRADES, 0.01 on AT
    warmup: int = 10  # epochs before it starts; 10 on TRADES, 0 on AT

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise RattleError(f"awp.gamma must be > 0, got {self.gamma}; leave awp out to train without it")
        if self.warmup < 0:
            raise RattleError(f"awp.warmup must be >= 0, got {self.warmup}")

    def gradients(self, model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        """d, for every tensor with ndim > 1 that the loss depends on."""
        weights = {name: p for name, p in model.named_parameters() if p.ndim > 1 and p.requires_grad}
        with frozen_bn_stats(model):
            gradients = torch.autograd.grad(loss(), list(weights.values()), allow_unused=True)
        return {name: d for name, d in zip(weights, gradients, strict=True) if d is not None}

    def __call__(self, model: nn.Module, gradients: Delta) -> dict[str, Tensor]:
        """v from d."""
        parameters = dict(model.named_parameters())
        return {
            name: d * (self.gamma * parameters[name].detach().norm() / (d.norm() + 1e-20))
            for name, d in gradients.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SWA:
    """Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights at the end of each epoch."""

    start: float = 0.275  # fraction of the run after which averaging begins (Chen et al. 2020: epoch 55 of 200)

    def __post_init__(self) -> None:
        check_start(self.start)

    def averaged(self, model: nn.Module) -> AveragedModel:
        return AveragedModel(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class EMA:
    """Exponential moving average of the weights and BatchNorm statistics, updated at every step.

    >>> [round(EMA(warmup=True).decay_at(t), 3) for t in (0, 8, 10_000)]
    [0.1, 0.5, 0.995]
    """

    decay: float = 0.995  # share of the old average kept at each step (Gowal et al. 2020)
    start: float = 0.0  # fraction of the run after which averaging begins (Gowal et al. 2020: 0.025)
    warmup: bool = False  # t steps after its start at most (1 + t) / (10 + t) is kept (Gowal et al. 2020)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise RattleError(f"average.decay must be from 0 to below 1, got {self.decay}")
        check_start(self.start)

    def decay_at(self, t: int) -> float:
        """The share kept t steps after averaging began."""
        return min(self.decay, (1 + t) / (10 + t)) if self.warmup else self.decay

    def averaged(self, model: nn.Module) -> AveragedModel:
        def update(old: Any, new: Any, count: Any) -> None:  # the first of `count` was a copy
            get_ema_multi_avg_fn(self.decay_at(int(count) - 1))(old, new, count)

        return AveragedModel(model, multi_avg_fn=update, use_buffers=True)


def check_start(start: float) -> None:
    """Refuse what is no fraction of a run."""
    if not 0 <= start < 1:
        raise RattleError(f"average.start is a fraction of the run, from 0 to below 1, got {start}")
