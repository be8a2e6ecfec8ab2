"""Networks: every one is features(x) then head(h), and takes images in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rattle.errors import RattleError, unknown
from rattle.models.small import SmallCNN

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "cnn": lambda **shape: SmallCNN(**shape),
    "cnn-plain": lambda **shape: SmallCNN(norm=False, **shape),
}


def build(name: str, *, classes: int, channels: int = 3, width: int | None = None) -> nn.Module:
    """The network of that name, freshly initialised from torch's random state.

    >>> import torch
    >>> build("cnn", classes=10, channels=1)(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    if name not in BUILDERS:
        raise unknown("model", name, BUILDERS)
    if classes < 2:
        raise RattleError(f"a classifier needs at least 2 classes, got {classes}")
    options = {} if width is None else {"width": width}
    return BUILDERS[name](classes=classes, channels=channels, **options)


def find_head(model: nn.Module, name: str | None = None) -> nn.Linear:
    """The last linear layer, or the one the user names: what the Taylor terms differentiate by."""
    if name:
        module = dict(model.named_modules()).get(name)
        if not isinstance(module, nn.Linear):
            raise RattleError(f"the model has no linear layer named {name!r}")
        return module
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise RattleError(
            "objective.order >= 1 needs a linear head, and the model has no nn.Linear; set objective.order 0"
        )
    return linear[-1]


__all__ = ["BUILDERS", "SmallCNN", "build", "find_head"]
