"""Training: step() is the paper's Algorithm 1, fit() is the loop around it.

Nothing random is carried along: the order of images, augmentation and attack noise are functions of (seed, epoch,
image), and u of (seed, step). A run resumed at any step is the run that was never stopped.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rattle.attacks.base import NotANumber
from rattle.data import Dataset, Images, on_device, to_float
from rattle.data.registry import batches
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.lock import note_divergence, open_run, record_line
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Console, NullConsole
from rattle.training.loggers import Tracker, peak_memory_mb, tracking
from rattle.training.signals import HANDLED, CancellableProgress, Interrupted, StoppedBySignal, listening
from rattle.training.state import (
    Diverged,
    LossMeter,
    Progress,
    TrainState,
    init_state,
    plain_metrics,
    refuse_non_finite,
    restore,
    save,
)
from rattle.training.step import step
from rattle.weights import EMA, SWA

ORDER, PIXELS, ATTACK, WEIGHTS = range(4)  # what a forked seed is for; learner.INIT is the fifth

MOST_ROLLBACKS = 5


def fit(
    recipe: Recipe,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    log: Tracker = "tensorboard",
    console: Console | None = None,
) -> Run:
    """Train a recipe into a run folder; `rattle.load(out)` then opens its best model.

    >>> from rattle.recipes.catalog import get_recipe
    >>> import dataclasses, tempfile
    >>> recipe = dataclasses.replace(get_recipe("digits-linf-cnn-trades"), epochs=1, width=4)
    >>> run = fit(recipe, tempfile.mkdtemp())
    >>> run.checkpoint("best").exists()
    True
    """
    console = console if console is not None and distributed.is_main() else NullConsole()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    data = recipe.data.load()
    learner, run = init_state(recipe, data), Run(Path(out))
    with open_run(
        run, recipe, resume=resume, overwrite=overwrite
    ):  # only now: a recipe that cannot run replaces nothing
        if resume:
            restore(learner, run, console)
        for attempt in range(MOST_ROLLBACKS + 1):
            try:
                return train(learner, recipe, data, run, log, console)
            except Diverged as diverged:
                if recipe.on_divergence == "stop" or attempt == MOST_ROLLBACKS:
                    distributed.on_main(lambda diverged=diverged: note_divergence(run, str(diverged)))
                    raise RattleError(f"{diverged}; {what_is_left(run)}") from diverged
                learner = roll_back(learner, recipe, data, run, console, diverged)
    raise AssertionError("the loop above returns or raises")


def train(learner: TrainState, recipe: Recipe, data: Dataset, run: Run, log: Tracker, console: Console) -> Run:
    """All epochs that are left."""
    images, progress = on_device(data.train, learner.device), learner.progress
    steps = max(len(images) // min(recipe.batch_size, len(images)), 1)
    views, outer = looks(learner.model, recipe)
    with (
        listening() as request,
        console.progress(recipe.name, recipe.epochs * steps, done=progress.step) as advance,
        tracking(log if distributed.is_main() else "none", run, recipe, purge_step=progress.epoch + 1) as note,
    ):
        saved, patience = time.monotonic(), NullConsole() if distributed.active() else CancellableProgress(request)
        while progress.epoch < recipe.epochs:
            begun = time.monotonic()
            for ledger in train_epoch(learner, views, outer, recipe, images, steps, advance):
                due = distributed.is_main() and time.monotonic() - saved > 60 * recipe.save_minutes
                if asked := distributed.any_rank(request.number or int(due)):  # no signal we heed has number 1
                    progress.sums = ledger.read()
                    save_midway(learner, recipe, data, run, asked)
                    saved = time.monotonic()
            close_epoch(learner, recipe, data)
            try:
                metrics = judge_epoch(learner, recipe, data, steps, patience)
            except Interrupted:
                save_midway(learner, recipe, data, run, request.number)
                raise
            record(learner, recipe, data, run, metrics)
            saved = time.monotonic()
            record_line(
                run.timing, {"epoch": metrics["epoch"], "seconds": saved - begun, "memory_mb": peak_memory_mb()}
            )
            note(metrics)
            if not getattr(console, "live", False):
                console.log(summary(metrics, recipe.epochs, saved - begun))
    return run


def looks(model: nn.Module, recipe: Recipe) -> tuple[PairedForward, nn.Module]:
    """The model as the step looks at it, and the same inside the wrapper that averages gradients over ranks."""
    head = find_head(model, recipe.head) if recipe.objective.need.features else None
    views = PairedForward(model, recipe.objective.need, head)
    if recipe.compile:
        model.compile()
        views.compile()
    if not distributed.active():
        return views, views
    known = inspect.signature(DistributedDataParallel).parameters  # torch 2.13 renames the option
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings: dict[str, Any] = {option: False}  # share_statistics does it
    return views, DistributedDataParallel(views, **settings)


def rate_at(recipe: Recipe, progress: Progress, step: int, steps: int) -> float:
    """The learning rate of a step."""
    return recipe.optimizer.lr * progress.rate * recipe.schedule(step / (recipe.epochs * steps))


def train_epoch(
    learner: TrainState,
    views: PairedForward,
    outer: nn.Module,
    recipe: Recipe,
    images: Images,
    steps: int,
    advance: Callable[..., None],
) -> Iterator[LossMeter]:
    """The steps of one epoch, from where the last one stopped; yields after each, when everything may be saved."""
    progress, ledger = learner.progress, LossMeter(learner.progress.sums, learner.device)
    order = list(batches(len(images), recipe.batch_size, seed=derive_seed(recipe.seed, ORDER), epoch=progress.epoch))
    learner.train_mode(recipe)
    for index in order[progress.batch :]:
        for group in learner.optimizer.param_groups:
            group["lr"] = rate_at(recipe, progress, progress.step, steps)
        learner.optimizer.zero_grad(set_to_none=True)
        terms = step_on(shard(index), learner, views, outer, recipe, images)
        ledger.add(distributed.mean_of(terms), progress.step + 1)
        if ledger.due(progress.step):
            ledger.read()  # a diverged loss stops here, before it reaches the weights
        learner.optimizer.step()
        share_statistics(learner.model, recipe)
        if learner.average is not None and isinstance(recipe.average, EMA):
            learner.average.update_parameters(learner.model)
        progress.batch += 1
        progress.step += 1
        if ledger.due(progress.step) or progress.batch == steps:
            progress.sums = ledger.read()
            figures = {name: value / progress.batch for name, value in progress.sums.items()}
            done = f"{progress.epoch + 1}/{recipe.epochs}"
            advance(ledger.every, epoch=done, **figures, best=max(progress.best, 0.0))
        yield ledger
    progress.sums = ledger.read()


def step_on(
    index: Tensor, learner: TrainState, views: PairedForward, outer: nn.Module, recipe: Recipe, images: Images
) -> dict[str, Tensor]:
    """One step on the training images of an index, with everything random a function of seed, epoch, image and step."""
    progress, seed, device = learner.progress, recipe.seed, learner.device
    index, epoch = index.to(device), learner.progress.epoch
    part = images[index.to(images.y.device)].to(device)
    x = to_float(recipe.data.augment(part.x, ImageStreams(derive_seed(seed, PIXELS, epoch), index)))
    # No cache: the step moves weights in place, and a kept copy in bfloat16 would not move along.
    with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False):
        return step(
            views,
            x,
            part.y,
            attack=recipe.attack,
            noise=recipe.noise,
            objective=recipe.objective,
            awp=recipe.awp if recipe.awp and epoch >= recipe.awp.warmup else None,
            shared=torch.Generator().manual_seed(derive_seed(seed, WEIGHTS, progress.step)),
            private=ImageStreams(derive_seed(seed, ATTACK, epoch), index),
            draws=recipe.draws,
            accumulate=recipe.accumulate,
            outer=outer,
        )


def shard(index: Tensor) -> Tensor:
    """This rank's part of a minibatch; the parts, joined in order of rank, are the minibatch."""
    ranks = distributed.world_size()
    if len(index) % ranks:
        raise RattleError(f"a minibatch of {len(index)} images does not divide over {ranks} ranks: change --batch-size")
    return index.chunk(ranks)[distributed.rank()]


