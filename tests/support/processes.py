"""Real processes for tests: forked, so that they start at once, and killed like any other."""

import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


class Child:
    """A forked process that runs `action` and exits with the code it returns; what it says goes to a file."""

    def __init__(self, action: Callable[[], int | None], said: Path, **environment: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.said, self.code = said, None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the tests
            os.environ.update(environment)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            code = action() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 120) -> int:
        """The exit code; minus the signal's number if one killed it."""
        until = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                self.send(signal.SIGUSR1)  # say where each thread is
                time.sleep(0.5)
                self.send(signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} did not end; it said:\n{self.words()}")
            else:
                time.sleep(0.005)
        return self.code

    def send(self, number: int) -> None:
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
