"""The machine's own limit: a network's convolutions and nothing else, as often as the algorithm cannot avoid.

Every convolution is run alone on tensors of its own shapes, forward, backward by its input and backward by its weight,
in both memory layouts; the faster one counts. What a step takes beyond that is everything that is no convolution.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rattle.objectives.mma import SEARCH_STEPS
from rattle.recipes.recipe import Recipe
from rattle.weights import eval_mode
from reproduction.bench.measure import Rounds, timed


@dataclass(frozen=True, slots=True)
class Convolution:
    """The shapes of one convolution."""

    image: tuple[int, ...]  # its input, [n, C, H, W]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    geometry: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups
    first: bool  # its input is the image, by which the outer step needs no gradient

    @property
    def multiplications(self) -> int:
        """Of one forward, for one image; each counts as two floating-point operations."""
        return math.prod(self.output[2:]) * math.prod(self.weight)


class Passes(NamedTuple):
    """How often a training step cannot avoid going through the network."""

    forward: int
    by_input: int  # backward passes that need the gradient by activations only
    full: int  # backward passes that need the gradients by weights too


def unavoidable_passes(recipe: Recipe) -> Passes:
    """Inner loop: K forwards and K backwards by input, and a forward for a clean target; outer: one of each an image.

    A teacher adds a forward where the objective asks for its logits, and a full pass where it is trained along. AWP
    doubles the outer passes, for its ascent. An attack that may stop early counts as if no image did. A minibatch
    that is trained on several times counts them together.
    """
    objective, needs, times = recipe.objective, recipe.objective.needs, 2 if recipe.awp else 1
    along = sum(how == "cotrained" and teacher.weights is None for teacher, how in objective.teachers.values())
    taught = len(needs.taught_clean) + len(needs.taught_adv)
    inner, by_input = inner_passes(recipe)
    outer = times * (1 + needs.clean + needs.extra)
    passes = Passes(forward=inner + outer + times * taught, by_input=by_input, full=outer + times * along)
    return Passes(*(recipe.replays * count for count in passes))


def inner_passes(recipe: Recipe) -> tuple[int, int]:
    """Forward and backward passes of the inner attack, at most."""
    steps, kind = recipe.attack.steps, type(recipe.objective).__name__
    own = {
        "Standard": (0, 0),
        "Free": (0, 0),  # the gradient by the images is a part of the outer backward pass
        "GAT": (2, 1),  # with the guide's forward, which every second step has
        "GATTrades": (2, 1),
        "NFGSM": (1, 1),
        "MMA": (1 + steps + SEARCH_STEPS, steps),
    }
    return own.get(kind, (steps + (recipe.attack.loss == "kl"), steps))


class ConvolutionRecorder(TorchDispatchMode):
    """Counts the convolutions that run while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Convolution] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            image, weight, _, *geometry = args
            shapes = [tuple(part.shape) for part in (image, weight, result)]
            settings = tuple(tuple(part) if isinstance(part, list) else part for part in geometry)
            self.found[Convolution(*shapes, geometry=settings, first=not self.found)] += 1
        return result


def convolutions(model: nn.Module, x: Tensor) -> Counter[Convolution]:
    """Every convolution that one forward pass runs, and how often."""
    with ConvolutionRecorder() as recorder, torch.no_grad(), eval_mode(model):
        model(x)
    return recorder.found


class Limit:
    """Times every convolution of a model once a call, in both layouts.

    `dtype` is that of the tensors, as autocast would make them; `clock` counts the seconds, "wall" or "processor".
    """

    def __init__(self, model: nn.Module, x: Tensor, *, dtype: torch.dtype = torch.float32, clock: str = "wall") -> None:
        self.convolutions, self.clock, self.device, self.dtype = convolutions(model, x), clock, x.device, dtype
        self.calls: list[np.ndarray] = []  # seconds of all forwards, backwards by input, full backwards

    def flop(self, passes: Passes) -> int:
        """Floating-point operations for one image; a full backward costs two forwards, less the image's gradient."""
        return sum(
            2 * shape.multiplications * count * (passes.forward + passes.by_input + (2 - shape.first) * passes.full)
            for shape, count in self.convolutions.items()
        )

    def __call__(self) -> None:
        sums = np.zeros(3)
        for shape, count in self.convolutions.items():
            layouts = [self.seconds(shape, layout) for layout in (torch.channels_last, torch.contiguous_format)]
            sums += count * np.min(layouts, axis=0)
        self.calls.append(sums)

    def seconds(self, shape: Convolution, layout: torch.memory_format) -> list[float]:
        """Of a forward, a backward by input and a full backward."""
        image, weight = (
            torch.rand(size, device=self.device, dtype=self.dtype).contiguous(memory_format=layout)
            for size in (shape.image, shape.weight)
        )
        settings, aten = (image, weight, None, *shape.geometry), torch.ops.aten
        forward = partial(aten.convolution, *settings)
        backward = partial(aten.convolution_backward, torch.zeros_like(forward()), *settings)
        passes = (forward, partial(backward, [True, False, False]), partial(backward, [not shape.first, True, False]))
        return [min(timed(each)[self.clock] for _ in range(2)) for each in passes]  # the better of two tries

    def rounds(self, passes: Passes) -> Rounds:
        """Seconds that the passes take at least, in each call."""
        return Rounds(tuple(float(np.dot(passes, call)) for call in self.calls))
