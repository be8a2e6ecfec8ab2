"""A run folder: recipe.yaml, environment.json, metrics.jsonl, timing.jsonl, events/, checkpoints/, results/."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rattle.checkpoint import Checkpoint, read, write_atomically
from rattle.errors import RattleError
from rattle.models import build
from rattle.recipes import Recipe

PARTS = (
    "recipe.yaml",
    "environment.json",
    "metrics.jsonl",
    "timing.jsonl",
    "events",
    "checkpoints",
    "results",
    "report.html",
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

    @staticmethod
    def open(folder: Path | str, recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Run:
        """Begin a run in an empty folder, continue one, or replace one; never mix two."""
        run = Run(Path(folder))
        if resume and overwrite:
            raise RattleError("--resume continues a run and --overwrite replaces it: choose one")
        if run.folder.exists() and not run.folder.is_dir():
            raise RattleError(f"{run.folder} is a file, not a folder: choose another --out")
        if run.recipe.exists():
            if overwrite:
                run.clear()
            elif not resume:
                raise RattleError(f"{run.folder} holds a run already: --resume continues it, --overwrite replaces it")
            elif Recipe.from_yaml(run.recipe.read_text(encoding="utf-8")) != recipe:
                raise RattleError(
                    f"{run.folder} holds a run of another recipe: resume it with `rattle train {run.recipe} --resume`"
                )
        elif run.folder.exists() and any(run.folder.iterdir()):
            raise RattleError(f"{run.folder} is not empty and holds no run: choose another --out")
        run.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(run.recipe, recipe.to_yaml().encode())
        write_atomically(run.folder / "environment.json", json.dumps(environment(), indent=1).encode())
        return run

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else."""
        for part in PARTS:
            path = self.folder / part
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def append(self, path: Path, line: Mapping[str, Any]) -> None:
        """One JSON object a line, on disk before we go on."""
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut(self, path: Path, size: int) -> None:
        """Forget the lines written after the checkpoint that we resume from."""
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)


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


def model_of(saved: Checkpoint, *, averaged: bool = True) -> nn.Module:
    """The network of a checkpoint with its weights."""
    recipe = saved.recipe
    model = build(recipe.model, classes=len(saved.classes), channels=saved.shape[0], width=recipe.width)
    average = saved.part("average")
    if averaged and average and int(average["n_averaged"]) > 0:
        weights = {key.removeprefix("module."): value for key, value in average.items() if key != "n_averaged"}
    else:
        weights = saved.part("model")
    model.load_state_dict(weights)
    return model.eval()
