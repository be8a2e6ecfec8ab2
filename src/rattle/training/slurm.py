"""Sweeps through SLURM: every run is a job that trains its folder and is requeued when it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rattle.errors import RattleError
from rattle.runs.progress import Console, NullConsole, StoppedBySignal
from rattle.settings import Count, CountOrZero, Plain, check_settings

if TYPE_CHECKING:
    from rattle.training.sweep import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The resources of each run."""

    partition: str | None = None  # the cluster's default when not given
    nodes: Count = 1  # machines of each run
    gpus: CountOrZero = 0  # GPUs on each machine, one rank for each; 0: one rank on the CPU
    cpus: Count = 1  # of each rank
    time: Count = 24 * 60  # minutes; a run that needs more is saved, requeued and resumed
    requeue: bool = True  # put a run that was pre-empted or ran out of time back into the queue
    account: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, "slurm")


class SlurmTask:
    """The function of a SLURM job: trains or resumes the run of a folder. submitit pickles it."""

    def __init__(self, job: Job, slurm: Slurm, make_console: Callable[[], Console]) -> None:
        self.folder, self.trust_code = str(job.folder.absolute()), job.trust_code
        from rattle.models.user import plugins

        self.plugins = list(map(str, plugins()))
        self.ranks = slurm.nodes * max(slurm.gpus, 1)
        self.requeue, self.make_console = slurm.requeue, make_console

    def __call__(self) -> str:
        from submitit.helpers import TorchDistributedEnvironment

        from rattle.models.user import load_plugins
        from rattle.recipes.catalog import resolve
        from rattle.runs import distributed
        from rattle.training.loop import fit

        load_plugins(self.plugins)
        if self.ranks > 1:
            TorchDistributedEnvironment().export()
        try:
            with distributed.process_group():
                recipe, console = resolve(self.folder), self.make_console()
                fit(recipe, self.folder, resume=True, console=console, trust_code=self.trust_code)
        except StoppedBySignal as stop:
            if stop.number == signal.SIGUSR2 and self.requeue:
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
    settings: Plain = {
        "name": "rattle",
        "timeout_min": slurm.time,
        "cpus_per_task": slurm.cpus,
        "nodes": slurm.nodes,
        "tasks_per_node": max(slurm.gpus, 1),
        "slurm_additional_parameters": {"requeue" if slurm.requeue else "no-requeue": True},
        "slurm_use_srun": True,
    }
    if slurm.account:
        settings["slurm_additional_parameters"]["account"] = slurm.account
    if slurm.partition:
        settings["slurm_partition"] = slurm.partition
    if slurm.gpus:
        settings["gpus_per_node"] = slurm.gpus
    try:
        there: Any = submitit.AutoExecutor(
            folder=str((out / "slurm").absolute()), cluster="slurm", slurm_max_num_timeout=100
        )
        there.update_parameters(**settings)
        numbers = []
        for job in jobs:
            number = str(there.submit(SlurmTask(job, slurm, make_console)).job_id)
            console.log(f"{job.folder.name}: SLURM job {number}")
            numbers.append(number)
    except (RuntimeError, OSError, FailedJobError) as reason:
        raise RattleError(f"SLURM did not take the sweep: {' '.join(str(reason).split())}") from reason
    return numbers
