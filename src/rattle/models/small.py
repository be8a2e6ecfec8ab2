"""Small CNNs: four convolutions, with or without BatchNorm, and a linear head."""

from functools import partial

from torch import Tensor, nn

from rattle.models.layers import MeanStd, NormalisedNetwork, activate

PLAIN = ((1, 1), (1, 1), (2, 2), (2, 1))  # for 8x8 and 28x28 images
SLIM = ((1, 2), (2, 2), (2, 1), (4, 2))  # for studies on 32x32 images without a GPU
STRIDED = ((1, 2), (3, 2), (6, 2), (8, 1))  # more weights for the same time: its large layers see 4x4 pixels


class SmallCNN(NormalisedNetwork):
    """A convolution per stage, average pooling to a small square, and a linear head."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int = 1,
        width: int = 32,
        activation: str = "relu",
        normalise: MeanStd = None,
        norm: bool = True,  # BatchNorm after every convolution
        stages: tuple[tuple[int, int], ...] = PLAIN,  # channels over width, and stride, of each convolution
        pool: int = 2,  # side of the square that is pooled to
    ) -> None:
        super().__init__(normalise, channels)
        layers = []
        inputs = channels
        for factor, stride in stages:
            outputs = factor * width
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)]
            layers += [nn.BatchNorm2d(outputs)] if norm else []
            layers += [activate(activation)]
            inputs = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten())
        self.head = nn.Linear(inputs * pool**2, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.normalise(x))


cnn_plain = partial(SmallCNN, norm=False)
cnn_slim = partial(SmallCNN, width=16, stages=SLIM, pool=4)
cnn_strided = partial(SmallCNN, width=16, stages=STRIDED)
