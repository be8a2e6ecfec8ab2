"""The training loop: `fit` trains a recipe into a run folder, around the step of Algorithm 1.

Nothing random is carried along: the order of images, augmentation and attack noise are functions of (seed, epoch,
image), and u of (seed, step). A run resumed at any step is the run that was never stopped, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rattle.data import Images, on_device
from rattle.data.registry import batches
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.forward import PairedForward
from rattle.inputs import NotANumber
from rattle.randomness import derive_seed
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import kept_epochs
from rattle.runs import distributed
from rattle.runs.lock import note_divergence, open_run, record_line
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Advance, Console, Interrupted, NullConsole
from rattle.training.batches import in_epoch
from rattle.training.extra import with_extra
from rattle.training.fit_inputs import Given, first_state, named_recipe
from rattle.training.loggers import LogTarget, check_log, epoch_logger, peak_memory_mb
from rattle.training.meter import Diverged, LossMeter
from rattle.training.minibatch import train_step
from rattle.training.numerics import numerics
from rattle.training.ranks import average_over_ranks, refuse_other_images, shard, wrap_model
from rattle.training.signals import HANDLED, Request, StoppedBySignal, listening
from rattle.training.state import (
    LAYERS,
    ORDER,
    TrainState,
    add_teachers,
    init_state,
    refuse_non_finite,
    restore,
    save,
)
from rattle.training.teachers import train_teachers
from rattle.training.term_weights import remark
from rattle.weights import EMA, SWA

MOST_ROLLBACKS = 5


def fit(
    recipe: Recipe | str,
    out: Path | str,
    *,
    model: nn.Module | None = None,
    data: Given | None = None,
    classes: Sequence[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    log: LogTarget = "tensorboard",
    console: Console | None = None,
    trust_code: bool = False,
) -> Run:
    """Train a recipe into a run folder; `rattle.load(out)` then opens its best model.

    recipe: a Recipe, the name of one, or a YAML file or run folder that holds one. out: the run folder. model: a module
    with logits [n, C], trained in place of the recipe's network: it ends with the last weights, in evaluation mode;
    `rattle.load(out, model=module)` puts the best ones into it. data: images other than the recipe's, as (x, y), a
    torch Dataset, or a DataLoader that does not shuffle: uint8 or float in [0, 1], [n, C, H, W] or [n, H, W, C]; some
    are held out as `recipe.data` says. classes: the labels' names. resume: continue the run, also with more epochs;
    overwrite: replace it. log: where else metrics go. console: shows progress. trust_code: run code that a file names.

    >>> import dataclasses, tempfile, rattle
    >>> recipe = dataclasses.replace(rattle.get_recipe("digits-linf-cnn-trades"), epochs=1, width=4)
    >>> fit(recipe, tempfile.mkdtemp()).checkpoint("best").exists()
    True
    """
    recipe = named_recipe(recipe, trust_code) if isinstance(recipe, str) else recipe
    console = console if console is not None and distributed.is_main() else NullConsole()
    torch.set_num_threads(recipe.threads or torch.get_num_threads())
    run, first = Run(Path(out)), partial(fit, log=log, trust_code=trust_code)  # first: how teachers are trained
    with distributed.raise_on_all_ranks():
        state = first_state(recipe, run, model, data, classes, resume, trust_code)
        check_start(state, log)
    refuse_other_images((state.data.train, state.data.val, state.extra))
    with open_run(run, state.recipe, resume=resume, overwrite=overwrite):  # after these: a bad recipe replaces nothing
        add_teachers(state, train_teachers(state.recipe, run, state.data, first, resume, overwrite, console))
        if resume:
            restore(state, run, console)
        return train_or_roll_back(state, run, log, console)


def check_start(state: TrainState, log: LogTarget) -> None:
    """Refuse what would stop training at its first step, before anything is written or replaced."""
    check_log(log)
    recipe, images = state.recipe, len(state.data.train)
    with numerics(recipe, state.device):
        shard(torch.arange(min(recipe.batch_size, images)))
        if not recipe.drop_last:
            shard(torch.arange(images % recipe.batch_size))


def train_or_roll_back(state: TrainState, run: Run, log: LogTarget, console: Console) -> Run:
    """Train; where the loss diverges, stop or go back, as the recipe says."""
    console.begin(state)
    for attempt in range(MOST_ROLLBACKS + 1):
        try:
            return train(state, run, log, console)
        except Diverged as diverged:
            if state.recipe.on_divergence == "stop" or attempt == MOST_ROLLBACKS:
                distributed.on_main(lambda diverged=diverged: note_divergence(run, str(diverged)))
                raise distributed.told(RattleError(f"{diverged}; {after_divergence(run)}")) from diverged
            state = roll_back(state, run, console, diverged)
    raise AssertionError("unreachable")


def train(state: TrainState, run: Run, log: LogTarget, console: Console) -> Run:
    """Train the epochs that are left."""
    recipe, progress = state.recipe, state.progress
    images = on_device(state.data.train, state.device)
    steps = recipe.steps(len(images))
    example = state.floats(images[torch.arange(1)].x.to(state.device))
    forward, ddp_forward = wrap_model(state.model, recipe, example, state.teachers, state.average)
    with (
        listening() as request,
        numerics(recipe, state.device),
        torch.random.fork_rng(devices=[]),
        console.progress(recipe.with_seed(recipe.method), recipe.epochs * steps, done=progress.step) as advance,
        epoch_logger(log if distributed.is_main() else "none", run, recipe, purge_step=progress.epoch + 1) as log_epoch,
    ):
        autosave = Autosave(state, run, request)
        while progress.epoch < recipe.epochs:
            begun = time.monotonic()
            train_epoch(state, forward, ddp_forward, images, steps, autosave, advance)
            close_epoch(state)
            try:
                metrics = epoch_metrics(state, steps, request)
            except Interrupted:
                save_midway(state, run, request.number)
                raise
            record(state, run, metrics)
            autosave.last = time.monotonic()
            seconds = autosave.last - begun
            record_line(run.timing, {"epoch": metrics["epoch"], "seconds": seconds, "memory_mb": peak_memory_mb()})
            log_epoch(metrics)
            advance(0, **best(state))
            console.log((short_summary if console.live else summary)(metrics, recipe.epochs, seconds))
            if metrics["epoch"] == 2 and (line := remark(progress.term_weights)):
                console.log(line)  # not after the first: a fresh network has hardly a zeroth term
    state.model.eval()
    return run


def train_epoch(
    state: TrainState,
    forward: PairedForward,
    ddp_forward: nn.Module,
    images: Images,
    steps: int,
    autosave: Autosave,
    advance: Advance,
) -> None:
    """The steps of one epoch, from where the last one stopped."""
    recipe, progress, meter = state.recipe, state.progress, LossMeter(state.progress.sums, state.device)
    settings = {"seed": derive_seed(recipe.seed, ORDER), "epoch": progress.epoch, "drop_last": recipe.drop_last}
    order = batches(len(images), recipe.batch_size, **settings)
    shown, extra = progress.step, recipe.data.extra_count(min(recipe.batch_size, len(images)))
    state.train_mode()
    left = [shard(with_extra(i, len(images), extra)) for i in order for _ in range(recipe.replays)][progress.batch :]
    images = in_epoch(state, images, left)
    for index in left:
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(state, progress.step, steps) * group["lr_scale"]
            optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(derive_seed(recipe.seed, LAYERS, progress.step, distributed.rank()))
        terms = train_step(state, forward, ddp_forward, images, index)
        terms = average_over_ranks(terms, (state.model, *state.cotrained.values()), recipe)
        meter.add(terms, progress.step + 1)
        if meter.due(progress.step):
            meter.read()  # a loss that is not finite stops here, before it reaches the weights
        for optimizer in state.optimizers:
            optimizer.step()
        progress.batch += 1
        progress.step += 1
        if isinstance(recipe.average, EMA):
            follow(state, begins=progress.step >= round(recipe.average.start * recipe.epochs * steps))
        if meter.due(progress.step) or progress.batch == steps:
            progress.sums = meter.read()
            advance(progress.step - shown, **figures(state))
            shown = progress.step
        autosave(meter)
    progress.sums = meter.read()


def figures(state: TrainState) -> dict[str, float | str]:
    """What is shown beside the progress bar, the most important first: as many as there is room for."""
    progress = state.progress
    loss = sum(progress.sums.values()) / progress.batch
    return {"epoch": f"{progress.epoch + 1}/{state.recipe.epochs}", "loss": loss, **best(state)}


def best(state: TrainState) -> dict[str, str]:
    """The figure of the best checkpoint, if held-out images chose one."""
    return {"best robust": f"{100 * state.progress.best:.1f} %"} if state.progress.best >= 0 else {}


def learning_rate(state: TrainState, step: int, steps: int) -> float:
    """The learning rate at a step of the run; `steps` is the number in an epoch."""
    recipe = state.recipe
    return recipe.optimizer.lr * state.progress.rate * recipe.schedule(step / (recipe.epochs * steps))


class Autosave:
    """Saves inside an epoch: every `save_minutes`, and when a signal asks to stop. Called after every step."""

    def __init__(self, state: TrainState, run: Run, request: Request) -> None:
        self.state, self.run, self.request, self.last = state, run, request, time.monotonic()

    def __call__(self, meter: LossMeter) -> None:
        due = distributed.is_main() and time.monotonic() - self.last > 60 * self.state.recipe.save_minutes
        # A signal's number, or 1 when it is time, which is no signal that is handled; the largest of any rank.
        reason = distributed.any_rank(self.request.number or int(due))
        if reason:
            self.state.progress.sums = meter.read()
            save_midway(self.state, self.run, reason)
            self.last = time.monotonic()


def save_midway(state: TrainState, run: Run, reason: int) -> None:
    """Save inside an epoch; then stop, if the reason is a signal."""
    refuse_non_finite(state)
    save(state, run, "last")
    if reason in HANDLED:
        raise StoppedBySignal(reason, str(run.folder))


def close_epoch(state: TrainState) -> None:
    """Update the SWA average after an epoch's steps; once, also when the validation that follows is interrupted."""
    recipe, progress = state.recipe, state.progress
    refuse_non_finite(state)
    swa, average = recipe.average, state.average
    if isinstance(swa, SWA) and average is not None and not progress.closed:
        follow(state, begins=progress.epoch + 1 > swa.start * recipe.epochs)
        if state.averaging:
            estimate_statistics(average.module, state)
    progress.closed = True


