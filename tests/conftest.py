"""Every test runs on one thread, from a known random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@contextmanager
def in_double() -> Iterator[None]:
    """Double precision, for what is compared to the digit: in single precision a processor's own rounding decides the
    sign of gradients that are nearly zero, and with them an attack's way."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def double() -> Iterator[None]:
    with in_double():
        yield
