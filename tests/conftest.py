"""Every test runs on one thread, from a known random state."""

from collections.abc import Iterator

import pytest
import torch

from support.precision import in_double

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def double() -> Iterator[None]:
    with in_double():
        yield
