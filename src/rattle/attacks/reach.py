"""What a square of changed pixels reaches in the layers of a network: see `patches`, which computes only that."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

POINTWISE_MODULES = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Softplus}
POINTWISE_MODULES |= {nn.Tanh, nn.Sigmoid, nn.Identity, nn.Dropout, nn.BatchNorm2d}  # all in evaluation mode
POINTWISE = dict[Any, Callable[..., Tensor]](  # as a traced network names them -> what to run: nothing in place
    {f: f for f in (torch.relu, torch.tanh, torch.sigmoid, torch.add, torch.sub, torch.mul, torch.div)}
    | {f: f for f in (F.relu, F.relu6, F.leaky_relu, F.elu, F.silu, F.gelu, F.hardswish, F.softplus)}
    | {f: f for f in (operator.add, operator.sub, operator.mul, operator.truediv)}
    | {operator.iadd: torch.add, operator.isub: torch.sub, operator.imul: torch.mul}
    | {f.__name__: f for f in (torch.relu, torch.tanh, torch.sigmoid, torch.add, torch.sub, torch.mul, torch.div)}
)


class Span(NamedTuple):
    """Rows, or columns, of a layer that a square reaches."""

    first: Tensor  # for every place of the square, [places]
    size: int  # how many from there on, alike for all places
    length: int  # of the whole axis

    def through(self, kernel: int, stride: int, padding: int) -> "Span":
        """After a filter: all outputs that touch it, and so many that what they read contains it (see `read_by`)."""
        length = (self.length + 2 * padding - kernel) // stride + 1
        first = torch.minimum(-((kernel - 1 - padding - self.first) // stride), (self.first + padding) // stride)
        last = ((self.first + self.size - 1 + padding) // stride).clamp(max=length - 1)
        first = first.clamp(min=0).minimum(last)
        size = int((last - first).max()) + 1
        return Span(first.clamp(max=length - size), size, length)

    def read_by(self, kernel: int, stride: int, padding: int) -> tuple[Tensor, int]:
        """First row and number of rows that a filter reads for this output; `stride - 1` more, which change nothing."""
        return self.first * stride - padding, self.size * stride + kernel - 1

    def joined(self, other: "Span") -> "Span":
        first = torch.minimum(self.first, other.first)
        size = int((torch.maximum(self.first + self.size, other.first + other.size) - first).max())
        return Span(first.clamp(max=self.length - size), size, self.length)

    def same(self, other: "Span") -> bool:
        return self.size == other.size and torch.equal(self.first, other.first)


Window = tuple[Span, Span]  # rows and columns


class Filter(NamedTuple):
    """A convolution or pooling: for both axes how it moves, and itself without padding."""

    moves: list[tuple[int, int, int]]  # kernel, stride, padding
    run: Callable[[Tensor], Tensor]
    multiplications: int = 0  # for each number of its output


def filter_of(module: nn.Module) -> Filter | None:
    """None for a module that is no filter, or one with holes, borders or rounding of another kind."""
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and module.dilation == (1, 1):
        if isinstance(module.padding, str):
            return None
        moves = list(zip(module.kernel_size, module.stride, module.padding, strict=True))
        run = partial(F.conv2d, weight=module.weight, bias=module.bias, stride=module.stride, groups=module.groups)
        return Filter(moves, run, module.weight[0].numel())
    plain = getattr(module, "padding", 0) in (0, (0, 0)) and getattr(module, "dilation", 1) in (1, (1, 1))
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d) and plain and not module.ceil_mode:
        kernel, stride = ((n, n) if isinstance(n, int) else n for n in (module.kernel_size, module.stride))
        return Filter([(k, s, 0) for k, s in zip(kernel, stride, strict=True)], module)
    return None


class Recorder(fx.Interpreter):
    """Runs a traced network and hands every value to `see` at once: a later layer may overwrite it."""

    def __init__(self, traced: fx.GraphModule, see: Callable[[fx.Node, Any], None]) -> None:
        super().__init__(traced)
        self.see = see

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.see(n, value)
        return value


class Layers:
    """A traced network: the shape of every value, which values are constants, and what nodes do."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.traced = fx.symbolic_trace(model)
        self.nodes = list(self.traced.graph.nodes)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.constants: dict[fx.Node, Tensor] = {}
        self.filters: dict[fx.Node, Filter] = {}
        self.pointwise: dict[fx.Node, Callable[..., Tensor]] = {}
        for node in self.nodes:
            self.sort(node)
        Recorder(self.traced, self.see).run(x)

    def sort(self, node: fx.Node) -> None:
        """Find out whether a node is a filter, or treats every pixel by itself."""
        keywords = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        if any(isinstance(value, fx.Node) for value in keywords.values()):
            return  # steps hand their inputs over by place
        if node.op in ("call_function", "call_method") and node.target in POINTWISE:
            self.pointwise[node] = partial(POINTWISE[node.target], **keywords)
        elif node.op == "call_module":
            module = self.traced.get_submodule(str(node.target))
            hooked = module._forward_hooks or module._forward_pre_hooks
            if type(module) in POINTWISE_MODULES and not hooked:
                overwrites = getattr(module, "inplace", False)
                self.pointwise[node] = (lambda x, module=module: module(x.clone())) if overwrites else module
            elif (found := filter_of(module)) and not hooked:
                self.filters[node] = found

    def see(self, node: fx.Node, value: Any) -> None:
        if isinstance(value, Tensor):
            self.shapes[node] = tuple(value.shape)
            made = node.op == "get_attr" or (node.op, node.target) == ("call_method", "new_tensor")
            if made or (node.target in ("view", "reshape") and node.args[0] in self.constants):
                self.constants[node] = value

    def window_of(self, node: fx.Node, side: int, known: dict[fx.Node, Window]) -> Window | None:
        """What a square reaches of a node's value, from what it reaches of its inputs; None if that is not known."""
        shape = self.shapes.get(node, ())
        if len(shape) != 4:
            return None
        if node.op == "placeholder":
            rows, columns = (Span(torch.arange(length - side + 1), side, length) for length in shape[2:])
            return rows, columns
        inputs = [n for n in node.all_input_nodes if n not in self.constants]
        if not inputs or any(n not in known for n in inputs):
            return None
        rows, columns = known[inputs[0]]
        if found := self.filters.get(node):
            return rows.through(*found.moves[0]), columns.through(*found.moves[1])
        constants = [self.constants[n] for n in node.all_input_nodes if n in self.constants]
        uneven = any(constant.ndim and set(constant.shape[-2:]) != {1} for constant in constants)
        if node not in self.pointwise or uneven or any(self.shapes[n] != shape for n in inputs):
            return None
        for more in inputs[1:]:
            rows, columns = rows.joined(known[more][0]), columns.joined(known[more][1])
        return rows, columns

    def multiplications(self, node: fx.Node) -> int:
        """How many a node needs for one image."""
        if node in self.filters:
            return self.filters[node].multiplications * math.prod(self.shapes[node][1:])
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        return module.in_features * math.prod(self.shapes[node][1:]) if isinstance(module, nn.Linear) else 0
