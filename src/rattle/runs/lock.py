"""Opening a run folder for writing: begin, continue or replace a run, one process group at a time."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from rattle.errors import RattleError
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import changes
from rattle.runs import distributed
from rattle.runs.io import append_line, no_link, read_json, write_atomically, write_json, writing
from rattle.runs.paths import Run
from rattle.runs.source import environment, keep_source
from rattle.settings import Plain, check_type

PATIENCE = 0.7  # seconds: a child of a process just killed may hold its lock for a moment more


class Held(RattleError):
    """The folder is another process's."""


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a lock file alone; raises Held if another process holds it.

    The system releases the lock of a process that dies, so there are no stale locks.
    """
    try:
        held = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise Held(f"{path.parent} is being written by another process: wait, or choose another --out") from None
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock file."""
    if not path.is_file() or path.is_symlink():
        return False
    try:
        with locked(path, patience=0):
            return False
    except Held:
        return True


@contextmanager
def open_run(run: Run, recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
    """Hold a run folder for training `recipe`.

    resume: continue the run that is there, if any, for as many epochs as `recipe` says; overwrite: remove it first.
    Without either, a folder that holds a run which has saved something is refused, as is a folder that holds anything
    else.
    """
    with ExitStack() as lock:
        distributed.on_main(lambda: acquire(run, recipe, resume, overwrite, lock))
        yield


def acquire(run: Run, recipe: Recipe, resume: bool, overwrite: bool, lock: ExitStack) -> None:
    """Lock the folder, and write recipe and environment."""
    check_folder(run, resume=resume, overwrite=overwrite)
    with writing(run.lock):
        lock.enter_context(locked(run.lock))
        refuse_held(run, resume, overwrite)
        if not resume:
            clear(run)
    if run.exists():
        check_resumable(run, recipe)
    run.diverged.unlink(missing_ok=True)
    write_atomically(run.recipe, recipe.to_yaml().encode())
    about = environment() | keep_source(run, recipe)
    write_json(run.environment, about, indent=1)


def check_folder(run: Run, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that may not be written as is asked."""
    if resume and overwrite:
        raise RattleError(
            "--resume continues a run and --overwrite replaces it: choose one (in Python resume=True or overwrite=True)"
        )
    if run.folder.exists() and not run.folder.is_dir():
        raise RattleError(f"{run.folder} is a file, not a folder: choose another --out")
    check_type("out", str(run.folder), str)  # TensorBoard and safetensors need UTF-8
    if run.folder.exists() and not run.exists() and any(map(foreign, run.folder.iterdir())):
        raise RattleError(f"{run.folder} is not empty and holds no run: choose another --out")
    refuse_held(run, resume, overwrite)


def refuse_held(run: Run, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds a run unless something is to be done with it; one that saved nothing begins anew."""
    saved = run.checkpoints.exists() or run.metrics.exists() or run.results.exists()
    if run.exists() and saved and not (resume or overwrite):
        raise Held(
            f"{run.folder} holds a run already: --resume (in Python resume=True) continues it, --overwrite replaces it"
        )


def check_resumable(run: Run, recipe: Recipe) -> None:
    """Refuse to resume with other settings than the run has; more epochs are recorded in the run's history."""
    before = resolve(str(run.folder))
    changed = changes(before, recipe, but=("epochs",))
    if changed:
        command = f"`rattle train {run.folder} --resume`"
        raise RattleError(f"{run.folder} holds a run of another recipe ({changed}): {command} resumes its own")
    if recipe.epochs < before.epochs:
        shorter = f"{before.epochs} epochs, which --resume can make more but not {recipe.epochs}"
        raise RattleError(f"the run in {run.folder} has {shorter}: train a shorter one into another --out")
    if recipe.epochs > before.epochs:
        then = read_json(run.environment, [])  # the file is about to be replaced
        append_line(run.history, {"epochs_before": before.epochs, "epochs": recipe.epochs, "environment_before": then})


def foreign(path: Path) -> bool:
    """Whether a file in a folder without a recipe is not from a run that was stopped while it began."""
    unfinished = path.name.startswith(".") and path.name.endswith(".part")
    return not unfinished and path.name not in (Run.lock.name, Run.log.name)


def record_line(path: Path, line: Plain) -> None:
    """Append one JSON object to a file of lines; only the main rank writes, the others wait."""
    distributed.on_main(lambda: append_line(path, line))


def truncate(path: Path, size: int) -> None:
    """Drop the lines that were written after the checkpoint a run resumes from, when the file had `size` bytes.

    Of a file that has lost some of these, a line that was cut goes too.
    """
    if not distributed.is_main() or not path.is_file():
        return
    found = path.read_bytes()
    kept = size if len(found) >= size else found.rfind(b"\n") + 1
    with writing(path), open(path, "r+b", opener=no_link) as file:
        file.truncate(kept)


def clear(run: Run) -> None:
    """Remove what a run wrote, and nothing else; of a link only itself."""
    for path in run.written():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
