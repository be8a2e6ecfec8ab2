"""Several processes for one evaluation, each attacking whole batches with threads of its own.

A small network does not fill two cores from one process; two processes do. They are new processes, because torch's
threads do not survive a fork, and they import nothing of the script that asked for them, which would run it again. Each
is sent the evaluation as a pickle of the live objects through a pipe; nothing is read from a file.
"""

import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, first_line
from rattle.models.user import USER_MODULE, run_file

# The same search path as here and no other: not the working directory, which -c alone would put first.
START = "import sys; sys.path[:] = sys.argv[1:]; from rattle.evaluation.jobs import serve; serve()"
# As `keep_memory` of the command line: glibc keeps the memory of large tensors for the next ones.
ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


class Sendable(pickle.Pickler):
    """Refuses what another process could not import: classes and functions of the script or notebook itself."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | type(first_line)) and obj.__module__ == "__main__":
            raise RattleError(
                f"{obj.__qualname__} is defined in the script itself, which other processes do not run: move it to a "
                "module that they can import, or leave out jobs"
            )
        return NotImplemented


def packed(value: object) -> bytes:
    """The value as bytes; RattleError if it cannot go to another process."""
    file = io.BytesIO()
    try:
        Sendable(file, pickle.HIGHEST_PROTOCOL).dump(value)
    except RattleError:
        raise
    except Exception as reason:  # pickle runs the objects' own code
        what = first_line(reason) or type(reason).__name__
        raise RattleError(f"the model or attack cannot be sent to other processes ({what}); leave out jobs") from reason
    return file.getvalue()


class Workers:
    """Processes that attack batches of one evaluation.

    plan: has the `model` and `attack(attack, index, live, state, after_part, **how)`; it is sent once, when they start.
    count: how many processes. They end with `close`, and also when this process is killed.
    """

    def __init__(self, plan: Any, count: int) -> None:
        sent = packed(plan)
        user = {
            name: module.__file__
            for name, module in list(sys.modules.items())
            if name.startswith(USER_MODULE) and name.encode() in sent  # a pickle names the modules of what it holds
        }
        self.greeting = packed((user, folders_of(plan.model), sent))
        self.count, self.threads = count, max(1, torch.get_num_threads() // count)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start them; they import torch while this process goes on."""
        environment = ENVIRONMENT | os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        self.todo: SimpleQueue[bytes | None] = SimpleQueue()
        self.found: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        for _ in range(self.count):
            command, pipe = [sys.executable, "-P", "-c", START, *sys.path], subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
            self.processes.append(process)
            Thread(target=talk, args=(process, self.greeting, self.todo, self.found), daemon=True).start()

    def run(
        self, attack: object, batches: Sequence[tuple[Any, ...]], show_part: Callable[[int], None], **how: Any
    ) -> Iterator[tuple[int, dict[str, Any], Tensor | None]]:
        """(first image, what the plan's `attack` returned) of each batch, in the order in which they are done.

        batches: (index, which of them to attack, the file for the attack's state); show_part: called with the number of
        the part that begins; how: other arguments of the plan's `attack`. Processes that are still at work when nobody
        asks for more are ended.
        """
        if not self.processes:
            self.start()
        left = len(batches)
        for batch in batches:
            self.todo.put(packed((attack, batch, how)))
        try:
            while left:
                kind, *what = self.found.get()
                if kind == "failed":
                    raise RattleError(what[0])
                if kind == "part":
                    show_part(what[0])
                else:
                    left -= 1
                    yield tuple(what)  # type: ignore[misc]
        finally:
            if left:
                self.close()

    def close(self) -> None:
        """End the processes, at work or not."""
        for process in self.processes:
            process.kill()
            self.todo.put(None)
        for process in self.processes:
            process.wait()
        self.processes = []


def talk(process: subprocess.Popen[bytes], greeting: bytes, todo: SimpleQueue, found: SimpleQueue) -> None:
    """Hand a process one task after the other and pass on what it says; runs in a thread of its own."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError), process.stdin, process.stdout:
        try:
            process.stdin.write(greeting)
            while (task := todo.get()) is not None:
                pickle.dump(task, process.stdin)
                process.stdin.flush()
                message = pickle.load(process.stdout)
                while message[0] == "part":
                    found.put(message)
                    message = pickle.load(process.stdout)
                found.put(message)
        except (EOFError, OSError, pickle.UnpicklingError):
            found.put(("failed", how_it_ended(process.wait())))


def how_it_ended(code: int) -> str:
    """A sentence for a process that ended before its work was done."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    memory = " (the machine may be short of memory: try fewer jobs)" if code == -9 else ""
    return f"a process that attacked batches {how}{memory}; batches that are done are kept with a folder for results"


def serve() -> NoReturn:
    """What such a process runs: one task after the other, until nobody sends any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of them; the first process ends the others
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a network prints is no answer
    logging.getLogger("rattle").setLevel(logging.ERROR)  # the first process has said it, and warned
    warnings.simplefilter("ignore")

    def answer(*message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    plan, failure = None, ""
    try:
        plan = welcome(tasks)
    except EOFError:
        os._exit(0)
    except Exception as reason:
        failure = f"the model cannot be opened in another process ({first_line(reason)}); leave out jobs"
    inbox: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=read_tasks, args=(tasks, inbox), daemon=True).start()
    while True:
        task = inbox.get()
        try:
            if plan is None:
                raise RattleError(failure)
            attack, batch, how = pickle.loads(task)
            done = plan.attack(attack, *batch, lambda number, *_: answer("part", number + 1), **how)
            answer("row", int(batch[0][0]), *done)
        except RattleError as mistake:
            answer("failed", str(mistake))
        except Exception as reason:  # of the network's own code, or no memory
            answer("failed", f"attacking a batch raised {type(reason).__name__}: {first_line(reason)}")


def welcome(tasks: io.BufferedReader) -> Any:
    """The plan that a process is sent first; the user's own files, which the first process has run, come before it."""
    user, folders, sent = pickle.load(tasks)
    for name, file in user.items():
        run_file(Path(file), name)
    sys.path += folders
    plan = pickle.loads(sent)
    plan.model.eval()
    return plan


def folders_of(model: nn.Module) -> list[str]:
    """Where the classes of a model's layers were imported from, beyond the search path."""
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()}
    files = [Path(file) for name in packages if (file := getattr(sys.modules.get(name), "__file__", None))]
    folders = {str((file.parent.parent if file.stem == "__init__" else file.parent).resolve()) for file in files}
    return sorted(folders - {*sys.path})


def read_tasks(tasks: io.BufferedReader, inbox: SimpleQueue) -> None:
    """Read ahead in a thread, which notices in the middle of a batch that nobody is there any more."""
    code = 1  # whatever else happens here, nobody would wait for this process in vain
    try:
        for task in iter(partial(pickle.load, tasks), None):
            inbox.put(task)
    except EOFError:
        code = 0
    finally:
        os._exit(code)
