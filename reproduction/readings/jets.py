"""A network's first and second derivatives along a direction of its weights, carried through it layer by layer.

Beside every value h go its derivatives (h', h'') along u, together its jet. A convolution z = w * h has z' = w * h' +
u * h and z'' = w * h'' + 2 u * h', a ReLU masks both, BatchNorm is differentiated by hand. Operations that have no rule
here raise `NoRule`; `taylor.directional` then nests `torch.func.jvp`, which is the plain twin of this.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rattle.losses import logits_in

Part = Tensor | None  # a derivative; None is zero
Jet = tuple[Any, Part, Part]  # h, h', h''


class NoRule(Exception):
    """An operation that cannot carry derivatives along."""


class Jets(TorchFunctionMode):
    """In the body, whatever is made of weights w that move along u has its jet up to an order, which `of` reads."""

    def __init__(self, along: Sequence[tuple[Tensor, Tensor]], order: int) -> None:
        super().__init__()
        self.order = order
        # By identity, with the version of the tensor. Holds it too, so that no other gets the id of one that is gone.
        self.known: dict[int, tuple[Jet, int]] = {id(w): ((w, u, None), w._version) for w, u in along}

    def of(self, value: Any) -> Jet:
        """The jet of a tensor, or of a number, whose derivatives are zero."""
        if not self.moves(value):
            return value, None, None
        jet, version = self.known[id(value)]
        if version != value._version:
            raise NoRule("a tensor that was changed in place under another name")
        return jet

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for a in (*args, *kwargs.values()) for each in (a if isinstance(a, tuple | list) else (a,))]
        if not any(self.moves(each) for each in given):
            return func(*args, **kwargs)
        strange = [a for a in given if isinstance(a, Tensor) and a.grad_fn is not None and not self.moves(a)]
        if strange or not torch.is_grad_enabled():
            raise NoRule("a tensor made where operations are not seen or not differentiated")
        if func in rules():
            try:
                jet = rules()[func](self, func, *args, **kwargs)
            except TypeError as reason:  # arguments that the rule does not know, such as alpha of torch.add
                raise NoRule(str(reason)) from reason
            self.known[id(jet[0])] = jet, jet[0]._version
            return jet[0]
        out = func(*args, **kwargs)
        if isinstance(out, Tensor | tuple | list) and not isinstance(out, torch.Size):
            raise NoRule(getattr(func, "__name__", str(func)))
        return out  # a shape, a number of dimensions

    def moves(self, value: Any) -> bool:
        return isinstance(value, Tensor) and id(value) in self.known


def plus(*parts: Part) -> Part:
    """The sum of those that are not zero."""
    there = [part for part in parts if part is not None]
    return sum(there[1:], there[0]) if there else None


def each(function: Callable[[Tensor], Tensor], first: Part, second: Part) -> tuple[Part, Part]:
    """The function of both derivatives; that of zero is zero."""
    return None if first is None else function(first), None if second is None else function(second)


def linear(jets: Jets, func: Any, h: Tensor, *args: Any, **kwargs: Any) -> Jet:
    """An operation that is linear in its first argument."""
    value, first, second = jets.of(h)
    return func(value, *args, **kwargs), *each(lambda d: func(d, *args, **kwargs), first, second)


def product(jets: Jets, func: Any, a: Any, b: Any) -> Jet:
    """Leibniz' rule."""
    (a, a1, a2), (b, b1, b2) = jets.of(a), jets.of(b)

    def times(p: Part, q: Part) -> Part:
        return None if p is None or q is None else p * q

    twice = times(a1, b1) if jets.order == 2 else None
    return a * b, plus(times(a1, b), times(a, b1)), plus(times(a2, b), twice, twice, times(a, b2))


def affine(jets: Jets, func: Any, h: Tensor, weight: Tensor, bias: Part = None, *args: Any, **kwargs: Any) -> Jet:
    """A convolution or a linear layer: the same, with a bias."""
    (h, h1, h2), (w, w1, w2), (_, bias1, _) = jets.of(h), jets.of(weight), jets.of(bias)
    if bias1 is not None and w1 is None:
        raise NoRule("a bias that moves without its weights")

    def layer(p: Part, q: Part, bias: Part = None) -> Part:
        return None if p is None or q is None else func(p, q, bias, *args, **kwargs)

    twice = layer(h1, w1) if jets.order == 2 else None
    first = plus(layer(h1, w), layer(h, w1, bias1))
    return func(h, w, bias, *args, **kwargs), first, plus(layer(h2, w), twice, twice, layer(h, w2))