def follow(state: TrainState, *, begins: bool) -> None:
    """Update the average of the weights if it has begun, or begins now."""
    if state.average is not None and (begins or state.averaging):
        state.average.update_parameters(state.model)


def estimate_statistics(model: nn.Module, state: TrainState) -> None:
    """BatchNorm statistics of averaged weights: one pass over the clean training images (Izmailov et al. 2018)."""
    train = state.data.train
    indices = torch.arange(len(train)).split(state.recipe.batch_size)
    parts = (state.floats(train[index].x.to(state.device)) for index in indices if len(index) > 1)
    torch.optim.swa_utils.update_bn(parts, model)


def epoch_metrics(state: TrainState, steps: int, request: Request) -> dict[str, Any]:
    """The epoch's mean loss and terms, with the accuracies on the held-out images when they are due."""
    recipe, progress = state.recipe, state.progress
    metrics: dict[str, Any] = {
        "epoch": progress.epoch + 1,
        "step": progress.step,
        "lr": learning_rate(state, progress.step - 1, steps),
        "loss": sum(progress.sums.values()) / steps,
        **{name: value / steps for name, value in progress.sums.items()},
        **progress.term_weights,
    }
    due = metrics["epoch"] % recipe.evaluate_every == 0 or metrics["epoch"] == recipe.epochs
    if due and state.data.val is not None:
        metrics |= validate(state, state.model, request)
        if state.eval_model is not state.model:
            averaged = validate(state, state.eval_model, request)
            metrics |= {f"{name}_average": value for name, value in averaged.items()}
    return metrics