def share_statistics(model: nn.Module, recipe: Recipe) -> None:
    """Each rank's running statistics become their mean, so that all ranks are one and a checkpoint of one is of all."""
    if distributed.active() and recipe.batch_norm == "local":
        found = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
        for name, value in distributed.mean_of(found).items():
            found[name].copy_(value)


def save_midway(learner: TrainState, recipe: Recipe, data: Dataset, run: Run, asked: int) -> None:
    """Save inside an epoch; then stop, if a signal asked for it."""
    refuse_non_finite(learner)
    save(learner, recipe, data, run, "last")
    if asked in HANDLED:
        raise StoppedBySignal(asked, str(run.folder))


def close_epoch(learner: TrainState, recipe: Recipe, data: Dataset) -> None:
    """What follows an epoch's steps and may happen but once: averaging its weights."""
    progress, swa = learner.progress, recipe.average if isinstance(recipe.average, SWA) else None
    refuse_non_finite(learner)
    if not progress.closed and learner.average is not None and swa and progress.epoch + 1 > swa.start * recipe.epochs:
        learner.average.update_parameters(learner.model)
        reestimate_statistics(learner.average.module, data.train, recipe, learner.device)
    progress.closed = True


def judge_epoch(learner: TrainState, recipe: Recipe, data: Dataset, steps: int, console: NullConsole) -> dict[str, Any]:
    """The epoch's figures, with those on the held-out images when they are due."""
    progress = learner.progress
    metrics = plain_metrics(progress, rate_at(recipe, progress, progress.step - 1, steps), steps)
    due = metrics["epoch"] % recipe.evaluate_every == 0 or metrics["epoch"] == recipe.epochs
    if due and data.val is not None:
        metrics |= validate(learner, learner.model, data, recipe, console)
        if learner.judged is not learner.model:
            averaged = validate(learner, learner.judged, data, recipe, console)
            metrics |= {f"{name}_average": value for name, value in averaged.items()}
    return metrics


def validate(
    learner: TrainState, model: nn.Module, data: Dataset, recipe: Recipe, console: NullConsole
) -> dict[str, float]:
    assert data.val is not None
    val = data.val.to(learner.device)
    try:
        result = evaluate(model, val.x, val.y, {"robust": recipe.val_attack}, seed=recipe.seed, console=console)
    except NotANumber as reason:  # weights so large that they overflow on the way through
        raise Diverged(learner.progress.step, {"logits": float("nan")}) from reason
    return {"val_clean": result.clean_accuracy, "val_robust": result.robust_accuracy}


def reestimate_statistics(model: nn.Module, train: Images, recipe: Recipe, device: torch.device) -> None:
    """BatchNorm statistics of averaged weights: one pass over the clean training images (Izmailov et al. 2018)."""
    indices = torch.arange(len(train)).split(recipe.batch_size)
    parts = (to_float(train[index].x.to(device)) for index in indices if len(index) > 1)
    torch.optim.swa_utils.update_bn(parts, model)


def record(learner: TrainState, recipe: Recipe, data: Dataset, run: Run, metrics: dict[str, Any]) -> None:
    """Close the epoch: write its line and its checkpoints, best when it is, last always; `last` comes last."""
    progress = learner.progress
    progress.epoch, progress.batch, progress.sums, progress.closed = progress.epoch + 1, 0, {}, False
    record_line(run.metrics, metrics)
    progress.metrics_size = run.metrics.stat().st_size if distributed.is_main() else 0
    robust = metrics.get("val_robust_average", metrics.get("val_robust"))
    if (robust is not None and robust > progress.best) or data.val is None:
        progress.best, progress.best_epoch = robust or 0.0, metrics["epoch"]
        save(learner, recipe, data, run, "best")
    if recipe.keep and metrics["epoch"] in recipe.keep.epochs(recipe.epochs):
        save(learner, recipe, data, run, epoch_name(metrics["epoch"]))
    save(learner, recipe, data, run, "last")


def roll_back(
    learner: TrainState, recipe: Recipe, data: Dataset, run: Run, console: Console, diverged: Diverged
) -> TrainState:
    """The last good state again, with half the learning rate from there on."""
    rate = learner.progress.rate / 2
    learner = init_state(recipe, data)
    restore(learner, run, console)
    learner.progress.rate = min(learner.progress.rate, 2 * rate) / 2
    console.log(f"{diverged}: back to step {learner.progress.step}, learning rate times {learner.progress.rate:g}")
    return learner


def what_is_left(run: Run) -> str:
    last = run.checkpoint("last")
    kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint was written yet"
    return f"{kept}; try a smaller optimizer.lr, or --on-divergence rollback"


def summary(metrics: Mapping[str, Any], epochs: int, seconds: float) -> str:
    """An epoch in a line, for logs without a terminal."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name not in ("epoch", "step"))
    return f"epoch {metrics['epoch']}/{epochs}  {figures}  {seconds:.1f} s"
