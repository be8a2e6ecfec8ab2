"""WideResNet (Zagoruyko and Komodakis 2016) of any depth and width, as in TRADES; and DeepMind's variant."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.models.layers import MeanStd, NormalisedNetwork, activate, conv3x3, pooled, stages
from rattle.models.preact_resnet import PreActBlock


class SameConv(nn.Conv2d):
    """A 3x3 convolution of stride 2 that pads at the right and the bottom only: TensorFlow's SAME on even sizes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, 2, padding=0, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (0, 1, 0, 1)))


class WideResNet(NormalisedNetwork):
    """A stem and three stages of (depth - 4) / 6 pre-activation blocks, `factor` times as wide."""

    def __init__(
        self,
        depth: int,
        factor: int,
        *,
        classes: int,
        channels: int = 3,
        width: int = 16,
        activation: str = "relu",
        normalise: MeanStd = None,
        same: bool = False,  # TensorFlow's padding, as DeepMind's code has it (Gowal et al. 2020)
    ) -> None:
        super().__init__(normalise, channels)
        if depth < 10 or (depth - 4) % 6 or factor < 1:
            rule = "a WideResNet's depth is 6 n + 4 (10, 16, 22, 28, 34, ..., 70) and its factor at least 1"
            raise RattleError(f"{rule}, got wrn{depth}-{factor}")
        n, w = (depth - 4) // 6, factor * width
        self.same = same
        self.conv1 = conv3x3(channels, width)
        self.block1, self.block2, self.block3 = stages(PreActBlock, width, w, (n, n, n), activation)
        self.bn = nn.BatchNorm2d(4 * w)
        self.act = activate(activation)
        self.head = nn.Linear(4 * w, classes)
        if same:
            self.block2[0].conv1 = SameConv(w, 2 * w)
            self.block3[0].conv1 = SameConv(2 * w, 4 * w)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        out = self.conv1(self.normalise(x))
        out = self.block3(self.block2(self.block1(out)))
        return pooled(self.act(self.bn(out)))


wrn28_10 = partial(WideResNet, 28, 10)
wrn34_10 = partial(WideResNet, 34, 10)
wrn34_20 = partial(WideResNet, 34, 20)
wrn70_16 = partial(WideResNet, 70, 16)
