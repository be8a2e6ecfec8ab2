"""Small CNNs: one for 8x8 and 28x28 images, with or without BatchNorm, and a strided one for 32x32."""

from __future__ import annotations

from torch import Tensor, nn

from rattle.models.layers import Statistics, activate, normalisation


class SmallCNN(nn.Module):
    """Two convolution stages, the second of half the resolution, and a linear head."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int = 1,
        width: int = 32,
        activation: str = "relu",
        normalise: Statistics | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.normalise = normalisation(normalise, channels)
        self.body = nn.Sequential(
            *block(channels, width, 1, activation, norm),
            *block(width, width, 1, activation, norm),
            *block(width, 2 * width, 2, activation, norm),
            *block(2 * width, 2 * width, 1, activation, norm),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.normalise(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class SlimCNN(nn.Module):
    """Four convolutions, three of them strided, and a linear head: for studies on 32x32 images without a GPU."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int = 3,
        width: int = 16,
        activation: str = "relu",
        normalise: Statistics | None = None,
    ) -> None:
        super().__init__()
        self.normalise = normalisation(normalise, channels)
        self.body = nn.Sequential(
            *block(channels, width, 2, activation),
            *block(width, 2 * width, 2, activation),
            *block(2 * width, 2 * width, 1, activation),
            *block(2 * width, 4 * width, 2, activation),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.normalise(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def block(inputs: int, outputs: int, stride: int, activation: str, norm: bool = True) -> list[nn.Module]:
    """Convolution, BatchNorm when asked for, activation."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
    return [convolution, *([nn.BatchNorm2d(outputs)] if norm else []), activate(activation)]
