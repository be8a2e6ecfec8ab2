"""Data: sources become uint8 tensors, batches are drawn by (seed, epoch), augmentation runs on the device."""

from rattle.data.augment import Augment, to_float
from rattle.data.dataset import Dataset, Images, on_device, to_device
from rattle.data.download import get
from rattle.data.files import data_root
from rattle.data.registry import SOURCES, Data, batches, list_datasets, register_source
from rattle.data.show import balance, contact_sheet, describe

__all__ = [
    "SOURCES",
    "Augment",
    "Data",
    "Dataset",
    "Images",
    "balance",
    "batches",
    "contact_sheet",
    "data_root",
    "describe",
    "get",
    "list_datasets",
    "on_device",
    "register_source",
    "to_device",
    "to_float",
]
