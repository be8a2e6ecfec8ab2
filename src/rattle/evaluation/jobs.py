"""Several processes for one evaluation, each attacking whole batches with its share of the threads.

A small network does not fill two cores from one process; two processes do. joblib's loky starts new processes, because
torch's threads do not survive a fork, and sends them live objects: nothing is read from a file, and the user's script
is not run again.
"""

import logging
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from joblib.externals.loky import get_reusable_executor
from torch import nn

from rattle.errors import RattleError, first_line
from rattle.models.user import USER_MODULE

try:  # which cloudpickle loky uses
    from joblib.externals.cloudpickle import register_pickle_by_value  # type: ignore[import-not-found]
except ImportError:  # joblib 1.6 and later
    from cloudpickle import register_pickle_by_value

IDLE = 30  # seconds after which processes without work end


def in_processes(
    jobs: int, model: nn.Module, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]
) -> Generator[Any, None, None]:
    """What `function` returns for the arguments of each task, in the order in which they are done.

    model: what the tasks attack; its classes are made known to the processes. The processes end when this generator is
    closed while they work, when this process is killed, and when they had nothing to do for IDLE seconds.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(USER_MODULE):
            register_pickle_by_value(module)  # no other process could import it
    executor = get_reusable_executor(
        max_workers=jobs,
        timeout=IDLE,
        env={
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // jobs)),
            "PYTHONSAFEPATH": "1",  # `python -m` would import from the working directory first
            "MALLOC_MMAP_MAX_": "0",  # glibc keeps the memory of large tensors for the next ones
            "MALLOC_TRIM_THRESHOLD_": str(2**40),
        },
        initializer=prepare_process,
        initargs=(os.getpid(), folders_of(model)),
    )
    pending = set()
    try:
        for task in tasks:
            pending.add(executor.submit(function, *task))
            if len(pending) > jobs:  # one more than there are processes, so that none has to wait
                yield from finished(pending)
        while pending:
            yield from finished(pending)
    except RattleError:
        raise
    except pickle.PicklingError as reason:
        raise RattleError("the model or attack cannot be pickled for other processes: leave out jobs") from reason
    except BrokenProcessPool as reason:
        raise RattleError(
            "a process that attacked batches was killed; the machine may be short of memory: try fewer jobs; "
            "finished batches are kept when there is a folder for results"
        ) from reason
    except Exception as reason:  # of the network's own code
        raise RattleError(f"attacking a batch raised {type(reason).__name__}: {first_line(reason)}") from reason
    finally:
        if pending:  # nobody will take what they compute
            executor.shutdown(wait=True, kill_workers=True)


def finished(pending: set[Future[Any]]) -> Iterator[Any]:
    """Wait for at least one of the futures; remove those that are done, and yield their results before any error."""
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    pending -= done
    for future in sorted(done, key=lambda future: future.exception() is not None):
        yield future.result()


def prepare_process(parent: int, folders: list[str]) -> None:
    """Runs first in each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    sys.path += folders
    logging.getLogger("rattle").setLevel(logging.ERROR)  # the first process has warned
    warnings.simplefilter("ignore")
    Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: int) -> None:
    """End this process when its parent is gone, also in the middle of a batch."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def folders_of(model: nn.Module) -> list[str]:
    """Where the classes of a model's layers were imported from, beyond the search path."""
    folders = set()
    for package in {type(module).__module__.partition(".")[0] for module in model.modules()}:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file:
            path = Path(file).resolve()
            folders.add(str(path.parent.parent if path.stem == "__init__" else path.parent))
    return sorted(folders - {*sys.path})
