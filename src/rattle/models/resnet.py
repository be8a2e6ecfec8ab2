"""ResNet-18 (He et al. 2016, Deep Residual Learning), the 32x32 variant with a 3x3 stem and no max-pooling."""

from torch import Tensor, nn

from rattle.models.layers import MeanStd, activate, conv1x1_bn, conv3x3, normalisation, pooled, stage


class Block(nn.Module):
    """conv 3x3, bn, act; conv 3x3, bn; plus the shortcut; act."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.act = activate(act)
        self.shortcut = conv1x1_bn(inputs, planes, stride) if stride != 1 or inputs != planes else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.act(out + shortcut)


class ResNet18(nn.Module):
    """A stem and four stages of two blocks."""

    def __init__(
        self, *, classes: int, channels: int = 3, width: int = 64, activation: str = "relu", normalise: MeanStd = None
    ) -> None:
        super().__init__()
        self.normalise = normalisation(normalise, channels)
        self.conv1 = conv3x3(channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = activate(activation)
        self.layer1 = stage(Block, width, width, 2, 1, activation)
        self.layer2 = stage(Block, width, 2 * width, 2, 2, activation)
        self.layer3 = stage(Block, 2 * width, 4 * width, 2, 2, activation)
        self.layer4 = stage(Block, 4 * width, 8 * width, 2, 2, activation)
        self.head = nn.Linear(8 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(self.normalise(x))))
        return pooled(self.layer4(self.layer3(self.layer2(self.layer1(out)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
