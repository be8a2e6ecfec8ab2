"""Sweeps: a grid of runs, each in its own folder; finished ones are skipped, broken ones go on.

A run of a sweep is a folder with a recipe.yaml; whoever starts it (this machine, SLURM) trains what it says with
--resume, so starting a sweep again is always safe.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from rattle.errors import RattleError
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.io import write_atomically
from rattle.runs.lock import LOCK, owner
from rattle.runs.paths import Run, slugify
from rattle.runs.progress import Advance, Console, NullConsole
from rattle.training.loop import fit
from rattle.training.signals import StoppedBySignal, listening
from rattle.training.state import newest

State = Literal["new", "broken", "running", "finished"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    folder: Path
    recipe: Recipe

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @property
    def state(self) -> State:
        if not self.run.recipe.exists():
            return "new"
        if owner(self.folder / LOCK):
            return "running"
        saved = newest(self.run, NullConsole())
        return "finished" if saved and saved.progress["epoch"] >= self.recipe.epochs else "broken"

    @property
    def epochs(self) -> int:
        """How many are recorded."""
        with suppress(OSError):
            return self.run.metrics.read_bytes().count(b"\n")
        return 0


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The grid, the last axis running fastest.

    >>> list(combinations({"eta": [1, 2], "seed": [0]}))
    [{'eta': 1, 'seed': 0}, {'eta': 2, 'seed': 0}]
    """
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def folder_name(point: Mapping[str, Any]) -> str:
    """What a run is called: its place in the grid, in characters that no file system or shell minds.

    >>> folder_name({"objective.taylor.eta": "0.1", "attack.threat.epsilon": "8/255", "seed": 2})
    'objective.taylor.eta=0.1,attack.threat.epsilon=8_255,seed=2'
    """
    return slugify(",".join(f"{axis}={value}" for axis, value in point.items()) or "run")


def plan(points: Sequence[tuple[Mapping[str, Any], Recipe]], out: Path) -> list[Job]:
    """A folder and a recipe each; two points of one name, or a folder that holds something else, are refused."""
    jobs = [Job(out / folder_name(point), recipe) for point, recipe in points]
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
    """What is left to do, each with its recipe in its folder; the others are said."""
    left = []
    for job in jobs:
        state = job.state
        if state in ("finished", "running"):
            console.log(
                f"{job.folder.name}: {state}" + (f" ({owner(job.folder / LOCK)})" if state == "running" else "")
            )
            continue
        if state == "new":
            write_atomically(job.run.recipe, job.recipe.to_yaml().encode())
        else:
            console.log(f"{job.folder.name}: goes on after {job.epochs} of {job.recipe.epochs} epochs")
        left.append(job)
    return left


@dataclass(slots=True)
class Slots:
    """Processes under way: at most so many, each with its share of the cores and its own GPU."""

    size: int
    live: dict[int, tuple[Job, subprocess.Popen]] = field(default_factory=dict)

    def start(self, job: Job) -> None:
        slot = next(i for i in range(self.size) if i not in self.live)
        share = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // self.size, 1))}
        if torch.cuda.device_count():
            share["CUDA_VISIBLE_DEVICES"] = str(slot % torch.cuda.device_count())
        command = [sys.executable, "-m", "rattle", "train", str(job.folder), "--out", str(job.folder), "--resume"]
        with open(job.folder / "train.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**share, **os.environ},
                start_new_session=True,  # Ctrl-C reaches them through us, once
            )
        self.live[slot] = job, process

    def ended(self) -> list[tuple[Job, int]]:
        over = [(slot, job, p.returncode) for slot, (job, p) in self.live.items() if p.poll() is not None]
        for slot, _, _ in over:
            del self.live[slot]
        return [(job, code) for _, job, code in over]

    def tell(self, number: int) -> None:
        for _, process in self.live.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)


@contextmanager
def slots(size: int) -> Iterator[Slots]:
    """Nothing that was started outlives us: on the way out what still runs is asked to save, and waited for."""
    here = Slots(size)
    try:
        yield here
    finally:
        here.tell(signal.SIGTERM)
        for _, process in here.live.values():
            process.wait()


