"""Networks: every one is features(x) then head(h), and takes images in [0, 1]."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torch import nn

from rattle.errors import RattleError, unknown
from rattle.models.layers import ACTIVATIONS, MeanStd
from rattle.models.mobilenet_v2 import MobileNetV2
from rattle.models.preact_resnet import PreActResNet
from rattle.models.resnet import ResNet18
from rattle.models.small import SLIM, SmallCNN
from rattle.models.user import build_user_model
from rattle.models.vgg import VGG16
from rattle.models.wide_resnet import WideResNet

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "cnn": SmallCNN,
    "cnn-plain": partial(SmallCNN, norm=False),
    "cnn-slim": partial(SmallCNN, width=16, stages=SLIM, pool=4),
    "preact18": partial(PreActResNet, 18),
    "preact34": partial(PreActResNet, 34),
    "preact50": partial(PreActResNet, 50),
    "resnet18": ResNet18,
    "vgg16": VGG16,
    "mobilenetv2": MobileNetV2,
    "wrn28-10": partial(WideResNet, 28, 10),  # and any other wrnDEPTH-FACTOR, see `builder`
    "wrn34-10": partial(WideResNet, 34, 10),
    "wrn34-20": partial(WideResNet, 34, 20),
    "wrn70-16": partial(WideResNet, 70, 16),
}


def builder(name: str) -> Callable[..., nn.Module]:
    """What makes the network of that name; `wrn16-4` and `wrn28-10-dm` (DeepMind's padding) need no entry."""
    if name in BUILDERS:
        return BUILDERS[name]
    if wide := re.fullmatch(r"wrn(\d+)-(\d+)(-dm)?", name):
        return partial(WideResNet, int(wide[1]), int(wide[2]), same=wide[3] is not None)
    raise unknown("model", name, BUILDERS)


def create_model(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    width: int | None = None,
    activation: str = "relu",
    normalise: MeanStd | None = None,
) -> nn.Module:
    """The network of that name, freshly initialised from torch's random state.

    A name with a colon is the user's own: `path/to/file.py:build`, `package.module:build` or `timm:resnet18`.

    >>> import torch
    >>> create_model("cnn", classes=10, channels=1)(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    if classes < 2:
        raise RattleError(f"a classifier needs at least 2 classes, got {classes}")
    if channels < 1 or (width is not None and width < 1):
        raise RattleError(f"channels and width must be at least 1, got {channels} and {width}")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    if ":" in name:
        options = {"width": width, "activation": None if activation == "relu" else activation, "normalise": normalise}
        return build_user_model(name, classes=classes, channels=channels, **options)
    options = {} if width is None else {"width": width}
    make = builder(name)
    return make(classes=classes, channels=channels, activation=activation, normalise=normalise, **options)
