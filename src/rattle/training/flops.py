"""Floating-point operations of a step, and the peak of the devices whose data sheet is known."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# FLOP/s of dense bf16 by the vendor's data sheet, by a part of the device's name.
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


class FlopCounter(TorchDispatchMode):
    """Counts the operations of convolutions and matrix products by torch's own formulas.

    torch's FlopCounterMode also keeps track of modules, which breaks on gradients by an image.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=found)
        return found


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s that the device can reach in bf16, where its data sheet is known."""
    name = device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
