"""Models by name. Every built-in network is features(x), then a linear head, and takes images in [0, 1].

One file and one line of BUILDERS add a model, or one call of `register_model` at run time.
"""

import re
from collections.abc import Callable
from functools import partial

from torch import nn

from rattle.errors import RattleError, unknown
from rattle.models.layers import MeanStd
from rattle.models.mobilenet_v2 import MobileNetV2
from rattle.models.preact_resnet import PreActResNet
from rattle.models.resnet import ResNet18
from rattle.models.small import SLIM, STRIDED, SmallCNN
from rattle.models.user import call_builder, import_builder
from rattle.models.vgg import VGG16
from rattle.models.wide_resnet import WideResNet
from rattle.settings import check_type

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "cnn": SmallCNN,
    "cnn-plain": partial(SmallCNN, norm=False),
    "cnn-slim": partial(SmallCNN, width=16, stages=SLIM, pool=4),
    "cnn-strided": partial(SmallCNN, width=16, stages=STRIDED),
    "preact18": partial(PreActResNet, 18),
    "preact34": partial(PreActResNet, 34),
    "preact50": partial(PreActResNet, 50),
    "resnet18": ResNet18,
    "vgg16": VGG16,
    "mobilenetv2": MobileNetV2,
    "wrn28-10": partial(WideResNet, 28, 10),  # and any other wrnDEPTH-FACTOR, see `find_builder`
    "wrn34-10": partial(WideResNet, 34, 10),
    "wrn34-20": partial(WideResNet, 34, 20),
    "wrn70-16": partial(WideResNet, 70, 16),
}
BUILT_IN = frozenset(BUILDERS)


def register_model(name: str, make: Callable[..., nn.Module]) -> None:
    """Make `create_model(name)`, recipes and `--model NAME` build a network of your own.

    name: without a colon and not a built-in one; registering a name again replaces it. make: a function or class that
    returns the network; it is given the keywords it has of those that `create_model` describes.
    """
    check_type("the name", name, str)
    if not callable(make):
        raise RattleError(f"make must be a function or class that returns the network, got {type(make).__name__}")
    if name in BUILT_IN or ":" in name:
        raise RattleError(f"{name!r} cannot be registered: it has a colon, or is the name of a built-in model")
    BUILDERS[name] = make


def list_models() -> list[str]:
    """The names of all models, built-in and registered; wrnDEPTH-FACTOR exists for other numbers too."""
    return list(BUILDERS)


def is_built_in(name: str) -> bool:
    """Whether the named network is one of this package's own."""
    return name in BUILT_IN or (name not in BUILDERS and name.startswith("wrn"))


def find_builder(name: str) -> Callable[..., nn.Module]:
    """The function or class that builds the named model; `wrn16-4` and `wrn28-10-dm` (DeepMind's) need no entry."""
    if ":" in name or name.endswith(".py"):
        return import_builder(name)
    if name in BUILDERS:
        return BUILDERS[name]
    if wide := re.fullmatch(r"wrn(\d{1,4})-(\d{1,4})(-dm)?", name):
        return partial(WideResNet, int(wide[1]), int(wide[2]), same=wide[3] is not None)
    raise unknown("model", name, BUILDERS)


def create_model(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    width: int | None = None,
    activation: str = "relu",
    normalise: MeanStd = None,
    pretrained: bool = True,
) -> nn.Module:
    """The named network with new weights, drawn from torch's random state.

    name: one of `list_models()`, or your own as `path/to/file.py:build`, `package.module:build` or `timm:resnet18`.
    classes: number of logits. channels: of the images. width: channels of the first convolution, which scales every
    layer; the paper's by default. activation: relu or silu. normalise: mean and std of each channel, to be applied
    inside the model. pretrained: False leaves the weights of a `timm:NAME,pretrained` where they are, because others
    are going to be loaded.

    >>> import torch
    >>> create_model("cnn", classes=10, channels=1)(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    for what, value in {"classes": classes, "channels": channels, "width": 1 if width is None else width}.items():
        check_type(what, value, int)
    for what, value in {"the model's name": name, "activation": activation}.items():
        check_type(what, value, str)
    if classes < 2:
        raise RattleError(f"a classifier needs at least 2 classes, got {classes}")
    if channels < 1 or (width is not None and width < 1):
        raise RattleError(f"channels and width must be at least 1, got {channels} and {width}")
    no_download = {"pretrained": False} if name.startswith("timm:") and not pretrained else {}
    options = {"width": width, "activation": None if activation == "relu" else activation, "normalise": normalise}
    return call_builder(find_builder(name), name, classes=classes, channels=channels, **options, **no_download)
