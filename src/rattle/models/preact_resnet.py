"""PreAct-ResNet (He et al. 2016, Identity Mappings in Deep Residual Networks), as adversarial training uses it.

The 32x32 variant of Rice et al. (2020): a 3x3 stem, a projected shortcut that starts after the first activation, and a
last BatchNorm and activation before the average pooling.
"""

from functools import partial

from torch import Tensor, nn

from rattle.models.layers import MeanStd, NormalisedNetwork, activate, conv1x1, conv3x3, pooled, stages


class PreActBlock(nn.Module):
    """bn, act, conv 3x3; bn, act, conv 3x3; plus the shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, planes, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), conv3x3(planes, planes)
        self.act = activate(act)
        self.shortcut = conv1x1(inputs, planes, stride) if stride != 1 or inputs != planes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(self.act(self.bn2(self.conv1(out)))) + shortcut


class Bottleneck(nn.Module):
    """bn, act, conv 1x1; bn, act, conv 3x3; bn, act, conv 1x1 to four times the planes; plus the shortcut."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        outputs = self.expansion * planes
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv1x1(inputs, planes)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), conv3x3(planes, planes, stride)
        self.bn3, self.conv3 = nn.BatchNorm2d(planes), conv1x1(planes, outputs)
        self.act = activate(act)
        self.shortcut = conv1x1(inputs, outputs, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(self.act(self.bn2(self.conv1(out))))
        return self.conv3(self.act(self.bn3(out))) + shortcut


DEPTHS = {18: (PreActBlock, (2, 2, 2, 2)), 34: (PreActBlock, (3, 4, 6, 3)), 50: (Bottleneck, (3, 4, 6, 3))}


class PreActResNet(NormalisedNetwork):
    """A stem and four stages of pre-activation blocks."""

    def __init__(
        self,
        depth: int = 18,
        *,
        classes: int,
        channels: int = 3,
        width: int = 64,
        activation: str = "relu",
        normalise: MeanStd = None,
    ) -> None:
        super().__init__(normalise, channels)
        block, depths = DEPTHS[depth]
        outputs = 8 * block.expansion * width
        self.conv1 = conv3x3(channels, width)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(block, width, width, depths, activation)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = activate(activation)
        self.head = nn.Linear(outputs, classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.conv1(self.normalise(x))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return pooled(self.act(self.bn(out)))


preact18 = partial(PreActResNet, 18)
preact34 = partial(PreActResNet, 34)
preact50 = partial(PreActResNet, 50)
