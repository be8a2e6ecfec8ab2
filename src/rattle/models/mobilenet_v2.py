"""MobileNetV2 (Sandler et al. 2018), the 32x32 variant: stride 1 in the stem and the second stage, ReLU not ReLU6."""

from torch import Tensor, nn

from rattle.models.layers import MeanStd, NormalisedNetwork, activate, conv1x1, conv1x1_bn, conv3x3, pooled

# Expansion, outputs (for a stem of 32), blocks and stride of each stage.
INVERTED_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1 without activation; plus the shortcut if the resolution is the same."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, act: str) -> None:
        super().__init__()
        planes = expansion * inputs
        self.conv1, self.bn1 = conv1x1(inputs, planes), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv3x3(planes, planes, stride, groups=planes), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv1x1(planes, outputs), nn.BatchNorm2d(outputs)
        self.act = activate(act)
        self.residual = stride == 1
        self.shortcut = conv1x1_bn(inputs, outputs) if self.residual and inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(x)))
        out = self.act(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if not self.residual:
            return out
        return out + (x if self.shortcut is None else self.shortcut(x))


class MobileNetV2(NormalisedNetwork):
    """A 3x3 convolution of `width` planes (32: the paper's multiplier 1), seventeen inverted residuals, a 1x1 top."""

    def __init__(
        self, *, classes: int, channels: int = 3, width: int = 32, activation: str = "relu", normalise: MeanStd = None
    ) -> None:
        super().__init__(normalise, channels)
        blocks = []
        inputs = width
        for expansion, planes, repeats, stride in INVERTED_STAGES:
            outputs = max(1, planes * width // 32)
            for i in range(repeats):
                blocks.append(InvertedResidual(inputs, outputs, expansion, stride if i == 0 else 1, activation))
                inputs = outputs
        self.conv1, self.bn1 = conv3x3(channels, width), nn.BatchNorm2d(width)
        self.layers = nn.Sequential(*blocks)
        self.conv2, self.bn2 = conv1x1(inputs, 40 * width), nn.BatchNorm2d(40 * width)
        self.act = activate(activation)
        self.head = nn.Linear(40 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(self.normalise(x))))
        return pooled(self.act(self.bn2(self.conv2(self.layers(out)))))
