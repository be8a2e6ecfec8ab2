"""PreAct-ResNet (He et al. 2016, Identity Mappings in Deep Residual Networks), as adversarial training uses it.

The 32x32 variant of Rice et al. (2020): a 3x3 stem, a projected shortcut that starts after the first activation, and a
last BatchNorm and activation before the average pooling.
"""

from torch import Tensor, nn

from rattle.models.layers import MeanStd, activate, conv1x1, conv3x3, normalisation, pooled, stage


class Block(nn.Module):
    """bn, act, conv 3x3; bn, act, conv 3x3; plus the shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.act = activate(act)
        self.shortcut = conv1x1(inputs, planes, stride) if stride != 1 or inputs != planes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(self.act(self.bn2(out)))
        return out + shortcut


class Bottleneck(nn.Module):
    """bn, act, conv 1x1; bn, act, conv 3x3; bn, act, conv 1x1 to four times the planes; plus the shortcut."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        outputs = self.expansion * planes
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv1x1(inputs, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn3 = nn.BatchNorm2d(planes)
        self.conv3 = conv1x1(planes, outputs)
        self.act = activate(act)
        self.shortcut = conv1x1(inputs, outputs, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(self.act(self.bn2(out)))
        out = self.conv3(self.act(self.bn3(out)))
        return out + shortcut


DEPTHS: dict[int, tuple[type, tuple[int, int, int, int]]] = {
    18: (Block, (2, 2, 2, 2)),
    34: (Block, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class PreActResNet(nn.Module):
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
        super().__init__()
        block, (n1, n2, n3, n4) = DEPTHS[depth]
        wider = block.expansion * width
        self.normalise = normalisation(normalise, channels)
        self.conv1 = conv3x3(channels, width)
        self.layer1 = stage(block, width, width, n1, 1, activation)
        self.layer2 = stage(block, wider, 2 * width, n2, 2, activation)
        self.layer3 = stage(block, 2 * wider, 4 * width, n3, 2, activation)
        self.layer4 = stage(block, 4 * wider, 8 * width, n4, 2, activation)
        self.bn = nn.BatchNorm2d(8 * wider)
        self.act = activate(activation)
        self.head = nn.Linear(8 * wider, classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.conv1(self.normalise(x))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return pooled(self.act(self.bn(out)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