def summed(jets: Jets, func: Any, a: Any, b: Any, *, sign: int = 1) -> Jet:
    """a + b or, with sign -1, a - b."""
    (a, a1, a2), (b, b1, b2) = jets.of(a), jets.of(b)
    value, (b1, b2) = func(a, b), each(lambda d: sign * d, b1, b2)
    return value, *each(lambda d: d.expand_as(value), plus(a1, b1), plus(a2, b2))


def max_pool(jets: Jets, func: Any, h: Tensor, *args: Any, **kwargs: Any) -> Jet:
    """The derivatives where the largest values are."""
    if kwargs.get("return_indices"):
        raise NoRule("max_pool2d with its indices")
    h, first, second = jets.of(h)
    value, index = F.max_pool2d_with_indices(h, *args, **kwargs)
    return value, *each(lambda d: d.flatten(2).gather(2, index.flatten(2)).view_as(value), first, second)


def relu(jets: Jets, func: Any, h: Tensor, **kwargs: Any) -> Jet:
    value, first, second = jets.of(h)
    mask = (value > 0).to(value.dtype)
    return func(value, **kwargs), *each(lambda d: d * mask, first, second)


def batch_norm(
    jets: Jets,
    func: Any,
    h: Tensor,
    running_mean: Part,
    running_var: Part,
    weight: Part = None,
    bias: Part = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Jet:
    """(h - m) r, r = (v + eps)^(-1/2), m and v the batch's; the running statistics do not move."""
    if jets.moves(weight) or jets.moves(bias):
        raise NoRule("batch_norm along its own weights")
    h, first, second = jets.of(h)
    dims, shape = [0, *range(2, h.ndim)], (1, -1, *[1] * (h.ndim - 2))
    if not training:
        assert running_var is not None
        scale = (running_var + eps).rsqrt().view(shape) * (1 if weight is None else weight.view(shape))
        value = func(h, running_mean, running_var, weight, bias, False, momentum, eps)
        return value, *each(lambda d: d * scale, first, second)

    def mean(values: Tensor) -> Tensor:
        return values.mean(dims, keepdim=True)

    a, (b, c) = h - mean(h), each(lambda d: d - mean(d), first, second)
    assert b is not None  # what is known has a first derivative
    r, p = (mean(a * a) + eps).rsqrt(), mean(a * b)  # p: half of v'
    r1 = -p * r**3
    value, first, second = a * r, b * r + a * r1, None
    if jets.order == 2:
        q = mean(b * b) + (0 if c is None else mean(a * c))  # half of v''
        second = 2 * b * r1 + a * (3 * p * p * r**5 - q * r**3) + (0 if c is None else c * r)
    if weight is not None:
        value, (first, second) = value * weight.view(shape), each(lambda d: d * weight.view(shape), first, second)
    return value if bias is None else value + bias.view(shape), first, second


@cache
def rules() -> dict[Any, Callable[..., Jet]]:
    """The rule of every operation that has one."""
    sums = torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__
    shapes = torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, Tensor.contiguous, Tensor.__getitem__
    return {
        **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, F.linear), affine),
        **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), product),
        **dict.fromkeys(sums, summed),
        **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), partial(summed, sign=-1)),
        **dict.fromkeys((F.relu, torch.relu, Tensor.relu), relu),
        **dict.fromkeys((F.avg_pool2d, F.adaptive_avg_pool2d, torch.mean, Tensor.mean, *shapes), linear),
        F.max_pool2d: max_pool,
        F.batch_norm: batch_norm,
    }


def derivatives(model: nn.Module, x: Tensor, u: Mapping[str, Tensor], order: int) -> list[Tensor]:
    """[g'(w)^T u] or, for order 2, [g'(w)^T u, u^T g''(w) u] of the logits g, each [n, C]; differentiable by w.

    Raises NoRule also without gradients: what goes past the rules is noticed by its place in the graph.
    """
    along = [(model.get_parameter(name), delta) for name, delta in u.items()]
    if not (torch.is_grad_enabled() and all(w.requires_grad for w, _ in along)):
        raise NoRule("weights without gradients")
    with Jets(along, order) as jets:
        logits = logits_in(model(x))
    _, first, second = jets.of(logits)
    if first is None:
        raise NoRule("logits that no operation seen has made")
    parts = [first, torch.zeros_like(first) if second is None else second][:order]
    return [part if part.requires_grad else part + 0 * logits for part in parts]  # constant in w, with a gradient of 0
