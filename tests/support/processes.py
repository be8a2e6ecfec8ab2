"""Real processes for tests: forked, so that they start at once, and killed like any other."""

import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

from rattle.runs import distributed


class Child(ForkProcess):
    """A forked process that runs `action` and exits with the code it returns; its output goes to a file."""

    def __init__(self, action: Callable[[], int | None], said: Path, **environment: str) -> None:
        super().__init__()
        self.action, self.said, self.environment = action, said, environment
        self.start()

    def run(self) -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the tests
        os.environ.update(self.environment)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        file = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1, file=file)
        sys.exit(self.action() or 0)

    def wait(self, seconds: float = 120) -> int:
        """The exit code; minus the signal's number if one killed it."""
        self.join(seconds)
        if self.exitcode is None:
            self.send(signal.SIGUSR1)  # it writes where each of its threads is
            self.join(5)
            self.kill()
            raise TimeoutError(f"process {self.pid} did not end; its output:\n{self.words()}")
        return self.exitcode

    def send(self, number: int) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    def words(self) -> str:
        return self.said.read_text() if self.said.exists() else ""


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ranks(count: int, action: Callable[[], int | None], folder: Path) -> list[Child]:
    """Processes that find each other through gloo, as torchrun would start them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    folder.mkdir(parents=True, exist_ok=True)
    return [Child(action, folder / f"rank{i}.log", RANK=str(i), LOCAL_RANK=str(i), **meeting) for i in range(count)]


def together(action: Callable[[], object], folder: Path) -> None:
    """Run on two ranks, inside their process group; both must succeed."""

    def joined() -> None:
        with distributed.process_group():
            action()

    children = ranks(2, joined, folder)
    assert [child.wait() for child in children] == [0, 0], "\n".join(child.words() for child in children)
