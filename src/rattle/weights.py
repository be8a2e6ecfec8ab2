"""Weights changed for a while: run the body of a `with` at w + delta, in evaluation mode, or with statistics frozen.

`perturbed` serves both u ~ N(0, sigma^2) (paper, Algorithm 1) and AWP (Wu et al. 2020). Everything is restored bit for
bit, also after an exception: from copies, because adding and then subtracting rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import get_total_norm
from torch.optim.swa_utils import AveragedModel

from rattle.errors import RattleError
from rattle.randomness import streams
from rattle.settings import BelowOne, CountOrZero, NonNegative, Positive, check_settings

Delta = Mapping[str, Tensor]  # of weights, by the name of the parameter
Tensors = dict[str, Tensor]  # by name
BN_STATISTICS = ("track_running_stats", "running_mean", "running_var", "num_batches_tracked")  # of BatchNorm


@contextmanager
def perturbed(model: nn.Module, delta: Delta) -> Iterator[None]:
    """Run the body at w + delta, delta by parameter name; w is restored bit for bit."""
    parameters = weights_of(model, delta)
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


def refuse_inference_tensors(model: nn.Module) -> None:
    """Raise RattleError for weights that autograd does not take, and that cannot be changed."""
    if any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        raise RattleError(
            "the model was built under torch.inference_mode, and autograd refuses such weights: build it outside, or "
            "take copy.deepcopy(model)"
        )


def weights_of(model: nn.Module, delta: Delta) -> dict[str, nn.Parameter]:
    """The model's parameters by name; refuses a delta that is not of them."""
    if not isinstance(model, nn.Module):
        raise RattleError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(delta, Mapping):
        raise RattleError(f"perturbations of weights are a dict by parameter name, got {type(delta).__name__}")
    refuse_inference_tensors(model)
    parameters = dict(model.named_parameters())
    for name, d in delta.items():
        if name not in parameters:
            raise RattleError(f"the model has no parameter {name!r} to perturb")
        own = parameters[name]
        if not isinstance(d, Tensor) or (d.shape, d.device, d.layout) != (own.shape, own.device, own.layout):
            raise RattleError(f"the perturbation of {name} must be a tensor like it: {list(own.shape)} on {own.device}")
    return parameters


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
    saved = []
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            saved.append((module, {name: getattr(module, name) for name in BN_STATISTICS}))
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    try:
        yield
    finally:
        for module, statistics in saved:
            for name, value in statistics.items():
                setattr(module, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """u ~ N(0, sigma^2) on the weights (paper, Section 4)."""

    sigma: NonNegative = 0.01  # std of u: 0.01 in the paper, 1e-4 in the authors' release, 0 for none
    scale: Literal["absolute", "filter"] = "absolute"  # sigma itself | sigma times the rms of each filter's weights
    inner: NonNegative | None = None  # sigma of the inner step, if another than that of the modes that draw u again

    def __post_init__(self) -> None:
        check_settings(self, "noise")

    def at(self, step: Literal["inner", "outer"]) -> "Noise":
        """The noise of one of the two steps.

        >>> Noise(sigma=0.01, inner=0.0).at("inner").sigma, Noise(sigma=0.01, inner=0.0).at("outer").sigma
        (0.0, 0.01)
        """
        sigma = self.sigma if step == "outer" or self.inner is None else self.inner
        return replace(self, sigma=sigma, inner=None)

    def moves(self, weight: Tensor) -> bool:
        """Whether a parameter gets noise; biases and normalisation layers never do."""
        return self.sigma > 0 and weight.ndim > 1

    def __call__(self, model: nn.Module, *, generator: torch.Generator | None = None) -> Tensors:
        """One draw of u by parameter name, on the weights' device.

        A generator of another device, such as the CPU's beside a GPU, gives the seed of a counter-based stream on the
        weights' own: the same u on every kind of GPU, where torch's draws depend on how many multiprocessors a GPU has.
        """
        moved = {name: p.detach() for name, p in weights_of(model, {}).items() if self.moves(p)}
        here = generator.device if generator is not None else torch.device("cpu")
        elsewhere = [p for p in moved.values() if p.device != here]
        draws = streams(generator, 1, elsewhere[0].device) if elsewhere else None
        u = {}
        for name, p in moved.items():
            if draws is None:
                unit = torch.randn(p.shape, generator=generator, device=here)
            else:
                unit = draws.normal(*p.shape)[0]
            u[name] = unit.mul_(self.sigma).to(p)
            if self.scale == "filter":
                u[name] *= filter_rms(p)
        return u


def filter_rms(weight: Tensor) -> Tensor:
    """Root mean square of each filter's weights (each row of a matrix), [out, 1, ...]."""
    return weight.flatten(1).square().mean(1).sqrt().view(-1, *[1] * (weight.ndim - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AWP:
    """Adversarial weight perturbation (Wu et al. 2020, eq. 8): v = gamma ||w|| d / ||d||, per tensor with ndim > 1.

    d is the gradient of the full loss, taken on the model itself with frozen statistics: no proxy copy is needed.
    """

    holds_statistics = False  # BatchNorm's running statistics are those of w + v
    gamma: Positive = 0.005  # ||v|| over ||w||; 0.005 on TRADES, 0.01 on AT
    warmup: CountOrZero = 10  # epochs before it starts; 10 on TRADES, 0 on AT

    def __post_init__(self) -> None:
        check_settings(self, "awp")

    def gradients(self, model: nn.Module, loss: Callable[[], Tensor]) -> Tensors:
        """d, for every tensor with ndim > 1 that the loss depends on."""
        with frozen_bn_stats(model):
            return weight_gradients(model, loss(), ndim=2)

    def __call__(self, model: nn.Module, gradients: Delta) -> Tensors:
        """v from d."""
        parameters = weights_of(model, gradients)
        return {
            name: d * (self.gamma * parameters[name].detach().norm() / (d.norm() + 1e-20))
            for name, d in gradients.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SAM:
    """Sharpness-aware minimisation (Foret et al. 2021, eq. 2): v = rho d / ||d||, ||d|| over all weights."""

    holds_statistics = True  # they are those of w: the pass at w + v moves none
    rho: Positive = 0.05  # the length of v
    warmup: CountOrZero = 0  # epochs before it starts

    def __post_init__(self) -> None:
        check_settings(self, "awp")

    def gradients(self, model: nn.Module, loss: Callable[[], Tensor]) -> Tensors:
        """d, for every weight that the loss depends on, biases and normalisation layers too."""
        return weight_gradients(model, loss(), ndim=0)

    def __call__(self, model: nn.Module, gradients: Delta) -> Tensors:
        """v from d."""
        weights_of(model, gradients)
        scale = self.rho / (get_total_norm(gradients.values()) + 1e-12)
        return {name: d * scale for name, d in gradients.items()}


ASAM_ETA = 0.01  # added to |w|: a weight that is zero moves too (Kwon et al. 2021)


@dataclass(frozen=True, slots=True, kw_only=True)
class ASAM(SAM):
    """Adaptive SAM (Kwon et al. 2021, eq. 9): v = rho T^2 d / ||T d||, T = |w| + eta; biases: T = 1."""

    rho: Positive = 0.5  # the length of v / T; 1 in the authors' CIFAR-100 runs

    def __call__(self, model: nn.Module, gradients: Delta) -> Tensors:
        """v from d."""
        weights = weights_of(model, gradients)
        t = {}
        for name in gradients:
            t[name] = 1.0 if name.endswith("bias") else weights[name].detach().abs() + ASAM_ETA
        scale = self.rho / (get_total_norm([t[name] * d for name, d in gradients.items()]) + 1e-12)
        return {name: t[name] * t[name] * d * scale for name, d in gradients.items()}


def weight_gradients(model: nn.Module, loss: Tensor, *, ndim: int) -> Tensors:
    """The gradient of the loss, for every tensor of at least `ndim` dimensions that it depends on."""
    weights = {name: p for name, p in model.named_parameters() if p.ndim >= ndim and p.requires_grad}
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {name: d for name, d in zip(weights, gradients, strict=True) if d is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SWA:
    """Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights at the end of each epoch."""

    start: BelowOne = 0.275  # fraction of the run after which averaging begins (Chen et al. 2020: epoch 55 of 200)

    def __post_init__(self) -> None:
        check_settings(self, "average")

    def averaged(self, model: nn.Module) -> AveragedModel:
        """The average, which begins at these weights."""
        return AveragedModel(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class EMA:
    """Exponential moving average of the weights and BatchNorm statistics, updated at every step.

    >>> [round(EMA(warmup=True).decay_at(t), 3) for t in (0, 8, 10_000)]
    [0.1, 0.5, 0.995]
    """

    decay: BelowOne = 0.995  # share of the old average kept at each step (Gowal et al. 2020)
    start: BelowOne = 0.0  # fraction of the run after which averaging begins (Gowal et al. 2020: 0.025)
    warmup: bool = False  # t steps after its start at most (1 + t) / (10 + t) is kept (Gowal et al. 2020)

    def __post_init__(self) -> None:
        check_settings(self, "average")

    def decay_at(self, t: int) -> float:
        """The share kept t steps after averaging began."""
        return min(self.decay, (1 + t) / (10 + t)) if self.warmup else self.decay

    def averaged(self, model: nn.Module) -> AveragedModel:
        """The average, which begins at these weights."""
        return MovingAverage(model, self.decay_at)


class MovingAverage(AveragedModel):
    """torch's, but its count stays on the host: torch sends it to the device at every step, and waits."""

    def __init__(self, model: nn.Module, decay_at: Callable[[int], float]) -> None:
        super().__init__(model, use_buffers=True)
        self.decay_at = decay_at

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        old, new = ([*m.parameters(), *m.buffers()] for m in (self.module, model))
        if int(self.n_averaged) == 0:
            torch._foreach_copy_(old, new)
        else:
            floats = [i for i, value in enumerate(old) if value.is_floating_point()]  # and no counts of batches
            decay = self.decay_at(int(self.n_averaged) - 1)
            torch._foreach_lerp_([old[i] for i in floats], [new[i] for i in floats], 1 - decay)
        self.n_averaged += 1
