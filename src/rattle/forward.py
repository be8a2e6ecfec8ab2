"""The forward passes that an objective is computed from: at x and at x', with what the Taylor terms need of each."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel

from rattle.errors import RattleError
from rattle.losses import logits_in
from rattle.taylor import directional
from rattle.weights import Noise, eval_mode, frozen_bn_stats, repeated_bn_updates

Statistics = Literal["ca", "a", "caacacac"]
Pairs = tuple[tuple[Tensor, Tensor], ...]  # (at x, at x'), each [n, C]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSpec:
    """What an objective needs of the model."""

    clean: bool = True  # the logits at x
    features: bool = False  # the inputs of the linear head (readings head and released)
    derivatives: int = 0  # directional derivatives of the logits along u, up to this order (readings exact and trace)
    sampled: bool = False  # the logits at w + u (reading sampled)
    antithetic: bool = False  # and at w - u
    share: float = 1.0  # of the loss at w + u; the rest is at w (reading sampled)
    statistics: Statistics = "ca"  # the moves of BatchNorm's running statistics: c towards those of x, a towards x'
    head_noise: bool = False  # how large u is on the head (reading head-noise)
    further: bool = False  # the logits at further images, which the objective prepares
    taught_clean: tuple[str, ...] = ()  # the teachers whose logits at x it needs
    taught_adv: tuple[str, ...] = ()  # and at x'

    @property
    def noise(self) -> bool:
        """Whether the outer step draws u."""
        return self.derivatives > 0 or self.sampled


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
    head_variance: Tensor | None = None  # of u on each row of the head, [C]

    @property
    def pairs(self) -> Pairs:
        """The logits that a loss is averaged over: at every draw of u (E_u by Monte Carlo), or at w alone."""
        assert self.logits is not None, "needs() asks for the logits at x"
        return self.sampled or ((self.logits, self.logits_adv),)

    @property
    def draws_adv(self) -> list[Tensor]:
        """The same at x' alone."""
        return [logits_adv for _, logits_adv in self.sampled] or [self.logits_adv]


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

    def forward(
        self, x: Tensor, x_adv: Tensor, u: tuple[Mapping[str, Tensor], ...] = (), extra: Tensor | None = None
    ) -> Outputs:
        """`u` are draws of the weight noise, for the readings that average over it in the outer step, or its deviation
        in the place of a draw (head-noise); `extra` images are looked at too."""
        spec = self.spec
        moves = spec.statistics
        with nullcontext() if moves in ("ca", "a") else repeated_bn_updates(self.model, moves):
            with frozen_bn_stats(self.model) if moves == "a" else nullcontext():
                features, logits = self.features_and_logits(x) if spec.clean else (None, None)
            features_adv, logits_adv = self.features_and_logits(x_adv)
        derivatives, sampled = (), ()
        if spec.derivatives:
            at_x, at_x_adv = (self.derivatives_at(part, u) for part in (x, x_adv))
            derivatives = tuple(zip(at_x, at_x_adv, strict=True))
        if spec.sampled:
            points = [
                {name: sign * d for name, d in draw.items()} for draw in u for sign in (1, -1)[: 1 + spec.antithetic]
            ]
            sampled = tuple((self.logits_at(x, point), self.logits_at(x_adv, point)) for point in points)
        return Outputs(
            logits,
            logits_adv,
            features,
            features_adv,
            derivatives,
            sampled,
            None if extra is None else self.features_and_logits(extra)[1],
            self.taught(spec.taught_clean, x),
            self.taught(spec.taught_adv, x_adv),
            head_variance=self.head_variance(u[0]) if spec.head_noise else None,
        )

    def taught(self, names: tuple[str, ...], x: Tensor) -> dict[str, Tensor]:
        """The logits of these teachers; those of the average are missing until it has begun."""
        found = {n: at_least_float32(logits_in(self.teachers[n](x))) for n in names if n in self.teachers}
        average = self.average[0]
        if average is not None and "average" in names and int(average.n_averaged) > 0:
            with torch.no_grad(), eval_mode(average):
                found["average"] = at_least_float32(logits_in(average(x)))
        return found

    def draws(self, noise: Noise, samples: int, *, generator: torch.Generator) -> tuple[dict[str, Tensor], ...]:
        """The `u` of a forward pass: fresh draws, the same for x and x'; the deviation of the noise for head-noise."""
        if self.spec.head_noise:
            return (noise.deviations(self.model),)
        return tuple(noise(self.model, generator=generator) for _ in range(samples if self.spec.noise else 0))

    def derivatives_at(self, x: Tensor, u: tuple[Mapping[str, Tensor], ...]) -> list[Tensor]:
        """The directional derivatives of each order along every draw, [draws n, C]."""
        orders = zip(*(directional(self.model, x, draw, self.spec.derivatives) for draw in u), strict=True)
        return [at_least_float32(torch.cat(draws)) for draws in orders]

    def head_variance(self, deviations: Mapping[str, Tensor]) -> Tensor:
        """The variance of the noise on each row of the head, [C]."""
        head = self.head[0]
        (name,) = (name for name, p in self.model.named_parameters() if head is not None and p is head.weight)
        if name not in deviations:
            raise RattleError(f"objective.taylor.mode head-noise needs noise on {name}: set noise.where matrices")
        if deviations[name].numel() != self.model.get_parameter(name).shape[0]:
            raise RattleError(
                "objective.taylor.mode head-noise takes the deviations of u: (Noise().deviations(model),)"
            )
        return deviations[name].flatten().square()

    def features_and_logits(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The head's input (None unless the objective needs it) and the logits."""
        head = self.head[0]
        if not self.spec.features or head is None:
            return None, at_least_float32(logits_in(self.model(x)))
        if isinstance(self.model, HasHead) and self.model.head is head:
            features = self.model.features(x)
            return at_least_float32(features), at_least_float32(self.model.head(features))
        inputs: list[Tensor] = []
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

    def logits_at(self, x: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        """Logits at w + u, differentiable by w; BatchNorm's running statistics do not move."""
        parameters = dict(self.model.named_parameters())
        with frozen_bn_stats(self.model):
            perturbed = {name: parameters[name] + delta for name, delta in u.items()}
            return at_least_float32(logits_in(functional_call(self.model, perturbed, (x,))))


@runtime_checkable
class HasHead(Protocol):
    """The library's own networks: model(x) is head(features(x)). In any other model a hook reads the head's input."""

    head: nn.Module

    def features(self, x: Tensor) -> Tensor: ...


def at_least_float32(values: Tensor) -> Tensor:
    """Losses and head gradients are computed in single precision at least, whatever autocast made of the outputs."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def keep_logits(model: nn.Module) -> nn.Module:
    """The model, which from now on returns its logits alone, see `logits_in`; the names of its weights stay."""
    model.register_forward_hook(_logits_alone)
    return model


def _logits_alone(module: nn.Module, args: object, output: object) -> Tensor | None:
    return None if isinstance(output, Tensor) else logits_in(output)  # None: the output stays
