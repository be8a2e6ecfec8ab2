"""A run that is being replaced stays in RUN/.replaced until the new one has a checkpoint, or comes back without one.

Renames inside one folder, so nothing is copied; what a killed process leaves half moved is moved back.
"""

import os
import shutil
from pathlib import Path

from rattle.runs.paths import Run

FOLDER = ".replaced"
COMPLETE = "complete"  # a file in the folder: everything of the old run is there, what lies beside it is the new one's


def clear(run: Run) -> None:
    """Remove what a run wrote, and nothing else; of a link only itself."""
    for path in run.written():
        discard(path)


def discard(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(run: Run) -> None:
    """Move the run that is there out of the way of a new one."""
    settle(run)
    aside = run.folder / FOLDER
    aside.mkdir()
    for path in run.written():
        if os.path.lexists(path):
            os.rename(path, aside / path.name)
    (aside / COMPLETE).touch()


def settle(run: Run) -> None:
    """Forget the old run if the new one has a checkpoint, else bring it back; nothing if none was set aside."""
    aside = run.folder / FOLDER
    if not aside.is_dir() or aside.is_symlink():
        return
    complete = (aside / COMPLETE).exists()
    if not (complete and run.checkpoint("last").exists()):
        if complete:
            clear(run)
            (aside / COMPLETE).unlink()
        for path in sorted(aside.iterdir(), key=lambda path: path.name == Run.recipe.name):
            discard(run.folder / path.name)
            os.rename(path, run.folder / path.name)
    shutil.rmtree(aside)
