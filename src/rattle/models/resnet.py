"""ResNet-18 (He et al. 2016, Deep Residual Learning), the 32x32 variant with a 3x3 stem and no max-pooling."""

from torch import Tensor, nn

from rattle.models.layers import MeanStd, NormalisedNetwork, activate, conv1x1_bn, conv3x3, pooled, stages


class BasicBlock(nn.Module):
    """conv 3x3, bn, act; conv 3x3, bn; plus the shortcut; act."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, planes, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv3x3(planes, planes), nn.BatchNorm2d(planes)
        self.act = activate(act)
        self.shortcut = conv1x1_bn(inputs, planes, stride) if stride != 1 or inputs != planes else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.act(out + shortcut)


class ResNet18(NormalisedNetwork):
    """A stem and four stages of two blocks."""

    def __init__(
        self, *, classes: int, channels: int = 3, width: int = 64, activation: str = "relu", normalise: MeanStd = None
    ) -> None:
        super().__init__(normalise, channels)
        self.conv1, self.bn1 = conv3x3(channels, width), nn.BatchNorm2d(width)
        self.act = activate(activation)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(BasicBlock, width, width, (2, 2, 2, 2), activation)
        self.head = nn.Linear(8 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(self.normalise(x))))
        return pooled(self.layer4(self.layer3(self.layer2(self.layer1(out)))))