def validate(state: TrainState, model: nn.Module, request: Request) -> dict[str, float]:
    """Clean and robust accuracy on the held-out images. A signal interrupts it, except on several ranks."""
    assert state.data.val is not None
    recipe, val = state.recipe, state.data.val.to(state.device)
    x = val.x if state.layout == torch.channels_last else state.floats(val.x)
    stop = None if distributed.active() else lambda: bool(request.number)
    try:
        result = evaluate(model, x, val.y, {"robust": recipe.validation_attack}, seed=recipe.seed, stop=stop)
    except NotANumber as reason:  # weights so large that activations overflow
        raise Diverged(state.progress.step, {"logits": float("nan")}) from reason
    return {"val_clean": result.clean_accuracy, "val_robust": result.robust_accuracy}


def record(state: TrainState, run: Run, metrics: dict[str, Any]) -> None:
    """Write an epoch's line and checkpoints: `best` when it is, and `last` last, since resuming starts from it."""
    recipe, progress = state.recipe, state.progress
    progress.epoch, progress.batch, progress.sums, progress.closed = progress.epoch + 1, 0, {}, False
    record_line(run.metrics, metrics)
    progress.metrics_size = run.metrics.stat().st_size if distributed.is_main() else 0
    robust = metrics.get("val_robust_average", metrics.get("val_robust"))
    if (robust is not None and robust > progress.best) or state.data.val is None:
        progress.best, progress.best_epoch = robust or 0.0, metrics["epoch"]
        save(state, run, "best")
    if metrics["epoch"] in kept_epochs(recipe.keep_checkpoints, recipe.epochs):
        save(state, run, epoch_name(metrics["epoch"]))
    save(state, run, "last")


