"""The machine's own limit: a network's convolutions and nothing else, as often as the algorithm cannot avoid.

Every convolution is run alone on tensors of its own shapes, forward, backward by its input and backward by its weight,
in both memory layouts; the faster one counts. What a step takes beyond that is everything that is no convolution.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rattle.bench.measure import Timing, settle
from rattle.weights import eval_mode


@dataclass(frozen=True, slots=True)
class Shape:
    """What one convolution is asked to do."""

    image: tuple[int, ...]  # of its input, [n, C, H, W]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    first: bool  # its input is the image: no gradient is needed by it in the outer step

    @property
    def multiplications(self) -> int:
        """Of one forward, for one image; each counts as two floating-point operations."""
        height, width = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(
                self.image[2:], self.padding, self.dilation, self.weight[2:], self.stride, strict=True
            )
        )
        outputs, inputs, *kernel = self.weight
        return height * width * outputs * inputs * kernel[0] * kernel[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often an algorithm cannot avoid going through the network."""

    forward: int
    by_input: int  # backwards that need the gradient by activations only
    full: int  # backwards that need the gradients by weights too

    @staticmethod
    def of(*, steps: int, clean_target: bool, looks: int, awp: bool) -> Passes:
        """Inner: K forwards and K backwards by input, and a forward for a clean target; outer: one of each a look."""
        looks = looks * (2 if awp else 1)  # AWP looks once more, for its ascent
        return Passes(forward=steps + clean_target + looks, by_input=steps, full=looks)


def convolutions(model: nn.Module, x: Tensor) -> Counter[Shape]:
    """Every convolution that one forward runs, recorded by hooks, and how often."""
    found: Counter[Shape] = Counter()

    def record(layer: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        image, same = inputs[0], isinstance(layer.padding, str)
        padding = tuple(d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
        found[
            Shape(
                image=tuple(image.shape),
                weight=tuple(layer.weight.shape),
                stride=tuple(layer.stride),
                padding=padding if same else tuple(layer.padding),
                dilation=tuple(layer.dilation),
                groups=layer.groups,
                first=not found,
            )
        ] += 1

    hooks = [layer.register_forward_hook(record) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    try:
        with torch.no_grad(), eval_mode(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


class Limit:
    """Times every convolution once a call, in both layouts; `timing` multiplies by the passes of an algorithm."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.shapes, self.clock = convolutions(model, x), clock
        self.device, self.dtype = x.device, dtype
        self.calls: list[tuple[float, float, float]] = []

    def flop(self, passes: Passes) -> int:
        """Floating-point operations for one image; a full backward costs two forwards, less the image's gradient."""
        total = 0
        for shape, count in self.shapes.items():
            times = passes.forward + passes.by_input + (1 if shape.first else 2) * passes.full
            total += 2 * shape.multiplications * count * times
        return total

    def __call__(self) -> None:
        """One measurement: seconds of all forwards, backwards by input, full backwards."""
        sums = [0.0, 0.0, 0.0]
        for shape, count in self.shapes.items():
            for i, seconds in enumerate(self.best(shape)):
                sums[i] += count * seconds
        self.calls.append((sums[0], sums[1], sums[2]))

    def best(self, shape: Shape) -> tuple[float, ...]:
        """Seconds of each kind of pass in the faster layout."""
        each = [self.once(shape, layout) for layout in (torch.channels_last, torch.contiguous_format)]
        return tuple(map(min, zip(*each, strict=True)))

    def once(self, shape: Shape, layout: torch.memory_format) -> list[float]:
        make = {"device": self.device, "dtype": self.dtype}
        image = torch.rand(shape.image, **make).contiguous(memory_format=layout)
        weight = torch.rand(shape.weight, **make).contiguous(memory_format=layout)
        geometry = (shape.stride, shape.padding, shape.dilation)

        def forward() -> Tensor:
            return torch.conv2d(image, weight, None, *geometry, shape.groups)

        out = torch.zeros_like(forward())

        def backward(by_input: bool, by_weight: bool) -> Callable[[], object]:
            mask = [by_input, by_weight, False]
            return lambda: torch.ops.aten.convolution_backward(
                out, image, weight, None, *geometry, False, [0, 0], shape.groups, mask
            )

        return [self.timed(f) for f in (forward, backward(True, False), backward(not shape.first, True))]

    def timed(self, call: Callable[[], object]) -> float:
        """The better of two tries."""
        tries = []
        for _ in range(2):
            settle()
            begun = self.clock()
            call()
            settle()
            tries.append(self.clock() - begun)
        return min(tries)

    def timing(self, passes: Passes, rounds: int) -> Timing:
        """The limit of each of the last rounds."""
        return Timing(
            tuple(
                passes.forward * forward + passes.by_input * by_input + passes.full * full
                for forward, by_input, full in self.calls[-rounds:]
            )
        )
