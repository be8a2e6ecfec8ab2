"""What changes while training: model, optimizer, average, progress; and how they are saved and restored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from rattle.data import Dataset, to_float
from rattle.errors import RattleError
from rattle.models import check_width, find_head, load_weights
from rattle.randomness import derive_seed
from rattle.recipes.recipe import Recipe
from rattle.runs import checkpoint, distributed
from rattle.runs.load import build_model, resolve_checkpoint
from rattle.runs.lock import truncate
from rattle.runs.paths import Run
from rattle.runs.progress import Console

INIT = 4  # what a forked seed is for; see train.py for the others


@dataclass(slots=True)
class Progress:
    """How far a run is; plain numbers, saved in every checkpoint."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches completed of the next one
    step: int = 0  # optimizer steps completed
    sums: dict[str, float] = field(default_factory=dict)  # of the terms over the batches of the epoch begun
    best: float = -1.0  # highest robust accuracy on the held-out images
    best_epoch: int = 0
    metrics_size: int = 0  # bytes of metrics.jsonl that this progress includes
    rate: float = 1.0  # factor on the learning rate; halved by every rollback
    closed: bool = False  # all batches of the epoch begun are done and averaged: what is missing is its validation


class LossMeter:
    """Sums of the terms over an epoch, kept on the device; remembers the first step whose loss was not finite.

    On a CPU every step is looked at; on a GPU only every 50th, so that the loop does not wait for the device.
    """

    def __init__(self, sums: Mapping[str, float], device: torch.device) -> None:
        self.names = list(sums)
        self.sums = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)
        self.bad_step = torch.full((), -1, device=device)
        self.bad_terms = torch.zeros_like(self.sums)
        self.every = 1 if device.type == "cpu" else 50

    def add(self, terms: Mapping[str, Tensor], step: int) -> None:
        values = torch.stack(tuple(terms.values())).to(torch.float64)
        if not self.names:
            self.names = list(terms)
            self.sums, self.bad_terms = torch.zeros_like(values), torch.zeros_like(values)
        self.sums = self.sums + values
        new = (self.bad_step < 0) & ~torch.isfinite(values).all()
        self.bad_step = torch.where(new, step, self.bad_step)
        self.bad_terms = torch.where(new, values, self.bad_terms)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def read(self) -> dict[str, float]:
        """The sums so far; raises if a loss was not finite."""
        if int(self.bad_step) >= 0:
            terms = dict(zip(self.names, self.bad_terms.tolist(), strict=True))
            raise Diverged(int(self.bad_step), terms)
        return dict(zip(self.names, self.sums.tolist(), strict=True))


class Diverged(RattleError):
    """A loss or weight that is not finite."""

    def __init__(self, step: int, terms: Mapping[str, float]) -> None:
        self.step = step
        values = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
        super().__init__(f"the loss diverged at step {step} ({values})")


@dataclass(slots=True)
class TrainState:
    """Everything that changes while training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    progress: Progress

    @property
    def judged(self) -> nn.Module:
        """The weights that count: the average once it holds something, else the model itself."""
        started = self.average is not None and int(self.average.n_averaged) > 0
        return self.average.module if self.average is not None and started else self.model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def train_mode(self, recipe: Recipe) -> None:
        """Train mode; BatchNorm keeps its running statistics when the recipe holds them."""
        self.model.train()
        if recipe.batch_norm == "held":
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()


def init_state(recipe: Recipe, data: Dataset) -> TrainState:
    """A new learner: initial weights are a function of the seed, or come from `init`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(recipe.seed, INIT))
        model = build_model(
            recipe, classes=len(data.classes), channels=data.channels, statistics=statistics(recipe, data)
        )
    if recipe.init:
        load_weights(
            resolve_checkpoint(recipe.init) if Path(recipe.init).is_dir() else recipe.init, model, fresh_head=True
        )
    check_width(model, to_float(data.train[torch.arange(1)].x), len(data.classes))
    if recipe.objective.need.features:
        find_head(model, recipe.head)  # refuse a model without one before anything is written
    device = distributed.choose_device(recipe.device)
    if recipe.batch_norm == "sync":
        if device.type != "cuda":
            raise RattleError(f"batch-norm sync needs GPUs, this is {device.type}: use --batch-norm held or local")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = recipe.average.averaged(model) if recipe.average else None
    return TrainState(model, optimizer_of(recipe, model), average, Progress())


