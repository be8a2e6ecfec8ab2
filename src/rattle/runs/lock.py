"""Opening a run folder for writing: begin, continue or replace a run, one process group at a time."""

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rattle.errors import RattleError
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.environment import environment
from rattle.runs.io import append_line, write_atomically, writing
from rattle.runs.paths import Run

LOCK = Run.lock.name


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file alone; raises RattleError if another process holds it.

    The kernel releases the lock of a process that dies, so there are no stale locks.
    """
    with open(path, "a+", encoding="utf-8") as file:
        for pause in (0.1, 0.2, 0.4, 0.0):  # a child of a process just killed may hold its lock for a moment more
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(pause)
        else:
            raise RattleError(f"{path.parent} is being written by {owner(path)}: wait, or choose another --out")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def owner(lock: Path) -> str:
    """The process that holds a lock file, and for how long; empty if none does."""
    if not lock.exists():
        return ""
    with open(lock, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            minutes = (time.time() - lock.stat().st_mtime) / 60
            return f"{file.read().strip() or 'another process'} (for {minutes:.0f} minutes)"
    return ""


@contextmanager
def open_run(run: Run, recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
    """Hold a run folder for training `recipe`.

    resume: continue the run that is there, if any; overwrite: remove it first. Without either, a folder that holds a
    run is refused, as is a folder that holds anything else.
    """
    if resume and overwrite:
        raise RattleError("--resume continues a run and --overwrite replaces it: choose one")
    with ExitStack() as lock:
        distributed.on_main(lambda: acquire(run, recipe, resume, overwrite, lock))
        yield


def acquire(run: Run, recipe: Recipe, resume: bool, overwrite: bool, lock: ExitStack) -> None:
    """Check that the folder may be written, lock it, and write recipe and environment."""
    if run.folder.exists() and not run.folder.is_dir():
        raise RattleError(f"{run.folder} is a file, not a folder: choose another --out")
    if run.folder.exists() and not run.exists() and any(map(foreign, run.folder.iterdir())):
        raise RattleError(f"{run.folder} is not empty and holds no run: choose another --out")
    if run.exists() and not (resume or overwrite):
        raise RattleError(f"{run.folder} holds a run already: --resume continues it, --overwrite replaces it")
    with writing(run.lock):
        lock.enter_context(locked(run.lock))
    if overwrite:
        clear(run)
    elif run.exists() and Recipe.from_yaml(run.recipe.read_text(encoding="utf-8")) != recipe:
        command = f"rattle train {run.recipe} --out {run.folder} --resume"
        raise RattleError(f"{run.folder} holds a run of another recipe: resume it with `{command}`")
    run.diverged.unlink(missing_ok=True)
    write_atomically(run.recipe, recipe.to_yaml().encode())
    write_atomically(run.environment, json.dumps(environment(), indent=1).encode())


def foreign(path: Path) -> bool:
    """Whether a file in a folder without a recipe is not from a run that was stopped while it began."""
    unfinished = path.name.startswith(".") and path.name.endswith(".part")
    return not unfinished and path.name not in (LOCK, Run.log.name)


def clear(run: Run) -> None:
    """Remove what a run wrote, and nothing else."""
    for path in run.written():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def note_divergence(run: Run, sentence: str) -> None:
    """Record that the loss diverged for good, see Run.divergence."""
    write_atomically(run.diverged, sentence.encode())


def record_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON object to a file of lines; only the main rank writes, the others wait."""
    distributed.on_main(lambda: append_line(path, line))


def truncate(path: Path, size: int) -> None:
    """Drop the lines that were written after the checkpoint a run resumes from, when the file had `size` bytes."""
    if distributed.is_main() and path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
