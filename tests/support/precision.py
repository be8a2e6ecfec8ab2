"""Double precision, for what is compared to the digit."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def in_double() -> Iterator[None]:
    """Single precision lets a processor's own rounding decide the sign of gradients that are nearly zero, and with them
    an attack's way; in double precision all processors agree."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
