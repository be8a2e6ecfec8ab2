"""Weights changed for a while: run the body of a `with` at w + delta, in evaluation mode, or with statistics frozen.

`perturbed` serves both u ~ N(0, sigma^2) (paper, Algorithm 1) and AWP (Wu et al. 2020). Everything is restored bit for
bit, also after an exception: from copies, because adding and then subtracting rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rattle.errors import RattleError
from rattle.randomness import streams
from rattle.settings import check_settings

Delta = Mapping[str, Tensor]


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


def weights_of(model: nn.Module, delta: Delta) -> dict[str, nn.Parameter]:
    """The model's parameters by name; refuses a delta that is not of them."""
    if not isinstance(model, nn.Module):
        raise RattleError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(delta, Mapping):
        raise RattleError(f"perturbations of weights are a dict by parameter name, got {type(delta).__name__}")
    parameters = dict(model.named_parameters())
    for name, d in delta.items():
        if name not in parameters:
            raise RattleError(f"the model has no parameter {name!r} to perturb")
        own = parameters[name]
        like = isinstance(d, Tensor) and (d.ndim, d.device, d.layout) == (own.ndim, own.device, own.layout)
        if not like or any(size not in (1, of) for size, of in zip(d.shape, own.shape, strict=True)):
            what = f"{list(d.shape)} on {d.device}" if isinstance(d, Tensor) else type(d).__name__
            raise RattleError(f"the perturbation of {name} must be like it, {list(own.shape)} on {own.device}: {what}")
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


