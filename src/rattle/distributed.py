"""Ranks: who am I, how many are we, and what is our mean. No-ops in one process."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if active() else 0


def world() -> int:
    return dist.get_world_size() if active() else 1


def main() -> bool:
    """Is this the process that writes?"""
    return rank() == 0


def mean(values: Tensor) -> Tensor:
    """The average over ranks; the tensor itself in one process."""
    if not active():
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total / world()
