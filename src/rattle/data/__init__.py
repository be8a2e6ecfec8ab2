"""Data: sources become uint8 tensors, batches are drawn by (seed, epoch), augmentation runs on the device."""

from typing import TYPE_CHECKING

from rattle.registry import lazy_names

if TYPE_CHECKING:
    from rattle.data.augment import Augment as Augment
    from rattle.data.dataset import Dataset as Dataset
    from rattle.data.dataset import Images as Images
    from rattle.data.dataset import on_device as on_device
    from rattle.data.dataset import to_device as to_device
    from rattle.data.download import get as get
    from rattle.data.files import data_root as data_root
    from rattle.data.registry import Data as Data
    from rattle.data.registry import batches as batches
    from rattle.data.show import balance as balance
    from rattle.data.show import contact_sheet as contact_sheet
    from rattle.data.show import describe_parts as describe_parts
    from rattle.data.sources import SOURCES as SOURCES
    from rattle.data.sources import list_datasets as list_datasets
    from rattle.data.sources import register_source as register_source

__getattr__ = lazy_names(
    __name__,
    {
        "augment": ["Augment"],
        "dataset": ["Dataset", "Images", "on_device", "to_device"],
        "download": ["get"],
        "files": ["data_root"],
        "registry": ["Data", "batches"],
        "sources": ["SOURCES", "list_datasets", "register_source"],
        "show": ["balance", "contact_sheet", "describe_parts"],
    },
)
