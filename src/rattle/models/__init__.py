"""Networks: every one is features(x), then a linear head, and takes images in [0, 1]."""

from rattle.models.head import check_width, find_head
from rattle.models.layers import Normalise
from rattle.models.pretrained import LoadReport, load_weights
from rattle.models.registry import BUILDERS, create_model, list_models, register_model
from rattle.models.small import SmallCNN

__all__ = [
    "BUILDERS",
    "LoadReport",
    "Normalise",
    "SmallCNN",
    "check_width",
    "create_model",
    "find_head",
    "list_models",
    "load_weights",
    "register_model",
]
