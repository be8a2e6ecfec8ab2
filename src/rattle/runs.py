"""A run folder: recipe.yaml, environment.json, metrics.jsonl, timing.jsonl, events/, checkpoints/, results/."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rattle import distributed
from rattle.checkpoint import Checkpoint, append_line, read, write_atomically
from rattle.errors import RattleError
from rattle.models import build
from rattle.recipes import Recipe

LOCK = "lock"
PARTS = (
    "checkpoints",
    "metrics.jsonl",
    "timing.jsonl",
    "events",
    "results",
    "report.html",
    "train.log",
    "diverged.txt",
    "environment.json",
    "recipe.yaml",  # last: a folder half cleared is still a run's
)


@dataclass(frozen=True, slots=True)
class Run:
    """Where things are in a run folder."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        return self.folder / "timing.jsonl"

    @property
    def events(self) -> Path:
        return self.folder / "events"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / f"{name}.safetensors"

    @contextmanager
    def opened(self, recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
        """Begin a run in an empty folder, continue one, or replace one; never mix two, never write beside another."""
        if resume and overwrite:
            raise RattleError("--resume continues a run and --overwrite replaces it: choose one")
        with ExitStack() as lock:
            distributed.by_main(lambda: self.take(recipe, resume, overwrite, lock))
            yield

    def take(self, recipe: Recipe, resume: bool, overwrite: bool, lock: ExitStack) -> None:
        """Check that the folder may be written, lock it, and say in it what will run."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RattleError(f"{self.folder} is a file, not a folder: choose another --out")
        if self.folder.exists() and not self.recipe.exists() and any(map(foreign, self.folder.iterdir())):
            raise RattleError(f"{self.folder} is not empty and holds no run: choose another --out")
        if self.recipe.exists() and not (resume or overwrite):
            raise RattleError(f"{self.folder} holds a run already: --resume continues it, --overwrite replaces it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as reason:
            raise RattleError(f"cannot make the folder {self.folder}: {reason.strerror}") from reason
        lock.enter_context(locked(self.folder / LOCK))
        if overwrite:
            self.clear()
        elif self.recipe.exists() and Recipe.from_yaml(self.recipe.read_text(encoding="utf-8")) != recipe:
            command = f"rattle train {self.recipe} --out {self.folder} --resume"
            raise RattleError(f"{self.folder} holds a run of another recipe: resume it with `{command}`")
        (self.folder / "diverged.txt").unlink(missing_ok=True)
        write_atomically(self.recipe, recipe.to_yaml().encode())
        write_atomically(self.folder / "environment.json", json.dumps(environment(), indent=1).encode())

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else."""
        for part in PARTS:
            path = self.folder / part
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def divergence(self) -> str | None:
        """Where the loss diverged for good, in words; None when it did not, or training was taken up again since."""
        path = self.folder / "diverged.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def note_divergence(self, sentence: str) -> None:
        write_atomically(self.folder / "diverged.txt", sentence.encode())

    def append(self, path: Path, line: Mapping[str, Any]) -> None:
        """One JSON object a line, on disk before we go on; the main rank writes."""
        distributed.by_main(lambda: append_line(path, line))

    def cut(self, path: Path, size: int) -> None:
        """Forget the lines written after the checkpoint that we resume from."""
        if distributed.main() and path.exists() and path.stat().st_size > size:
            os.truncate(path, size)


def epoch_name(epoch: int) -> str:
    """What the checkpoint of an epoch that is kept is called."""
    return f"epoch-{epoch:03d}"


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


def plain_name(text: str, longest: int = 120) -> str:
    """A folder's name made of a text, in characters that no file system or shell minds; it leads nowhere else.

    >>> plain_name("../../epsilon=8/255")
    '_.._epsilon=8_255'
    """
    name = re.sub(r"[^A-Za-z0-9.,=+_-]", "_", text).lstrip(".-") or "run"
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return name


def locate(path: Path | str) -> Path:
    """The checkpoint that a path means: itself, or the best (else the last) one of a run folder."""
    path = Path(path)
    if path.is_dir():
        run = Run(path)
        for name in ("best", "last"):
            if run.checkpoint(name).is_file():
                return run.checkpoint(name)
        raise RattleError(f"{path} holds no checkpoint; train there with `rattle train RECIPE --out {path}`")
    if not path.exists():
        raise RattleError(f"there is no run or checkpoint {path}")
    return path


def run_of(checkpoint: Path) -> Run | None:
    """The run folder a checkpoint lies in, if it lies in one."""
    folder = checkpoint.parent.parent
    return Run(folder) if (folder / "recipe.yaml").is_file() else None


def open_checkpoint(path: Path | str) -> Checkpoint:
    return read(locate(path))


def environment() -> dict[str, Any]:
    """What a run ran on: versions, commit, hardware."""
    import numpy
    import torch

    from rattle import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "rattle": __version__,
        "commit": commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the source tree rattle runs from, with a + when it was changed; None when installed elsewhere."""
    here = Path(__file__).parent
    try:
        call = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12", "--match", ""]
        tracked = subprocess.run([*call[:3], "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=5)
        if tracked.returncode:
            return None
        return subprocess.run(call, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


@contextmanager
def events(run: Run, *, purge_step: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that writes an epoch's figures as TensorBoard scalars; events from purge_step on are hidden."""
    if not distributed.main():
        yield lambda metrics: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.events), purge_step=purge_step) as writer:

        def log(metrics: Mapping[str, Any]) -> None:
            for name, value in metrics.items():
                if name not in ("epoch", "step"):
                    writer.add_scalar(name, value, metrics["epoch"])
            writer.flush()

        yield log


def load(path: Path | str, *, averaged: bool = True) -> nn.Module:
    """The trained model of a run folder (its best checkpoint) or checkpoint, in evaluation mode.

    Averaged weights come first when the run has them; `averaged=False` asks for the raw ones.
    """
    return model_of(open_checkpoint(path), averaged=averaged)


def network(
    recipe: Recipe, *, classes: int, channels: int, statistics: tuple[list[float], list[float]] | None = None
) -> nn.Module:
    """The recipe's network, freshly initialised from torch's random state."""
    return build(
        recipe.model,
        classes=classes,
        channels=channels,
        width=recipe.width,
        activation=recipe.activation,
        normalise=statistics,
    )


def model_of(saved: Checkpoint, *, averaged: bool = True) -> nn.Module:
    """The network of a checkpoint with its weights."""
    unit = ([0.0] * saved.shape[0], [1.0] * saved.shape[0])  # the true statistics are among the weights
    statistics = unit if saved.recipe.normalise else None
    model = network(saved.recipe, classes=len(saved.classes), channels=saved.shape[0], statistics=statistics)
    average = saved.part("average")
    if averaged and average and int(average["n_averaged"]) > 0:
        weights = {key.removeprefix("module."): value for key, value in average.items() if key != "n_averaged"}
    else:
        weights = saved.part("model")
    model.load_state_dict(weights)
    return model.eval()
