"""Sweeps: a grid of runs, each in its own folder; finished ones are skipped, unfinished ones are resumed.

A run of a sweep is a folder with a recipe.yaml, which this machine or SLURM trains with --resume: starting a sweep
again is always safe.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from rattle.errors import RattleError
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.runs.io import no_link, write_atomically, writing
from rattle.runs.lock import is_locked
from rattle.runs.paths import Run, slugify
from rattle.runs.progress import Console, NullConsole, StoppedBySignal, listening
from rattle.settings import Plain, check_cores
from rattle.training.saving import newest
from rattle.training.teachers import code_of

State = Literal["new", "unfinished", "running", "finished"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    folder: Path
    recipe: Recipe
    trust_code: bool = False  # the user's word, for code that the checkpoint of a teacher names

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @property
    def state(self) -> State:
        if not self.run.recipe.exists():
            return "new"
        if is_locked(self.run.lock):
            return "running"
        saved = newest(self.run, NullConsole())
        return "finished" if saved and saved.progress["epoch"] >= self.recipe.epochs else "unfinished"


def folder_name(point: Plain) -> str:
    """The folder of a run, named by its place in the grid, in characters that are safe for file systems and shells.

    >>> folder_name({"objective.taylor.eta": "0.1", "attack.threat.epsilon": "8/255", "seed": 2})
    'objective.taylor.eta=0.1,attack.threat.epsilon=8_255,seed=2'
    """
    return slugify(",".join(f"{axis}={value}" for axis, value in point.items()) or "run")


def plan_sweep(points: Sequence[tuple[Plain, Recipe]], out: Path, *, trust_code: bool = False) -> list[Job]:
    """A folder and a recipe each; two points of one name, or a folder that holds something else, are refused."""
    jobs = [Job(out / folder_name(point), recipe, trust_code) for point, recipe in points]
    check(jobs)
    return jobs


def check(jobs: Sequence[Job]) -> None:
    """Refuse two jobs for one folder, and a folder that holds another run."""
    for job in jobs:
        if sum(job.folder == other.folder for other in jobs) > 1:
            raise RattleError(f"two runs of the sweep would be called {job.folder.name}: give no value twice")
        if job.run.recipe.exists() and resolve(str(job.folder)) != job.recipe:
            raise RattleError(f"{job.folder} holds a run of another recipe: choose another --out")


def pending(jobs: Sequence[Job], console: Console) -> list[Job]:
    """The runs that are left to do, each with its recipe in its folder; what the others are doing is logged."""
    left = []
    for job in jobs:
        state = job.state
        if state in ("finished", "running"):
            console.log(f"{job.folder.name}: {state}")
        else:
            if state == "new":
                write_atomically(job.run.recipe, job.recipe.to_yaml().encode())
            else:
                console.log(f"{job.folder.name}: resumes")
            left.append(job)
    return left


def check_jobs(at_once: int) -> None:
    if at_once < 1:
        raise RattleError(f"jobs must be >= 1, got {at_once}")
    check_cores("jobs", at_once, each=4)


def run_local(jobs: Sequence[Job], *, at_once: int, out: Path, console: Console) -> dict[str, str]:
    """Train on this machine, `at_once` jobs at a time; returns the last line that each failed job wrote."""
    check_jobs(at_once)
    waiting, failed = list(jobs), {}
    running = {}  # by slot, which has its share of the cores and a GPU
    bar = console.progress("sweep", len(jobs))
    with listening() as request, bar as advance:
        try:
            while waiting or running:
                for slot in range(at_once):
                    if waiting and slot not in running and not request.number:
                        job = waiting.pop(0)
                        running[slot] = job, start(job, slot, at_once)
                time.sleep(0.1)
                for slot, (job, process) in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del running[slot]
                    if code and not request.number:
                        log = job.run.log.read_text(encoding="utf-8", errors="replace").strip()
                        failed[job.folder.name] = log.rpartition("\n")[2].strip() or f"exit code {code}"
                    console.log(f"{job.folder.name}: {'finished' if code == 0 else f'ended with exit code {code}'}")
                    advance(1, failed=len(failed))
                if request.number:
                    raise StoppedBySignal(request.number, str(out), "the same command again continues it")
        finally:  # ask those that run to save and end, and wait for them: none outlives the sweep
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
    return failed


def refuse_failed(failed: Mapping[str, str], jobs: Sequence[Job]) -> None:
    """Raise RattleError with the last line of each run that failed, if one did."""
    if failed:
        each = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise RattleError(f"{len(failed)} of {len(jobs)} runs failed, the same command again resumes them: {each}")


def start(job: Job, slot: int, slots: int) -> subprocess.Popen:
    """Train a job in a process of its own; its output goes to train.log in the run folder."""
    share = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // slots, 1))}
    if torch.cuda.device_count():
        share["CUDA_VISIBLE_DEVICES"] = str(slot % torch.cuda.device_count())
    command = [sys.executable, "-m", "rattle", "train", str(job.folder), "--out", str(job.folder), "--resume"]
    if job.trust_code or code_of(job.recipe):
        command.append("--trust-code")
    with writing(job.run.log):
        log = open(job.run.log, "ab", opener=no_link)  # noqa: SIM115 (the process has it)
    with log:
        try:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**share, **os.environ},
                start_new_session=True,  # Ctrl-C reaches them through `run_local`, once
            )
        except OSError as reason:
            raise RattleError(f"cannot start another process ({reason.strerror}): take fewer --jobs") from reason
