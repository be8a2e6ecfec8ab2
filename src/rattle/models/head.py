"""Find the linear head of a model; check that its logits fit the classes of the data."""

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.inputs import logits_of
from rattle.losses import logits_in, refuse_one_logit
from rattle.weights import eval_mode

LISTED_LAYERS = 8  # linear layers that an error lists, the last ones


def find_head(model: nn.Module, name: str | None = None, *, example: Tensor | None = None) -> nn.Linear:
    """The linear layer that computes the logits; the Taylor terms differentiate by its weights.

    name: the layer, as `named_modules` calls it. example: without a name, images [n, C, H, W] by which to find the
    layer whose output is the model's. With neither, the last linear layer.
    """
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    if name:
        if name not in linear:
            raise RattleError(f"the model has no linear layer named {name!r}{_names(linear)}")
        return linear[name]
    if not linear:
        raise RattleError(
            "the Taylor terms need the linear head that gives the logits, and the model has no nn.Linear; "
            "choose a method without -1st and -2nd"
        )
    return list(linear.values())[-1] if example is None else _layer_of_logits(model, linear, example)


def _names(linear: dict[str, nn.Linear]) -> str:
    return f"; its last linear layers, for --head NAME (head= in Python): {', '.join([*linear][-LISTED_LAYERS:])}"


def _layer_of_logits(model: nn.Module, linear: dict[str, nn.Linear], example: Tensor) -> nn.Linear:
    outputs = {}
    hooks = [m.register_forward_hook(lambda m, _, out: outputs.update({m: out})) for m in linear.values()]
    try:
        with torch.no_grad(), eval_mode(model):
            logits = logits_in(model(example))
    finally:
        for hook in hooks:
            hook.remove()
    for layer, out in outputs.items():
        if out.data_ptr() == logits.data_ptr() and out.shape == logits.shape:
            return layer
    raise RattleError(
        "the Taylor terms need the linear head that gives the logits, and the model's output does not come straight "
        f"out of a linear layer{_names(linear)}; or choose a method without -1st and -2nd"
    )


def check_width(model: nn.Module, x: Tensor, classes: int) -> None:
    """Raise RattleError if the model does not return logits [n, classes] for images x [n, C, H, W]."""
    with torch.no_grad(), eval_mode(model):
        logits = logits_of(model, x[:2])
    refuse_one_logit(logits)
    if logits.shape[1] != classes:
        raise RattleError(f"the model has {logits.shape[1]} outputs, but the data have {classes} classes")
