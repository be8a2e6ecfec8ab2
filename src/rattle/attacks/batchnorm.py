"""Faster BatchNorm for attacks: one multiply-add in evaluation mode, or folded into the convolutions of a copy."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rattle.errors import first_line

log = logging.getLogger("rattle")
SAID: WeakSet[nn.Module] = WeakSet()  # models of which it was said that they are attacked as they are
TOLERANCE = 1e-4  # relative difference that a folded copy may show in logits and gradients


@contextmanager
def affine_batchnorm(model: nn.Module) -> Iterator[None]:
    """Run BatchNorm layers in evaluation mode as a multiply-add, equal up to float rounding.

    torch's own backward sums gradients for weight and bias even if they are not needed: an eighth of an attack's time
    on slim networks (docs/studies/performance.md). Compiled models are left alone: the compiler does the same.
    """
    compiled = getattr(model, "_compiled_call_impl", None) is not None or hasattr(model, "_orig_mod")
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and not compiled and "forward" not in vars(m)]
    norms = [m for m in norms if type(m).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)]
    norms = [m for m in norms if not m.training and m.running_mean is not None]
    for norm in norms:
        norm.forward = multiply_add(norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def multiply_add(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
    """x -> scale x + shift by the running statistics; inputs of another dtype (autocast) go to the layer itself."""
    mean, var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    with torch.no_grad():
        scale = (var + norm.eps).rsqrt() if norm.weight is None else norm.weight * (var + norm.eps).rsqrt()
        shift = -mean * scale if norm.bias is None else norm.bias - mean * scale

    def forward(x: Tensor) -> Tensor:
        if x.dtype != scale.dtype or x.ndim < 2:
            return type(norm).forward(norm, x)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(shift.view(shape), x, scale.view(shape))

    return forward


def fold_batchnorm(model: nn.Module, x: Tensor) -> nn.Module | None:
    """A copy of a model in evaluation mode with BatchNorm folded into convolutions, and channels-last kernels.

    None if it has no BatchNorm; None also, and said once, if it is random, answers otherwise among other images, cannot
    be traced, or the copy's logits or gradients at the images x differ.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return None
    folded, reason = checked_copy(model, x)
    if reason:
        say_once(model, reason)
    return folded


def say_once(model: nn.Module, reason: str) -> None:
    """Warn that a model is attacked as it is, slower than it might be."""
    if model not in SAID:
        SAID.add(model)
        log.warning("attacks ask the network itself, not a faster copy: %s", reason)


def checked_copy(model: nn.Module, x: Tensor) -> tuple[nn.Module | None, str]:
    """The folded copy, or why there is none."""
    try:
        answers = [logits_and_gradient(model, images) for images in (x, x, x[:1], x.repeat(3, *[1] * (x.ndim - 1)))]
        if not all(map(torch.equal, *answers[:2])):
            return None, "it draws at random"
        if not all(agree([part[:1] for part in answers[0]], [part[:1] for part in more]) for more in answers[2:]):
            return None, "what it answers to an image changes with the size of the batch"
        folded: Any = fold_graph(fx.symbolic_trace(copy.deepcopy(model)))
        folded.to(memory_format=torch.channels_last)
        pairs = zip(answers[1:3], (x, x[:1]), strict=True)
        same = all(agree(answer, logits_and_gradient(folded, images)) for answer, images in pairs)
        return (folded, "") if same else (None, "the copy gives other logits or gradients")
    except Exception as reason:  # tracing runs the model's own code on proxies: whatever it raises, the model works
        return None, f"it cannot be traced ({first_line(reason)})"


def agree(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    """Whether logits and gradients are equal up to the tolerance."""
    pairs = zip(wanted, found, strict=True)
    return all(bool((a - b).abs().max() <= TOLERANCE * a.abs().max()) for a, b in pairs)


@torch.enable_grad()
def logits_and_gradient(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a sum that weights every class differently."""
    leaf = x.detach().requires_grad_()
    logits = model(leaf)
    weights = torch.linspace(-1, 1, logits.shape[1], device=x.device, dtype=logits.dtype)
    return logits.detach(), torch.autograd.grad((logits * weights).sum(), leaf)[0]


def fold_graph(traced: fx.GraphModule) -> nn.Module:
    """Fold in place each BatchNorm whose input is a convolution that nothing else reads."""
    for node in list(traced.graph.nodes):
        source = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) > 1:
            continue
        conv, norm = (traced.get_submodule(str(n.target)) for n in (source, node))
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            traced.set_submodule(str(source.target), fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(source)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced
