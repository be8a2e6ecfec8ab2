"""Small CNNs: four convolutions, with or without BatchNorm, and a linear head."""

from __future__ import annotations

from itertools import chain, pairwise

from torch import Tensor, nn

from rattle.models.layers import MeanStd, activate, normalisation

PLAIN = ((1, 1), (1, 1), (2, 2), (2, 1))  # for 8x8 and 28x28 images
SLIM = ((1, 2), (2, 2), (2, 1), (4, 2))  # for studies on 32x32 images without a GPU


class SmallCNN(nn.Module):
    """A convolution for each stage (channels over width, stride), pooling to a small square, and a linear head."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int = 1,
        width: int = 32,
        activation: str = "relu",
        normalise: MeanStd | None = None,
        norm: bool = True,
        stages: tuple[tuple[int, int], ...] = PLAIN,
        pool: int = 2,
    ) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
            return [convolution, *([nn.BatchNorm2d(outputs)] if norm else []), activate(activation)]

        sizes = [channels, *(factor * width for factor, _ in stages)]
        layers = chain.from_iterable(
            block(*pair, stride) for pair, (_, stride) in zip(pairwise(sizes), stages, strict=True)
        )
        self.normalise = normalisation(normalise, channels)
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten())
        self.head = nn.Linear(sizes[-1] * pool**2, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.normalise(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
