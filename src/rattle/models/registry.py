"""Models by name. Every built-in network is features(x), then a linear head, and takes images in [0, 1].

One file and one line of BUILDERS add a model, or one call of `register_model` at run time. Imports no torch before a
model is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rattle.errors import RattleError, unknown
from rattle.registry import Entry, Registry
from rattle.settings import check_type

if TYPE_CHECKING:
    from torch import nn

    from rattle.models.layers import MeanStd

BUILDERS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    {
        "cnn": Entry(".small:SmallCNN", "four convolutions, for 8x8 and 28x28 images"),
        "cnn-plain": Entry(".small:cnn_plain", "the same without BatchNorm"),
        "cnn-slim": Entry(".small:cnn_slim", "for studies on 32x32 images without a GPU"),
        "cnn-strided": Entry(".small:cnn_strided", "more weights for the same time"),
        "preact18": Entry(".preact_resnet:preact18", "pre-activation ResNet", "He et al. 2016"),
        "preact34": Entry(".preact_resnet:preact34", "pre-activation ResNet", "He et al. 2016"),
        "preact50": Entry(".preact_resnet:preact50", "pre-activation ResNet", "He et al. 2016"),
        "resnet18": Entry(".resnet:ResNet18", "ResNet", "He et al. 2015"),
        "vgg16": Entry(".vgg:VGG16", "VGG with BatchNorm", "Simonyan and Zisserman 2014"),
        "mobilenetv2": Entry(".mobilenet_v2:MobileNetV2", "inverted residuals", "Sandler et al. 2018"),
        # and any other wrnDEPTH-FACTOR, see `find_builder`
        "wrn28-10": Entry(".wide_resnet:wrn28_10", "wide ResNet", "Zagoruyko and Komodakis 2016"),
        "wrn34-10": Entry(".wide_resnet:wrn34_10", "wide ResNet", "Zagoruyko and Komodakis 2016"),
        "wrn34-20": Entry(".wide_resnet:wrn34_20", "wide ResNet", "Zagoruyko and Komodakis 2016"),
        "wrn70-16": Entry(".wide_resnet:wrn70_16", "wide ResNet", "Zagoruyko and Komodakis 2016"),
    },
    package="rattle.models",
    points="rattle.models",
)
WIDE = r"wrn(\d{1,4})-(\d{1,4})(-dm)?"


def register_model(name: str, make: Callable[..., nn.Module]) -> None:
    """Make `create_model(name)`, recipes and `--model NAME` build a network of your own.

    name: without a colon and not a built-in one; registering a name again replaces it. make: a function or class that
    returns the network; it receives those keywords of `create_model` that it has.
    """
    check_type("the name", name, str)
    if not callable(make):
        raise RattleError(f"make must be a function or class that returns the network, got {type(make).__name__}")
    if ":" in name:
        raise RattleError(f"a registered model's name has no colon, got {name!r}")
    BUILDERS.add(name, make)


def list_models() -> list[str]:
    """The names of all models, built-in and registered; wrnDEPTH-FACTOR works for other numbers too."""
    return list(BUILDERS)


def check_network_name(name: str) -> None:
    """Raise RattleError for a name that is no model's; what a user's own names is found when it is built."""
    if not is_own(name) and name not in BUILDERS and not re.fullmatch(WIDE, name):
        raise unknown("model", name, BUILDERS)


def is_own(name: str) -> bool:
    """Whether the name says where a user's network is: `file.py:build`, `package.module:build`, `timm:NAME`, a file."""
    return ":" in name or name.endswith((".py", ".onnx"))


def find_builder(name: str) -> Callable[..., nn.Module]:
    """The function or class that builds the named model; `wrn16-4` and `wrn28-10-dm` (DeepMind's) need no entry."""
    if is_own(name):
        from rattle.models.user import import_builder

        return import_builder(name)
    check_network_name(name)
    if name in BUILDERS:
        return BUILDERS[name]
    from rattle.models.wide_resnet import WideResNet

    wide = re.fullmatch(WIDE, name)
    assert wide is not None, "check_model found it"
    return partial(WideResNet, int(wide[1]), int(wide[2]), same=wide[3] is not None)


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
    inside the model. pretrained: False does not fetch the weights of `timm:NAME,pretrained`, for a model that gets
    other ones.

    >>> import torch
    >>> create_model("cnn", classes=10, channels=1)(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    from rattle.models.user import call_builder

    check_type("the model's name", name, str)
    check_type("activation", activation, str)
    sizes = {"classes": (classes, 2), "channels": (channels, 1), "width": (1 if width is None else width, 1)}
    for what, (value, least) in sizes.items():
        check_type(what, value, int)
        if value < least:
            raise RattleError(f"{what} must be at least {least}, got {value}")
    options = {"width": width, "activation": None if activation == "relu" else activation, "normalise": normalise}
    if name.startswith("timm:") and not pretrained:
        options["pretrained"] = False
    return call_builder(find_builder(name), name, classes=classes, channels=channels, **options)
