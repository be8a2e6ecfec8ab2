"""Models of timm: `timm:NAME`, and after commas timm's own arguments, as in `timm:vit_tiny_patch16_224,img_size=32`.

Commas, because a shell leaves them alone. Values are YAML: drop_path_rate=0.1, global_pool=avg; a bare word is true.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any

import yaml
from torch import nn

from rattle.errors import RattleError, first_line, unknown
from rattle.models.layers import MeanStd, normalisation
from rattle.settings import Plain


def timm_builder(spec: str) -> Callable[..., nn.Module]:
    """The function that builds the model; pretrained ones come with timm's normalisation in front."""
    name, settings = parse_spec(spec)
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # not installed, or installed with a torchvision made for another torch
        advice = "pip install 'rattle-robust[timm]'"
        raise RattleError(f"timm:{name} needs timm, which could not be imported ({error}): {advice}") from error
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())

    def build(num_classes: int, in_chans: int, normalise: MeanStd = None, pretrained: bool = True) -> nn.Module:
        used = {key: value for key, value in settings.items() if pretrained or key != "pretrained"}
        try:
            model = timm.create_model(name, num_classes=num_classes, in_chans=in_chans, **used)
        except Exception as error:  # a wrong argument, no network, a file that is none: each raises its own kind
            reason = first_line(error).rstrip(".")
            advice = (
                "; without a network, give the weights as a file (--weights, --init)" if "pretrained" in used else ""
            )
            raise RattleError(f"timm does not build {spec}: {reason}{advice}") from error
        if settings.get("pretrained"):  # timm's config says how; averaged where these images have another depth
            found = [tuple(model.pretrained_cfg[key]) for key in ("mean", "std")]
            mean, std = (v if len(v) == in_chans else (sum(v) / len(v),) * in_chans for v in found)
            normalise = mean, std
        return nn.Sequential(normalisation(normalise, in_chans), model) if normalise else model

    return build


def parse_spec(spec: str) -> tuple[str, Plain]:
    """The model's name and timm's arguments.

    >>> parse_spec("timm:vit_tiny_patch16_224,pretrained,img_size=32")
    ('vit_tiny_patch16_224', {'pretrained': True, 'img_size': 32})
    >>> parse_spec("timm:convnext_atto,depths=[2, 2, 6, 2]")[1]
    {'depths': [2, 2, 6, 2]}
    """
    name, *words = re.split(r",(?![^\[{]*[\]}])", spec.removeprefix("timm:"))  # not at the commas inside brackets
    settings = {}
    for key, equals, value in (word.strip().partition("=") for word in words):
        if not key.isidentifier() or key in ("num_classes", "in_chans"):
            wanted = "timm:NAME,pretrained,img_size=32; the data say how many classes and channels there are"
            raise RattleError(f"{spec}: {key!r} is no argument for a model of timm, which are given as {wanted}")
        try:
            settings[key] = yaml.safe_load(value) if equals else True
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise RattleError(f"{spec}: {value!r} is no value for {key}") from error
    return name, settings


def opens_files(spec: str) -> bool:
    """Whether arguments are more than numbers, switches and plain words, or name a file to load: timm unpickles those.

    >>> opens_files("timm:vit_tiny_patch16_224,pretrained,img_size=32"), opens_files("timm:a,pretrained_cfg={file: b}")
    (False, True)
    """
    try:
        settings = parse_spec(spec)[1]
    except RattleError:
        return True
    plain = all(re.fullmatch(r"[\w.,\[\] -]*", str(value)) for value in settings.values())
    return not plain or any(key.startswith(("checkpoint", "pretrained_", "cache")) for key in settings)