def optimizer_of(recipe: Recipe, model: nn.Module) -> torch.optim.SGD:
    """The recipe's optimizer; fused, one pass over each tensor instead of four."""
    settings = recipe.optimizer
    return torch.optim.SGD(
        model.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        fused=all(p.is_floating_point() for p in model.parameters()),
    )


def statistics(recipe: Recipe, data: Dataset) -> tuple[list[float], list[float]] | None:
    """Mean and deviation of each channel over the training images, when the recipe normalises."""
    if not recipe.normalise:
        return None
    first = torch.arange(min(len(data.train), 10_000))
    x = to_float(data.train[first].x)
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3)).clamp_min(1e-3).tolist()


def save(learner: TrainState, recipe: Recipe, data: Dataset, run: Run, name: str) -> None:
    """Write a checkpoint of the run; `last` holds the optimizer too, and the one before it is kept."""
    distributed.on_main(
        lambda: checkpoint.save(
            run.checkpoint(name),
            recipe=recipe,
            classes=data.classes,
            shape=tuple(data.test.shape[1:]),
            progress=asdict(learner.progress),
            model=learner.model,
            average=learner.average,
            optimizer=learner.optimizer if name == "last" else None,
            backup=run.checkpoint("previous") if name == "last" else None,
        )
    )


def restore(learner: TrainState, run: Run, console: Console) -> bool:
    """Go on from the last good checkpoint, if there is one; lines written after it are forgotten, they come again."""
    saved = newest(run, console)
    if saved is None:
        truncate(run.metrics, 0)
        return False
    learner.model.load_state_dict(saved.part("model"))
    if learner.average is not None:
        learner.average.load_state_dict(saved.part("average"))
    learner.optimizer.state.clear()
    checkpoint.restore_optimizer(learner.optimizer, learner.model, saved.part("optimizer"))
    learner.progress = Progress(**saved.progress)
    truncate(run.metrics, learner.progress.metrics_size)
    return True


def newest(run: Run, console: Console) -> checkpoint.Checkpoint | None:
    """The last checkpoint, or the one before it when the last is damaged; None when none was ever written."""
    last, previous = run.checkpoint("last"), run.checkpoint("previous")
    reason: RattleError | None = None
    for path in (last, previous):
        if not path.exists():
            continue
        try:
            found = checkpoint.read(path)
        except checkpoint.Damaged as damage:
            console.log(f"{damage}; trying the checkpoint before it" if path == last else str(damage))
            reason = damage
            continue
        distributed.barrier()  # everybody has read
        if reason is not None and distributed.is_main():
            os.replace(previous, last)  # or the next save would put the damaged one in its place
        distributed.barrier()
        return found
    if reason is not None:
        raise RattleError(f"no checkpoint in {run.folder} can be read: {reason}")
    return None


def refuse_non_finite(learner: TrainState) -> None:
    """Weights or statistics that overflowed are never saved, nor judged."""
    state = learner.model.state_dict().values()
    if not all(bool(torch.isfinite(value).all()) for value in state):
        progress = learner.progress
        means = {name: value / max(progress.batch, 1) for name, value in progress.sums.items()}
        raise Diverged(progress.step, {**means, "weights": float("nan")})


def plain_metrics(progress: Progress, rate: float, steps: int) -> dict[str, Any]:
    """The epoch's figures from its sums."""
    return {
        "epoch": progress.epoch + 1,
        "step": progress.step,
        "lr": rate,
        "loss": sum(progress.sums.values()) / steps,
        **{name: value / steps for name, value in progress.sums.items()},
    }
