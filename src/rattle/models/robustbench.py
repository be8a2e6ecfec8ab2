"""RobustBench's networks and names: a network of ours as a file of Python and a state dict that RobustBench takes.

Where RobustBench 1.1 has the network (WideResNet, DeepMind's, ResNet, PreActResNet), the file builds its class and the
weights bear its names. Any other built-in network brings its source along and keeps our names.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models.layers import Normalise
from rattle.models.preact_resnet import Block, PreActResNet
from rattle.models.pretrained import STATISTICS, adapt
from rattle.models.registry import find_builder
from rattle.models.resnet import ResNet18
from rattle.models.standalone import standalone_source
from rattle.models.wide_resnet import WideResNet

Renames = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
WIDE: Renames = (
    (r"^bn\.", "bn1."),
    (r"^(block\d)\.", r"\1.layer."),
    (r"\bshortcut\.", "convShortcut."),
    (r"^head\.", "fc."),
)
DEEPMIND: Renames = (
    (r"^conv1\.", "init_conv."),
    (r"^bn\.", "batchnorm."),
    (r"^block(\d)\.", lambda m: f"layer.{int(m[1]) - 1}.block."),
    (r"\.bn(\d)\.", lambda m: f".batchnorm_{int(m[1]) - 1}."),
    (r"\.conv(\d)\.", lambda m: f".conv_{int(m[1]) - 1}."),
    (r"^head\.", "logits."),
)
RESNET: Renames = ((r"^head\.", "linear."),)
PREACT: Renames = ((r"\bshortcut\.", "shortcut.0."), *RESNET)
MU_SIGMA: Renames = (
    (r"^normalise\.mean$", "mu"),
    (r"^normalise\.std$", "sigma"),
)  # as RobustBench's Rice2020Overfitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How a file builds a network, and what its weights are called there."""

    title: str  # as leaderboards write it
    source: str  # what the file needs before its class: imports from RobustBench, or the network's source
    base: str  # the class that the file's own derives from
    arguments: str  # of the base's constructor
    renames: Renames = ()  # from our names to those of the base, applied in order
    mean_std: tuple[list[float], list[float]] | None = None  # by which the file's class normalises for its base
    from_robustbench: bool = True

    def rename(self, name: str) -> str:
        for pattern, theirs in self.renames:
            name = re.sub(pattern, theirs, name)
        return name


def find_architecture(
    model: nn.Module, name: str, shape: Sequence[int], *, width: int | None = None, activation: str = "relu"
) -> Architecture:
    """The RobustBench class that computes what the model does, or else the network's own source.

    model: what `create_model(name, width=width, activation=activation, ...)` built. shape: [C, H, W] of its images.
    """
    found = _robustbench_class(model) if tuple(shape) == (3, 32, 32) else None  # its stem and pooling have these sizes
    return found or _own_class(model, name, shape[0], width, activation)


def robustbench_weights(model: nn.Module, architecture: Architecture) -> dict[str, Tensor]:
    """The model's tensors, copied, under the architecture's names; the way back to ours is checked."""
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    if architecture.base == "DMWideResNet":  # which is given mean and std when it is built, and does not save them
        own = {name: tensor for name, tensor in own.items() if name not in STATISTICS}
    if architecture.mean_std:
        own |= {
            name: torch.tensor(v).view(1, -1, 1, 1) for name, v in zip(STATISTICS, architecture.mean_std, strict=True)
        }
    theirs = {architecture.rename(name): tensor for name, tensor in own.items()}
    back, _ = adapt(theirs, model, where="the renamed state dict")
    if len(theirs) != len(own) or any(not torch.equal(back[name].flatten(), own[name].flatten()) for name in own):
        raise RattleError(f"the names of {type(model).__name__} do not come back from {architecture.base}'s")
    return theirs


