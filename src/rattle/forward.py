"""The two looks at the model that an objective is made of: at x and at x', with what the Taylor terms need of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rattle.errors import RattleError
from rattle.taylor import directional
from rattle.weights import frozen_bn_stats


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an objective sees. Pairs are (at x, at x'); an empty tuple or None is something it did not ask for."""

    logits: Tensor | None  # [n, C]; None when only x' counts (plain AT)
    logits_adv: Tensor  # [n, C]
    features: Tensor | None = None  # [n, d], the input of the head
    features_adv: Tensor | None = None
    derivatives: tuple[tuple[Tensor, Tensor], ...] = ()  # g'^T u and u^T g'' u, up to the order
    sampled: tuple[tuple[Tensor, Tensor], ...] = field(default=())  # logits at w + u, one pair a draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSpec:
    """What an objective asks to see."""

    clean: bool = True  # the logits at x
    features: bool = False  # the head's inputs (modes head and released)
    derivatives: int = 0  # directional derivatives along u up to this order (mode exact)
    sampled: bool = False  # logits at w + u (mode sampled)


class PairedForward(nn.Module):
    """Model(x) and model(x'), as one module, so that one forward of a DistributedDataParallel wrapper holds both."""

    def __init__(self, model: nn.Module, need: ForwardSpec, head: nn.Linear | None = None) -> None:
        super().__init__()
        self.model, self.need = model, need
        self.watched = [head]  # in a list: the head is the model's, not a module of this one

    def forward(self, x: Tensor, x_adv: Tensor, draws: tuple[Mapping[str, Tensor], ...] = ()) -> Outputs:
        """`draws` are samples of u, for the modes that average over u in the outer step."""
        need = self.need
        features, logits = self.look(x) if need.clean else (None, None)
        features_adv, logits_adv = self.look(x_adv)
        derivatives, sampled = (), ()
        if need.derivatives:
            at_x, at_x_adv = (directional(self.model, part, draws[0], need.derivatives) for part in (x, x_adv))
            derivatives = tuple(zip(at_x, at_x_adv, strict=True))
        if need.sampled:
            sampled = tuple((self.at(x, u), self.at(x_adv, u)) for u in draws)
        return Outputs(logits, logits_adv, features, features_adv, derivatives, sampled)

    def look(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The head's input, when asked for, and the logits."""
        head = self.watched[0]
        if not self.need.features or head is None:
            return None, wide(self.model(x))
        if isinstance(self.model, HasHead) and self.model.head is head:
            features = self.model.features(x)
            return features, wide(self.model.head(features))
        seen: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = self.model(x)
        finally:
            handle.remove()
        if len(seen) != 1 or seen[0].ndim != 2 or logits.shape != (len(x), head.out_features):
            raise RattleError(
                "objective.order >= 1 needs a linear head whose output is the logits, run once on [n, d] features; "
                "name it with head, or set objective.order 0"
            )
        return seen[0], wide(logits)

    def at(self, x: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        """Logits at w + u, differentiable by w, statistics held."""
        parameters = dict(self.model.named_parameters())
        with frozen_bn_stats(self.model):
            moved = {name: parameters[name] + delta for name, delta in u.items()}
            return wide(functional_call(self.model, moved, (x,)))


@runtime_checkable
class HasHead(Protocol):
    """Our own networks: model(x) is head(features(x)); a head inside any other model is watched by a hook."""

    head: nn.Module

    def features(self, x: Tensor) -> Tensor: ...


def wide(logits: Tensor) -> Tensor:
    """Losses are computed in single precision at least, whatever autocast made of the logits."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
