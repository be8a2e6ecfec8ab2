"""Every test runs on one thread, from a known random state, within a limit of time."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
import torch

from support.precision import in_double

torch.set_num_threads(1)
LIMIT, SLOW_LIMIT = 600, 3600  # seconds of a test: a hang, also of a process that it waits for, is a failure


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _limited(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that takes longer than its limit; `@pytest.mark.limit(seconds)` gives it another."""
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return
    marked, slow = request.node.get_closest_marker("limit"), request.node.get_closest_marker("slow")
    seconds = marked.args[0] if marked else SLOW_LIMIT if slow else LIMIT

    def ring(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def double() -> Iterator[None]:
    with in_double():
        yield