def _robustbench_class(model: nn.Module) -> Architecture | None:
    relu, classes = isinstance(getattr(model, "act", None), nn.ReLU), "num_classes=num_classes"
    if isinstance(model, WideResNet) and model.conv1.out_channels == 16:
        depth, factor = 6 * len(model.block1) + 4, model.bn.num_features // 64
        title = f"WideResNet-{depth}-{factor}"
        if model.same:
            mean, std = _mean_std(model) or ([0.0] * 3, [1.0] * 3)
            mean, std = (values * (3 // len(values)) for values in (mean, std))  # one value may stand for all channels
            settings = f"{classes}, depth={depth}, width={factor}, mean={mean}, std={std}"
            settings += "" if relu else ", activation_fn=torch.nn.SiLU"
            return _theirs(title, "dm_wide_resnet", "DMWideResNet", settings, DEEPMIND)
        if relu:
            settings = f"depth={depth}, widen_factor={factor}, {classes}"
            return _normalising(_theirs(title, "wide_resnet", "WideResNet", settings, WIDE), model)
    if isinstance(model, ResNet18) and model.conv1.out_channels == 64 and relu:
        settings = f"BasicBlock, [2, 2, 2, 2], {classes}"
        return _normalising(_theirs("ResNet-18", "resnet", "ResNet, BasicBlock", settings, RESNET), model)
    if isinstance(model, PreActResNet) and model.conv1.out_channels == 64 and relu and type(model.layer1[0]) is Block:
        depths = [len(stage) for stage in (model.layer1, model.layer2, model.layer3, model.layer4)]
        settings = f"PreActBlock, {depths}, {classes}, bn_before_fc=True, out_shortcut=True"
        title, names = f"PreActResNet-{2 * sum(depths) + 2}", "PreActResNet, PreActBlock"
        return _normalising(_theirs(title, "resnet", names, settings, PREACT), model)
    return None


def _theirs(title: str, module: str, names: str, arguments: str, renames: Renames) -> Architecture:
    source = f"import torch\nfrom robustbench.model_zoo.architectures.{module} import {names}"
    return Architecture(title=title, source=source, base=names.split(",")[0], arguments=arguments, renames=renames)


def _normalising(architecture: Architecture, model: nn.Module) -> Architecture:
    """The same for a base that does not normalise, when the model does."""
    mean_std = _mean_std(model)
    return replace(architecture, mean_std=mean_std, renames=architecture.renames + (MU_SIGMA if mean_std else ()))


def _mean_std(model: nn.Module) -> tuple[list[float], list[float]] | None:
    """By which the model normalises its images, in digits that are exact for float32."""
    layer = model.normalise
    if not isinstance(layer, Normalise):
        return None
    mean, std = ([float(f"{v:.9g}") for v in values.flatten().tolist()] for values in (layer.mean, layer.std))
    return mean, std


def _own_class(model: nn.Module, name: str, channels: int, width: int | None, activation: str) -> Architecture:
    builder = None if ":" in name else find_builder(name)
    make = builder.func if isinstance(builder, partial) else builder
    if not isinstance(make, type) or not make.__module__.startswith("rattle.models."):
        raise RattleError(
            f"the source of {name} is not known here: RobustBench takes built-in networks from this command; for "
            "another, export safetensors and send them your code"
        )
    given, settings = (builder.args, builder.keywords) if isinstance(builder, partial) else ((), {})
    options: dict[str, Any] = {"width": width, "activation": activation, "normalise": _mean_std(model)}
    settings = settings | {"channels": channels} | {key: value for key, value in options.items() if value is not None}
    arguments = ", ".join([*map(repr, given), "classes=num_classes", *(f"{k}={v!r}" for k, v in settings.items())])
    return Architecture(
        title=name, source=standalone_source(make), base=make.__name__, arguments=arguments, from_robustbench=False
    )


FILE = '''"""{title} for images {shape} in [0, 1], trained by {method}.

`load()` returns the trained network. Where timm is installed, importing this file registers the network there:
    import model, timm  # this folder being on sys.path
    net = timm.create_model("{timm_name}", pretrained=True)
"""

from pathlib import Path

{source}


class Net({base}):
    def __init__(self, num_classes={classes}):
        super().__init__({arguments})
{normalise}

WEIGHTS = Path(__file__).with_name("{weights}")


def load():
    net = Net()
    net.load_state_dict(torch.load(WEIGHTS, map_location="cpu", weights_only=True))
    return net.eval()


try:
    from timm.models import build_model_with_cfg, register_model
except Exception:  # not installed, or not for this torch; load() does without
    pass
else:
    zeros, ones = (0.0,) * {channels}, (1.0,) * {channels}  # images go in as they are, and are not cropped
    images = {{"input_size": {shape}, "fixed_input_size": True, "crop_pct": 1.0, "mean": zeros, "std": ones}}
    network = {{"file": str(WEIGHTS), "num_classes": {classes}, "first_conv": None, "classifier": "{head}"}}
    default_cfgs = {{"{timm_name}": images | network}}

    @register_model
    def {timm_name}(pretrained=False, **kwargs):
        kwargs["kwargs_filter"] = ("in_chans", "img_size", "global_pool")  # which timm fills in, and Net has fixed
        return build_model_with_cfg(Net, "{timm_name}", pretrained, **kwargs)
'''
NORMALISE = """        self.register_buffer("mu", torch.tensor({}).view(1, -1, 1, 1))
        self.register_buffer("sigma", torch.tensor({}).view(1, -1, 1, 1))

    def forward(self, x):
        return super().forward((x - self.mu) / self.sigma)
"""


def model_file(
    architecture: Architecture, *, timm_name: str, weights: str, shape: Sequence[int], classes: int, method: str
) -> str:
    """A file of Python that builds the network, loads its weights and registers it with timm.

    timm_name: an identifier. weights: name of the state dict's file, in the same folder. shape: [C, H, W] of an image.
    method: how it was trained, for the reader.
    """
    known = {name: getattr(architecture, name) for name in ("title", "source", "base", "arguments")}
    normalise = NORMALISE.format(*architecture.mean_std) if architecture.mean_std else ""
    head = architecture.rename("head.").rstrip(".")
    settings = {"timm_name": timm_name, "weights": weights, "shape": tuple(shape), "channels": shape[0]}
    return FILE.format(**known, **settings, classes=classes, method=method, normalise=normalise, head=head)
