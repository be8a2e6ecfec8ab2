"""Opening a run folder for writing: begin, continue or replace a run, alone; and lines added to it by one rank."""

from __future__ import annotations

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
from rattle.runs.io import append_line, write_atomically
from rattle.runs.paths import PARTS, Run

LOCK = "lock"


def foreign(path: Path) -> bool:
    """Is this something that a run which has only just begun does not write?"""
    return path.name not in (LOCK, "train.log") and not (path.name.startswith(".") and path.name.endswith(".part"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a run folder alone. The kernel drops the lock of a process that dies: a stale one is simply taken over."""
    with open(path, "a+", encoding="utf-8") as file:
        for patience in (0.1, 0.2, 0.4, 0.0):  # a child of one just killed may hold its lock for a moment more
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(patience)
        else:
            message = f"{path.parent} is being written by {described(path)}: wait, or choose another --out"
            raise RattleError(message)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def described(lock: Path) -> str:
    """Owner and age of a lock."""
    minutes = (time.time() - lock.stat().st_mtime) / 60
    return f"{lock.read_text(encoding='utf-8').strip() or 'another process'} (for {minutes:.0f} minutes)"


def owner(lock: Path) -> str:
    """Who holds a lock, and for how long; nothing when nobody does."""
    if not lock.exists():
        return ""
    with open(lock, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return described(lock)
    return ""


@contextmanager
def open_run(run: Run, recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
    """Begin a run in an empty folder, continue one, or replace one; never mix two, never write beside another."""
    if resume and overwrite:
        raise RattleError("--resume continues a run and --overwrite replaces it: choose one")
    with ExitStack() as lock:
        distributed.on_main(lambda: acquire(run, recipe, resume, overwrite, lock))
        yield


def acquire(run: Run, recipe: Recipe, resume: bool, overwrite: bool, lock: ExitStack) -> None:
    """Check that the folder may be written, lock it, and say in it what will run."""
    if run.folder.exists() and not run.folder.is_dir():
        raise RattleError(f"{run.folder} is a file, not a folder: choose another --out")
    if run.folder.exists() and not run.recipe.exists() and any(map(foreign, run.folder.iterdir())):
        raise RattleError(f"{run.folder} is not empty and holds no run: choose another --out")
    if run.recipe.exists() and not (resume or overwrite):
        raise RattleError(f"{run.folder} holds a run already: --resume continues it, --overwrite replaces it")
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise RattleError(f"cannot make the folder {run.folder}: {reason.strerror}") from reason
    lock.enter_context(locked(run.folder / LOCK))
    if overwrite:
        clear(run)
    elif run.recipe.exists() and Recipe.from_yaml(run.recipe.read_text(encoding="utf-8")) != recipe:
        command = f"rattle train {run.recipe} --out {run.folder} --resume"
        raise RattleError(f"{run.folder} holds a run of another recipe: resume it with `{command}`")
    (run.folder / "diverged.txt").unlink(missing_ok=True)
    write_atomically(run.recipe, recipe.to_yaml().encode())
    write_atomically(run.folder / "environment.json", json.dumps(environment(), indent=1).encode())


def clear(run: Run) -> None:
    """Remove what a run wrote, and nothing else."""
    for part in PARTS:
        path = run.folder / part
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def note_divergence(run: Run, sentence: str) -> None:
    write_atomically(run.folder / "diverged.txt", sentence.encode())


def record_line(path: Path, line: Mapping[str, Any]) -> None:
    """One JSON object a line, on disk before we go on; the main rank writes."""
    distributed.on_main(lambda: append_line(path, line))


def truncate(path: Path, size: int) -> None:
    """Forget the lines written after the checkpoint that we resume from."""
    if distributed.is_main() and path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