def run_here(jobs: Sequence[Job], *, at_once: int, out: Path, console: Console) -> dict[str, str]:
    """Train on this machine, so many at once; what failed, and the last thing it said."""
    if at_once < 1:
        raise RattleError(f"jobs must be >= 1, got {at_once}")
    waiting, failed = list(jobs), {}
    epochs = sum(job.recipe.epochs for job in jobs)
    with (
        listening() as request,
        console.progress("sweep", epochs, done=sum(job.epochs for job in jobs)) as advance,
        slots(at_once) as here,
    ):
        watched = Watched(jobs, advance)
        while waiting or here.live:
            while waiting and len(here.live) < at_once and not request.number:
                here.start(waiting.pop(0))
            time.sleep(0.1)
            watched.look(runs=f"{len(jobs) - len(waiting) - len(here.live)}/{len(jobs)}", failed=str(len(failed)))
            for job, code in here.ended():
                if code and not request.number:
                    failed[job.folder.name] = last_words(job.folder / "train.log") or f"exit code {code}"
                console.log(f"{job.folder.name}: {'finished' if not code else f'ended with exit code {code}'}")
            if request.number:
                here.tell(signal.SIGTERM)
                waiting.clear()
                while here.live:
                    time.sleep(0.05)
                    here.ended()
                raise StoppedBySignal(request.number, str(out))
    return failed


class Watched:
    """Epochs recorded since the last look."""

    def __init__(self, jobs: Sequence[Job], advance: Advance) -> None:
        self.jobs, self.advance, self.seen = jobs, advance, sum(job.epochs for job in jobs)

    def look(self, **figures: str) -> None:
        now = sum(job.epochs for job in self.jobs)
        self.advance(max(now - self.seen, 0), **figures)
        self.seen = max(now, self.seen)


def last_words(path: Path) -> str:
    """The last line a run said."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """What SLURM is asked for, for each run."""

    partition: str | None = None  # the cluster's default when not given
    gpus: int = 0  # of each run; more than one trains on as many ranks
    cpus: int = 1  # of each rank
    time: int = 24 * 60  # minutes; a run that needs more is saved, requeued and goes on
    requeue: bool = True  # put a run that was pre-empted or ran out of time back into the queue
    account: str | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.cpus < 1 or self.time < 1:
            raise RattleError("slurm.gpus must be >= 0, slurm.cpus and slurm.time >= 1")


class Trained:
    """What a SLURM job calls: train the run of a folder, from wherever it stands. submitit pickles it."""

    def __init__(self, folder: str, ranks: int, make_console: Callable[[], Console]) -> None:
        self.folder, self.ranks, self.make_console = folder, ranks, make_console

    def __call__(self) -> str:
        from submitit.helpers import TorchDistributedEnvironment

        if self.ranks > 1:
            TorchDistributedEnvironment().export()
        try:
            with distributed.process_group():
                fit(resolve(self.folder), self.folder, resume=True, console=self.make_console())
        except StoppedBySignal as stop:
            if stop.number == signal.SIGUSR2:
                signal.raise_signal(signal.SIGUSR2)  # saved; submitit, which listens again, requeues
            raise
        return self.folder

    def checkpoint(self) -> Any:
        """For submitit: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    jobs: Sequence[Job], slurm: Slurm, out: Path, console: Console, make_console: Callable[[], Console] = NullConsole
) -> list[str]:
    """Hand every run to SLURM; the numbers of its jobs. `make_console` makes the console that a job writes to."""
    try:
        import submitit
        from submitit.core.utils import FailedJobError
    except ImportError:
        raise RattleError("the slurm launcher needs submitit: pip install 'rattle-robust[slurm]'") from None
    executor: Callable[..., Any] = submitit.AutoExecutor
    try:
        there = executor(folder=str((out / "slurm").absolute()), cluster="slurm", slurm_max_num_timeout=100)
        extra = {"requeue": True} if slurm.requeue else {"no-requeue": True}
        there.update_parameters(
            name="rattle",
            timeout_min=slurm.time,
            cpus_per_task=slurm.cpus,
            tasks_per_node=max(slurm.gpus, 1),
            slurm_additional_parameters=extra | ({"account": slurm.account} if slurm.account else {}),
            slurm_use_srun=True,
            **({"slurm_partition": slurm.partition} if slurm.partition else {}),
            **({"gpus_per_node": slurm.gpus} if slurm.gpus else {}),
        )
        numbers = []
        for job in jobs:
            handed = there.submit(Trained(str(job.folder.absolute()), max(slurm.gpus, 1), make_console))
            console.log(f"{job.folder.name}: SLURM job {handed.job_id}")
            numbers.append(str(handed.job_id))
    except (RuntimeError, OSError, FailedJobError) as reason:
        raise RattleError(f"SLURM did not take the sweep: {' '.join(str(reason).split())}") from reason
    return numbers
