"""A small CNN for 8x8 and 28x28 images, with or without BatchNorm."""

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

        def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
            return [convolution, *([nn.BatchNorm2d(outputs)] if norm else []), activate(activation)]

        self.normalise = normalisation(normalise, channels)
        self.body = nn.Sequential(
            *block(channels, width, 1),
            *block(width, width, 1),
            *block(width, 2 * width, 2),
            *block(2 * width, 2 * width, 1),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.normalise(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
