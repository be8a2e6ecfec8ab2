"""The forward passes that an objective is computed from: at x and at x', with what the Taylor terms need of each."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel

from rattle.errors import RattleError
from rattle.losses import logits_in
from rattle.weights import Delta, Noise, Tensors, eval_mode, frozen_bn_stats

Pairs = tuple[tuple[Tensor, Tensor], ...]  # (at x, at x')


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSpec:
    """What an objective needs of the model."""

    clean: bool = True  # the logits at x
    hold_clean: bool = False  # the pass at x leaves BatchNorm's running statistics alone
    features: bool = False  # the inputs of the linear head
    extra: bool = False  # the logits at further images, which the objective prepares
    taught_clean: tuple[str, ...] = ()  # the teachers whose logits at x it needs
    taught_adv: tuple[str, ...] = ()  # and at x'
    draw: Callable[..., Delta] | None = None  # draws u of the outer step, as Noise() does; None: there is no u in it
    # The passes along u: completes the outputs of (forward, outputs, x, x_adv, u).
    along_u: "Callable[[PairedForward, Outputs, Tensor, Tensor, tuple[Delta, ...]], Outputs] | None" = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an objective gets; None or empty where it did not ask for it."""

    logits: Tensor | None  # [n, C]; None when only x' counts (plain AT)
    logits_adv: Tensor  # [n, C]
    features: Tensor | None = None  # [n, d], the input of the head
    features_adv: Tensor | None = None
    derivatives: Pairs = ()  # g'^T u and u^T g'' u, up to the order asked for, those of all draws stacked: [draws n, C]
    sampled: Pairs = ()  # logits at w + u, one pair for each draw of u
    extra: Tensor | None = None  # [m, C], of the further images that the objective prepared
    taught_clean: Mapping[str, Tensor] = field(default_factory=dict)  # a teacher's logits at x, [n, C]
    taught_adv: Mapping[str, Tensor] = field(default_factory=dict)  # and at x'

    @property
    def clean(self) -> Tensor:
        """The logits at x, of an objective that asked for them."""
        if self.logits is None:
            raise RattleError("the objective needs the logits at x: give Outputs(logits, logits_adv)")
        return self.logits

    def mean(self, loss: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """The mean of a loss of the logits at x and x' over images, and over draws of u (E_u by Monte Carlo) if any."""
        values = [loss(z, z_adv).mean() for z, z_adv in self.sampled or ((self.logits, self.logits_adv),)]
        return torch.stack(values).mean()


class PairedForward(nn.Module):
    """model(x) and model(x') as one module, so that one forward of a DistributedDataParallel wrapper holds both.

    teachers: further networks whose logits the objective asks for, by name; average: of the model's own weights, the
    teacher of that name.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: ForwardSpec,
        head: nn.Linear | None = None,
        teachers: Mapping[str, nn.Module] | None = None,
        average: AveragedModel | None = None,
    ) -> None:
        super().__init__()
        self.model, self.spec, self.teachers = model, spec, nn.ModuleDict(teachers or {})
        # In lists, so that they are not registered as submodules: the head is one already, the average is not trained.
        self.head, self.average = [head], [average]

    def forward(self, x: Tensor, x_adv: Tensor, u: tuple[Delta, ...] = (), extra: Tensor | None = None) -> Outputs:
        """u: what `draws` gave; extra: further images."""
        spec, features, logits = self.spec, None, None
        if spec.clean:
            with frozen_bn_stats(self.model) if spec.hold_clean else nullcontext():
                features, logits = self.features_and_logits(x)
        features_adv, logits_adv = self.features_and_logits(x_adv)
        outputs = Outputs(
            logits,
            logits_adv,
            features,
            features_adv,
            extra=None if extra is None else self.features_and_logits(extra)[1],
            taught_clean=self.taught(spec.taught_clean, x),
            taught_adv=self.taught(spec.taught_adv, x_adv),
        )
        return outputs if spec.along_u is None else spec.along_u(self, outputs, x, x_adv, u)

    def draws(self, noise: Noise, samples: int, *, generator: torch.Generator) -> tuple[Delta, ...]:
        """The `u` of a forward pass: fresh draws, the same for x and x'; none where the objective asks for none."""
        if self.spec.draw is None:
            return ()
        return tuple(self.spec.draw(noise, self.model, generator=generator) for _ in range(samples))

    def taught(self, names: tuple[str, ...], x: Tensor) -> Tensors:
        """The logits of these teachers; those of the average are missing until it has begun."""
        found = {}
        for name in names:
            if name in self.teachers:
                found[name] = at_least_float32(logits_in(self.teachers[name](x)))
        average = self.average[0]
        if average is not None and "average" in names and int(average.n_averaged) > 0:
            with torch.no_grad(), eval_mode(average):
                found["average"] = at_least_float32(logits_in(average(x)))
        return found

    def features_and_logits(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The head's input (None unless the objective needs it) and the logits."""
        head = self.head[0]
        if not self.spec.features or head is None:
            return None, at_least_float32(logits_in(self.model(x)))
        model: Any = self.model
        if getattr(model, "head", None) is head and hasattr(model, "features"):
            features = model.features(x)  # the library's own networks: model(x) is head(features(x))
            return at_least_float32(features), at_least_float32(head(features))
        inputs = []
        hook = head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            logits = logits_in(self.model(x))
        finally:
            hook.remove()
        if len(inputs) != 1 or inputs[0].ndim != 2 or logits.shape != (len(x), head.out_features):
            raise RattleError(
                "the Taylor terms need a linear head whose output is the logits, run once on [n, d] features; "
                "name it with head, or set objective.taylor.order 0"
            )
        return at_least_float32(inputs[0]), at_least_float32(logits)

    def logits_at(self, x: Tensor, u: Delta) -> Tensor:
        """Logits at w + u, differentiable by w; BatchNorm's running statistics do not move."""
        with frozen_bn_stats(self.model):
            return at_least_float32(logits_along(self.model, x, u))


def logits_along(model: nn.Module, x: Tensor, u: Delta) -> Tensor:
    """Logits at w + u, differentiable by w."""
    weights = dict(model.named_parameters())
    moved = {name: weights[name] + delta for name, delta in u.items()}
    return logits_in(functional_call(model, moved, (x,)))


def at_least_float32(values: Tensor) -> Tensor:
    """Losses and head gradients are computed in single precision at least, whatever autocast made of the outputs."""
    if not values.is_floating_point():
        raise RattleError(f"the model returned {values.dtype}, which has no gradient: return floating-point logits")
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """In the body autocast is off: losses are computed in single precision at least, matrix products too."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def keep_logits(model: nn.Module) -> nn.Module:
    """The model, which from now on returns its logits alone, see `logits_in`; the names of its weights stay."""
    model.register_forward_hook(_logits_alone)
    return model


def _logits_alone(module: nn.Module, args: object, output: object) -> Tensor | None:
    return None if isinstance(output, Tensor) else logits_in(output)  # None: the output stays
