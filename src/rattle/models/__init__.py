"""Networks: every one is features(x) then head(h), and takes images in [0, 1]."""

from rattle.models.head import check_width, find_head
from rattle.models.layers import Normalise
from rattle.models.pretrained import Loaded, load_weights
from rattle.models.registry import BUILDERS, create_model
from rattle.models.small import SmallCNN
from rattle.models.user import build_user_model

__all__ = [
    "BUILDERS",
    "Loaded",
    "Normalise",
    "SmallCNN",
    "build_user_model",
    "check_width",
    "create_model",
    "find_head",
    "load_weights",
]
