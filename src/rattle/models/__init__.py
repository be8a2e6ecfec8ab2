"""Networks: every one is features(x), then a linear head, and takes images in [0, 1]."""

from typing import TYPE_CHECKING

from rattle.registry import lazy_names

if TYPE_CHECKING:
    from rattle.models.head import check_width as check_width
    from rattle.models.head import find_head as find_head
    from rattle.models.layers import Normalise as Normalise
    from rattle.models.pretrained import load_weights as load_weights
    from rattle.models.registry import BUILDERS as BUILDERS
    from rattle.models.registry import create_model as create_model
    from rattle.models.registry import list_models as list_models
    from rattle.models.registry import register_model as register_model
    from rattle.models.small import SmallCNN as SmallCNN

__getattr__ = lazy_names(
    __name__,
    {
        "head": ["check_width", "find_head"],
        "layers": ["Normalise"],
        "pretrained": ["load_weights"],
        "registry": ["BUILDERS", "create_model", "list_models", "register_model"],
        "small": ["SmallCNN"],
    },
)
