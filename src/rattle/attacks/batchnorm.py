"""BatchNorm folded into convolutions: the same network for an attack that asks it ten thousand times, but faster.

In evaluation mode BatchNorm is a fixed scale and shift of each channel, which the convolution before it can do itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rattle.weights import eval_mode


@contextmanager
def attack_mode(model: nn.Module) -> Iterator[None]:
    """What every attack runs in: evaluation mode, no weight asks for a gradient, BatchNorm is one multiply-add."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    with eval_mode(model), affine_batchnorm(model):
        for p in wanted:
            p.requires_grad_(False)
        try:
            with torch.enable_grad():
                yield
        finally:
            for p in wanted:
                p.requires_grad_(True)


@contextmanager
def affine_batchnorm(model: nn.Module) -> Iterator[None]:
    """Evaluation-mode BatchNorm as the multiply-add it then is; equal to float rounding, and no input is kept for it.

    torch's own backward sums gradients for weight and bias whether anybody asks or not: an eighth of an attack's time
    on slim networks (docs/performance.md). Compiled models are left alone: the compiler does the same.
    """
    plain = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    compiled = getattr(model, "_compiled_call_impl", None) is not None or hasattr(model, "_orig_mod")
    norms = [
        m
        for m in model.modules()
        if isinstance(m, _BatchNorm) and not m.training and m.running_mean is not None and type(m).forward in plain
    ]
    norms = [] if compiled else [m for m in norms if "forward" not in vars(m)]
    for module in norms:
        module.forward = multiply_add(module)
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def multiply_add(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
    """x -> scale x + shift, by the running statistics; what the layer itself does for other types (autocast)."""
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None and var is not None, "asked of layers with statistics"  # noqa: PT018
    with torch.no_grad():
        scale = (var + norm.eps).rsqrt() if norm.weight is None else norm.weight * (var + norm.eps).rsqrt()
        shift = -mean * scale if norm.bias is None else norm.bias - mean * scale

    def forward(x: Tensor) -> Tensor:
        if x.dtype != scale.dtype or x.ndim < 2:
            return type(norm).forward(norm, x)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(shift.view(shape), x, scale.view(shape))

    return forward


TOLERANCE = 1e-4  # relative, for logits and gradients


def folded(model: nn.Module, x: Tensor) -> nn.Module | None:
    """A twin of a model in evaluation mode, its BatchNorms folded and its kernels channels-last.

    The twin is used only if, on the images x, it has the model's logits and gradients; None when it has not, when the
    model cannot be traced, draws at random, or has nothing to fold. The model itself is not touched.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return None
    try:
        once, again = answers(model, x), answers(model, x)
        if not all(torch.equal(a, b) for a, b in zip(once, again, strict=True)):
            return None
        twin = fold(fx.symbolic_trace(model))
        same = all(close(a, b) for a, b in zip(once, answers(twin, x), strict=True))
    except Exception:  # tracing runs the model's own code on proxies: whatever it raises, the model itself still works
        return None
    return twin if same else None


def answers(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a sum that tells the classes apart."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        logits = model(leaf)
        weights = torch.linspace(-1, 1, logits.shape[1], device=x.device, dtype=logits.dtype)
        return logits.detach(), torch.autograd.grad((logits * weights).sum(), leaf)[0]


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * a.abs().max())


def fold(twin: fx.GraphModule) -> fx.GraphModule:
    """Give the traced network its own kernels, and take out every BatchNorm that alone follows a convolution."""
    modules: dict[str, Any] = dict(twin.named_modules())
    for node in list(twin.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.Conv2d | nn.BatchNorm2d):
            continue
        module, source = modules[node.target], node.args[0]
        own: Any
        if isinstance(module, nn.Conv2d):
            own = copy.deepcopy(module)
        elif source.op == "call_module" and isinstance(modules[source.target], nn.Conv2d) and len(source.users) == 1:
            own = fuse_conv_bn_eval(modules[source.target], module)
            node.replace_all_uses_with(source)
            twin.graph.erase_node(node)
            node = source
        else:
            continue
        modules[node.target] = own.to(memory_format=torch.channels_last)
        twin.set_submodule(node.target, modules[node.target])
    twin.recompile()
    return twin