def roll_back(state: TrainState, run: Run, console: Console, diverged: Diverged) -> TrainState:
    """The last good checkpoint again, with half the learning rate from there on."""
    rate = state.progress.rate / 2
    if state.initial is not None:
        state.model.load_state_dict(state.initial)
    module, trusted = None if state.initial is None else state.model, state.trust_code
    state = init_state(state.recipe, state.data, module, state.sources, trusted)
    restore(state, run, console)
    state.progress.rate = min(state.progress.rate, 2 * rate) / 2
    console.log(f"{diverged}: back to step {state.progress.step}, learning rate times {state.progress.rate:g}")
    return state


def after_divergence(run: Run) -> str:
    """What was saved, and what to try."""
    last = run.checkpoint("last")
    saved = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint was written yet"
    return f"{saved}; try a smaller optimizer.lr, or --on-divergence rollback"


def short_summary(metrics: Mapping[str, Any], epochs: int, seconds: float) -> str:
    """An epoch in a line that fits a terminal; of averaged weights if there are any, since `best` is chosen by them."""
    found = {name: metrics.get(f"val_{name}_average", metrics.get(f"val_{name}")) for name in ("clean", "robust")}
    values = "".join(f"  {name} {100 * value:.1f} %" for name, value in found.items() if value is not None)
    return f"epoch {metrics['epoch']}/{epochs}  loss {metrics['loss']:.3f}{values}  {seconds:.0f} s"


def summary(metrics: Mapping[str, Any], epochs: int, seconds: float) -> str:
    """An epoch in a line, for logs without a terminal; the weights of Taylor terms are in the metrics alone."""
    shown = {name: value for name, value in metrics.items() if not name.endswith("_over_zeroth")}
    values = "  ".join(f"{name} {value:.4f}" for name, value in shown.items() if name not in ("epoch", "step"))
    return f"epoch {metrics['epoch']}/{epochs}  {values}  {seconds:.1f} s"
