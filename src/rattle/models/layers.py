"""What the networks share: features and head, convolutions, the activation, stages of blocks, normalisation.

Every network takes the same options: classes (number of logits), channels (of the images), width (channels of the
first convolution, which scales every layer), activation (a name in ACTIVATIONS) and normalise (a MeanStd).
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, unknown
from rattle.inputs import NARROW

MeanStd = tuple[Sequence[float], Sequence[float]] | None  # mean and std of each channel; None: images as they are

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": lambda: nn.ReLU(inplace=True), "silu": nn.SiLU}


def activate(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


class SubsampledConv1x1(nn.Conv2d):
    """A 1x1 convolution of the pixels that a stride keeps: the numbers of the strided one, which torch 2.13 cannot
    differentiate by narrow weights (see `rattle.inputs.trains_channels_last`)."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__(inputs, outputs, 1, bias=False)
        self.step = step

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input[:, :, :: self.step, :: self.step])


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    if stride > 1 and inputs < NARROW:
        return SubsampledConv1x1(inputs, outputs, stride)
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def conv3x3(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, groups=groups, bias=False)


def conv1x1_bn(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A projected shortcut with BatchNorm."""
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


def stages(block: type, inputs: int, planes: int, depths: Sequence[int], act: str) -> Iterator[nn.Sequential]:
    """Stages of so many residual blocks each; all but the first halve the resolution and double the planes."""
    for i, depth in enumerate(depths):
        first = block(inputs, planes, 1 if i == 0 else 2, act)
        inputs = block.expansion * planes
        yield nn.Sequential(first, *(block(inputs, planes, 1, act) for _ in range(depth - 1)))
        planes *= 2


def pooled(x: Tensor) -> Tensor:
    """Global average pooling, [n, d, H, W] to [n, d]; a mean, whose gradient is deterministic on every device."""
    return x.mean((2, 3))


class Normalise(nn.Module):
    """(x - mean) / std per channel, as a part of the model, so that attacks work on images in [0, 1]."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = (nn.Buffer(torch.tensor(v, dtype=torch.float32).reshape(-1, 1, 1)) for v in (mean, std))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-3] != len(self.mean) != 1:  # would broadcast
            raise RattleError(f"images of {x.shape[-3]} channels, but a mean and std of {len(self.mean)}")
        return (x - self.mean) / self.std


def normalisation(statistics: MeanStd, channels: int) -> nn.Module:
    """Normalise, or the identity when there are no statistics."""
    if statistics is None:
        return nn.Identity()
    mean, std = statistics
    means, stds = len(mean), len(std)
    if not (means == stds and means in (1, channels)):
        raise RattleError(f"normalise needs a mean and a std for each of {channels} channels, got {means} and {stds}")
    if min(std) <= 0:
        raise RattleError(f"normalise needs a std > 0 for every channel, got {tuple(std)}")
    return Normalise(mean, std)


class NormalisedNetwork(nn.Module):
    """Images [n, C, H, W] in [0, 1] to features [n, d], which a subclass computes, and by its linear head to logits."""

    head: nn.Linear

    def __init__(self, normalise: MeanStd, channels: int) -> None:
        super().__init__()
        self.normalise = normalisation(normalise, channels)

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
