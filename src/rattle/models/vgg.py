"""VGG-16 with BatchNorm (Simonyan and Zisserman 2015), the 32x32 variant with one linear layer."""

from torch import Tensor, nn

from rattle.models.layers import MeanStd, NormalisedNetwork, activate, pooled

VGG_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))  # times the width; a stage ends in max-pooling


class VGG16(NormalisedNetwork):
    """Thirteen 3x3 convolutions in five stages."""

    def __init__(
        self, *, classes: int, channels: int = 3, width: int = 64, activation: str = "relu", normalise: MeanStd = None
    ) -> None:
        super().__init__(normalise, channels)
        layers = []
        inputs = channels
        for stage in VGG_STAGES:
            for outputs in (width * times for times in stage):
                convolution = nn.Conv2d(inputs, outputs, 3, padding=1)  # with bias: the published 14.73 M parameters
                layers += [convolution, nn.BatchNorm2d(outputs), activate(activation)]
                inputs = outputs
            layers += [nn.MaxPool2d(2, ceil_mode=True)]  # ceil_mode leaves 1x1 unchanged, for images below 32x32
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        return pooled(self.layers(self.normalise(x)))
