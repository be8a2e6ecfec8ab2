"""Every test runs on one thread, from a known random state, within a limit of time; processes need a marker."""

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from rattle.data import digits
from rattle.runs import source
from support.command import Command
from support.precision import in_double

torch.set_num_threads(1)
LIMIT, SLOW_LIMIT = 600, 3600  # seconds of a test: a hang, also of a process that it waits for, is a failure

STARTED: list[str] = []  # processes of the test under way
ASKED = ("git", "uname", "fc-list")  # of environment.json, and of matplotlib when it is first imported on a machine


def note_process(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: remember forks and programs that are started."""
    if event == "os.fork":
        STARTED.append("fork")
    elif event == "subprocess.Popen" and Path(str(args[0])).name not in ASKED:
        STARTED.append(str(args[0]))


sys.addaudithook(note_process)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    STARTED.clear()


def pytest_collection_finish() -> None:
    """What imports and collection have made stays: spare every later garbage collection a walk through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts processes without being marked `process`."""
    yield
    if STARTED and not request.node.get_closest_marker("process"):
        pytest.fail(f"it starts processes ({STARTED[0]}): mark it with @pytest.mark.process")


@pytest.fixture(scope="session", autouse=True)
def _asked_once() -> Iterator[None]:
    """Read the digits and ask git for the commit once: every run does both, and they take longer than its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "stored", cache(digits.stored))
        patch.setattr(source, "commit", cache(source.commit))
        yield


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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command of the user's; see `Command`."""
    return Command(capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, which it works in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
