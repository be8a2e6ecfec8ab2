"""The schema of a run folder: every file that training, evaluation and reports write there, and its format. No torch.

recipe.yaml            every setting of the run (recipes/schema.py)
environment.json       versions, commit and hardware, and the checksum of the user's FILE.py
metrics.jsonl          an object an epoch: epoch, step, lr, loss, terms, val_clean, val_robust, val_margin (_average);
                       val_sample_NAME of val_sample images, and a warning where they show false robustness
timing.jsonl           an object an epoch: epoch, seconds, images_per_second (of training alone), memory_mb, and
                       peak_share, of the device's FLOP/s in bf16 where its data sheet is known
history.jsonl          an object for each time the run was made longer: epochs_before, epochs, environment_before
checkpoints/           last, previous, best, epoch-NNN: safetensors files (checkpoint.py)
results/               NAME.json, an evaluation each (evaluation/results.py), and arrays as .npz (arrays.py)
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rattle.settings import Plain

# Of a run folder, written into checkpoints; 1 had the Taylor settings among the objective's own, 2 a slower checksum
FORMAT = 3
WEIGHTS_FILE, CONFIG = "model.safetensors", "config.json"  # of a published model
LONGEST = 120  # characters of a folder's name
PREFIXES = ("hf:", "zoo:")  # of models that are published, on the hub or in the package
LANDSCAPES = ("input", "weight-1d", "weight-2d")  # the surfaces that `Run.landscape` names, besides "plane"


class InRun:
    """Declares a file or folder of a run: `run.NAME` is its path."""

    def __init__(self, relative: str) -> None:
        self.relative = relative

    def __get__(self, run: Any, owner: type) -> Path:
        return Path(self.relative) if run is None else run.folder / self.relative


@dataclass(frozen=True, slots=True)
class Run:
    """Where things are in a run folder."""

    folder: Path

    recipe = InRun("recipe.yaml")  # what was trained; a folder that has it is a run
    environment = InRun("environment.json")  # versions, commit, hardware
    history = InRun("history.jsonl")  # one JSON object for each time the run was made longer
    source = InRun("source")  # the text of the user's file that builds the network; nothing runs it from there
    metrics = InRun("metrics.jsonl")  # one JSON object an epoch
    timing = InRun("timing.jsonl")  # seconds of each epoch
    events = InRun("events")  # TensorBoard
    checkpoints = InRun("checkpoints")
    results = InRun("results")  # one JSON file an attack, and the files below it
    log = InRun("train.log")  # what a run started by a sweep printed
    diverged = InRun("diverged.txt")  # a sentence; there only after the loss diverged for good
    lock = InRun("lock")  # held by the process that trains here
    report = InRun("report.html")
    gallery = InRun("results/gallery.npz")
    flatness = InRun("results/flatness.json")
    fidelity = InRun("results/fidelity.json")
    loss_gap = InRun("results/loss-gap.json")
    corruptions = InRun("results/corruptions.json")

    def __fspath__(self) -> str:
        """So that `rattle.load(run)` and every other function that takes a path takes a run."""
        return str(self.folder)

    def checkpoint(self, name: str) -> Path:
        """A checkpoint: `best`, `last`, `previous`, or the `epoch_name` of one."""
        return self.checkpoints / f"{name}.safetensors"

    def landscape(self, kind: str) -> Path:
        """The arrays of a loss surface, one of LANDSCAPES; `plane` is the directions they share."""
        return self.results / f"landscape-{kind}.npz"

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self.recipe.is_file()

    @property
    def divergence(self) -> str | None:
        """The sentence that says where the loss diverged for good; None if it did not, or training was resumed."""
        return self.diverged.read_text(encoding="utf-8") if self.diverged.is_file() else None

    def written(self) -> tuple[Path, ...]:
        """Everything that training, evaluation and the report write, for clearing; the recipe last, so that a folder
        cleared by half is still recognised as a run."""
        first = (self.checkpoints, self.source, self.metrics, self.timing, self.events, self.results, self.report)
        return (*first, self.log, self.diverged, self.history, self.environment, self.recipe)


def epoch_name(epoch: int) -> str:
    """The name of the checkpoint that a schedule saves after an epoch."""
    return f"epoch-{epoch:03d}"


def is_published(path: Path | str) -> bool:
    """Whether a path is `hf:OWNER/NAME` or `zoo:NAME` rather than a file or folder."""
    return str(path).startswith(PREFIXES)


def printable(text: str) -> str:
    """Text for a terminal: line ends stay, other characters that it would obey or not show are written as escapes.

    >>> printable("a\\x1b]0;title\\x07")
    'a\\\\x1b]0;title\\\\x07'
    """
    shown = ""
    for mark in text:
        shown += mark if mark.isprintable() or mark == "\n" else mark.encode("unicode_escape").decode()
    return shown


def slugify(text: str) -> str:
    """A folder name made of any text: safe for file systems and shells, never a path, at most LONGEST characters.

    >>> slugify("../../epsilon=8/255")
    '_.._epsilon=8_255'
    """
    name = re.sub(r"[^A-Za-z0-9.,=+_-]", "_", text).lstrip(".-") or "run"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return name


def held_out_accuracies(metrics: Plain) -> tuple[float, float] | None:
    """(clean, robust) accuracy on held-out images in the metrics of an epoch; None if it was not evaluated.

    Of averaged weights where there are any; of two attacks the lower counts.

    >>> held_out_accuracies({"epoch": 1, "val_clean": 0.9, "val_robust": 0.5, "val_margin": 0.4})
    (0.9, 0.4)
    """
    kind = "_average" if "val_robust_average" in metrics else ""
    if f"val_robust{kind}" not in metrics:
        return None
    robust = min(metrics[f"val_robust{kind}"], metrics.get(f"val_margin{kind}", 1.0))
    return metrics[f"val_clean{kind}"], robust


def best_epoch(metrics: Sequence[Plain]) -> tuple[float, float] | None:
    """(clean, robust) accuracy at the epoch whose checkpoint is kept as best; None if none was evaluated."""
    found = [reached for line in metrics if (reached := held_out_accuracies(line))]
    return max(found, key=lambda pair: pair[1], default=None)  # of equal ones the first, as training does