@contextmanager
def repeated_bn_updates(model: nn.Module, order: str) -> Iterator[None]:
    """Of a body that runs the model at x and then at x': BatchNorm's running statistics move as if it had done so in
    the given order, such as "caacacac" (c: at x, a: at x'). The weights being the same, each move interpolates."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.running_mean is not None]
    kept = [(m, m.momentum, dict(m.named_buffers())) for m in norms]
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {m: [] for m in norms}
    hooks = [m.register_forward_hook(lambda m, *_: seen[m].append(copies_of(m))) for m in norms]
    for module, _, buffers in kept:  # autograd keeps what the forward passes saw: the buffers themselves move later
        module.momentum = 1.0  # statistics become those of the batch itself
        for name, buffer in buffers.items():
            setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for (module, momentum, buffers), hook in zip(kept, hooks, strict=True):
            hook.remove()
            module.momentum = momentum
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
    for module, momentum, buffers in kept:
        half = len(seen[module]) // 2  # more than one, if a network uses a layer more than once
        batches = {"c": seen[module][:half], "a": seen[module][half:]}
        for mean, var in (each for which in order for each in batches[which]):
            buffers["num_batches_tracked"] += 1
            factor = 1 / float(buffers["num_batches_tracked"]) if momentum is None else momentum
            buffers["running_mean"].copy_(factor * mean + (1 - factor) * buffers["running_mean"])
            buffers["running_var"].copy_(factor * var + (1 - factor) * buffers["running_var"])


def copies_of(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """A BatchNorm layer's running mean and variance."""
    return norm.get_buffer("running_mean").clone(), norm.get_buffer("running_var").clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """u ~ N(0, sigma^2) on the weights (paper, Section 4)."""

    sigma: float = 0.01  # standard deviation of u: 0.01 in the paper, 1e-4 in the authors' release, 0 for none
    where: Literal["matrices", "convolutions", "conv-names"] = "matrices"  # all with ndim > 1 | ndim 4 | *conv*.weight
    scale: Literal["absolute", "filter"] = "absolute"  # sigma itself | sigma times the rms of each filter's weights
    inner: float | None = None  # sigma of the inner step alone
    outer: float | None = None  # sigma of the outer step alone, in the readings that draw u there

    def __post_init__(self) -> None:
        check_settings(self, "noise")
        for name in ("sigma", "inner", "outer"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise RattleError(f"noise.{name} must be >= 0, got {value}")

    def at(self, step: Literal["inner", "outer"]) -> "Noise":
        """The noise of one of the two steps.

        >>> Noise(sigma=0.01, inner=0.0).at("inner").sigma, Noise(sigma=0.01, inner=0.0).at("outer").sigma
        (0.0, 0.01)
        """
        own = self.inner if step == "inner" else self.outer
        return replace(self, sigma=self.sigma if own is None else own, inner=None, outer=None)

    def moves(self, name: str, weight: Tensor) -> bool:
        """Whether a parameter gets noise; biases and normalisation layers never do."""
        if self.where == "conv-names":
            return "conv" in name and weight.ndim > 1
        return weight.ndim >= (2 if self.where == "matrices" else 4)

    def deviations(self, model: nn.Module) -> dict[str, Tensor]:
        """The standard deviation of u for each filter (each row of a matrix), [out, 1, ...], by parameter name."""
        found = {}
        for name, p in model.named_parameters():
            if self.sigma and self.moves(name, p):
                size = p.detach().flatten(1).square().mean(1).sqrt() if self.scale == "filter" else p.new_ones(len(p))
                found[name] = self.sigma * size.view(-1, *[1] * (p.ndim - 1))
        return found

    def __call__(self, model: nn.Module, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of u by parameter name, on the weights' device; biases and normalisation layers get none.

        A generator of another device, such as the CPU's beside a GPU, gives the seed of a counter-based stream on the
        weights' own: the same u on every kind of GPU, where torch's generators draw by the number of processors.
        """
        moved = {name: p for name, p in weights_of(model, {}).items() if self.sigma and self.moves(name, p)}
        here = generator.device if generator is not None else torch.device("cpu")
        far = next((p for p in moved.values() if p.device != here), None)
        draws = None if far is None else streams(generator, far.detach()[:1])

        def unit(p: Tensor) -> Tensor:
            if draws is not None:
                return draws.normal(*p.shape)[0]
            return torch.randn(p.shape, generator=generator, device=here)

        u = {name: unit(p).mul_(self.sigma).to(p) for name, p in moved.items()}  # one tensor, not two
        if self.scale == "absolute":
            return u
        rows = replace(self, sigma=1.0).deviations(model)
        return {name: delta * rows[name] for name, delta in u.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AWP:
    """Adversarial weight perturbation (Wu et al. 2020, eq. 8): v = gamma ||w|| d / ||d||, per tensor with ndim > 1.

    d is the gradient of the full loss, taken on the model itself with frozen statistics: no proxy copy is needed.
    """

    holds_statistics: ClassVar[bool] = False  # BatchNorm's running statistics are those of w + v
    gamma: float = 0.005  # gamma: ||v|| over ||w||; 0.005 on TRADES, 0.01 on AT
    warmup: int = 10  # epochs before it starts; 10 on TRADES, 0 on AT
    climbs: Literal["loss", "plain"] = "loss"  # the whole loss | without Taylor terms, clean weight 1: the release
    decay: float = 0.0  # weight decay of v, added to the gradient; the optimizer's makes it that of w + v: the release

    def __post_init__(self) -> None:
        check_settings(self, "awp")
        check_perturbation("gamma", self.gamma, self.warmup)
        if not self.decay >= 0:
            raise RattleError(f"awp.decay must be >= 0, got {self.decay}")

    def gradients(self, model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        """d, for every tensor with ndim > 1 that the loss depends on."""
        with frozen_bn_stats(model):
            return weight_gradients(model, loss(), ndim=2)

    def __call__(self, model: nn.Module, gradients: Delta) -> dict[str, Tensor]:
        """v from d."""
        parameters = weights_of(model, gradients)
        return {
            name: d * (self.gamma * parameters[name].detach().norm() / (d.norm() + 1e-20))
            for name, d in gradients.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SAM:
    """Sharpness-aware minimisation (Foret et al. 2021, eq. 2): v = rho d / ||d||, ||d|| over all weights."""

    holds_statistics: ClassVar[bool] = True  # they are those of w: the pass at w + v moves none
    rho: float = 0.05  # rho: the length of v
    warmup: int = 0  # epochs before it starts

    def __post_init__(self) -> None:
        check_settings(self, "awp")
        check_perturbation("rho", self.rho, self.warmup)

    def gradients(self, model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        """d, for every weight that the loss depends on, biases and normalisation layers too."""
        return weight_gradients(model, loss(), ndim=0)

    def __call__(self, model: nn.Module, gradients: Delta) -> dict[str, Tensor]:
        """v from d."""
        weights_of(model, gradients)
        scale = self.rho / (get_total_norm(gradients.values()) + 1e-12)
        return {name: d * scale for name, d in gradients.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ASAM:
    """Adaptive SAM (Kwon et al. 2021, eq. 9): v = rho T^2 d / ||T d||, T = |w| + eta; 1 for biases, as the authors."""

    holds_statistics: ClassVar[bool] = True
    rho: float = 0.5  # rho: the length of v / T; 1 in the authors' CIFAR-100 runs
    eta: float = 0.01  # eta, added to |w|: a weight that is zero moves too
    warmup: int = 0  # epochs before it starts
    gradients = SAM.gradients

    def __post_init__(self) -> None:
        check_settings(self, "awp")
        check_perturbation("rho", self.rho, self.warmup)
        if not self.eta >= 0:
            raise RattleError(f"awp.eta must be >= 0, got {self.eta}")

    def __call__(self, model: nn.Module, gradients: Delta) -> dict[str, Tensor]:
        """v from d."""
        all_weights = weights_of(model, gradients)
        weights = {name: p.detach() for name, p in all_weights.items() if not name.endswith("bias")}
        t = {name: weights[name].abs() + self.eta if name in weights else 1.0 for name in gradients}
        scale = self.rho / (get_total_norm([t[name] * d for name, d in gradients.items()]) + 1e-12)
        return {name: t[name] * t[name] * d * scale for name, d in gradients.items()}


def add_decay(model: nn.Module, v: Delta, decay: float) -> None:
    """Add decay times v to the gradients."""
    for name, delta in v.items() if decay else ():
        gradient = model.get_parameter(name).grad
        assert gradient is not None, "v comes from gradients"
        gradient.add_(delta, alpha=decay)


def check_perturbation(name: str, size: float, warmup: int) -> None:
    """Refuse settings of AWP, SAM or ASAM that move nothing; `size` is gamma or rho, by its name."""
    if not size > 0:
        raise RattleError(f"awp.{name} must be > 0, got {size}; leave awp out to train without it")
    if warmup < 0:
        raise RattleError(f"awp.warmup must be >= 0, got {warmup}")


def weight_gradients(model: nn.Module, loss: Tensor, *, ndim: int) -> dict[str, Tensor]:
    """The gradient of the loss, for every tensor of at least `ndim` dimensions that it depends on."""
    weights = {name: p for name, p in model.named_parameters() if p.ndim >= ndim and p.requires_grad}
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {name: d for name, d in zip(weights, gradients, strict=True) if d is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SWA:
    """Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights at the end of each epoch."""

    start: float = 0.275  # fraction of the run after which averaging begins (Chen et al. 2020: epoch 55 of 200)

    def __post_init__(self) -> None:
        check_settings(self, "average")
        check_start(self.start)

    def averaged(self, model: nn.Module) -> AveragedModel:
        """The average, which begins at these weights."""
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
        check_settings(self, "average")
        if not 0 <= self.decay < 1:
            raise RattleError(f"average.decay must be from 0 to below 1, got {self.decay}")
        check_start(self.start)

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
            update = get_ema_multi_avg_fn(self.decay_at(int(self.n_averaged) - 1))
            for real in (True, False):  # counts of batches are whole numbers
                which = [i for i, value in enumerate(old) if value.is_floating_point() == real]
                if which:
                    update([old[i] for i in which], [new[i] for i in which], self.n_averaged)
        self.n_averaged += 1


def check_start(start: float) -> None:
    """Refuse what is no fraction of a run."""
    if not 0 <= start < 1:
        raise RattleError(f"average.start is a fraction of the run, from 0 to below 1, got {start}")
