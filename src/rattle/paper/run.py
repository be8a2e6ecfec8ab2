"""Train the runs of a plan that are not finished."""

from collections.abc import Sequence
from pathlib import Path

from rattle.errors import RattleError
from rattle.runs.progress import Console, ProgressOnly
from rattle.training.loop import fit
from rattle.training.sweep import Job, run_local


def train_jobs(todo: Sequence[Job], *, at_once: int, out: Path, console: Console) -> dict[str, str]:
    """Train runs on this machine, `at_once` at a time; the names of those that failed, and why.

    A run that diverges has not failed: the table says so. `out` is named when a signal stops the training.
    """
    failed = one_by_one(todo, console) if at_once == 1 else run_local(todo, at_once=at_once, out=out, console=console)
    diverged = {job.folder.name for job in todo if job.run.divergence}
    return {name: reason for name, reason in failed.items() if name not in diverged}


def one_by_one(todo: Sequence[Job], console: Console) -> dict[str, str]:
    """Train in this process; a run that fails does not stop the others."""
    failed = {}
    for i, job in enumerate(todo):
        console.log(f"{job.folder.name}: training, {i + 1} of {len(todo)}")
        try:
            fit(job.recipe, job.folder, resume=True, console=ProgressOnly(console))
        except RattleError as reason:
            failed[job.folder.name] = str(reason)
    return failed
