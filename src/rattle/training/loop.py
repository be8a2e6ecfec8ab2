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
from torch import Tensor, nn

from rattle.attacks.base import NotANumber
from rattle.data import Images, on_device
from rattle.data.registry import batches
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.forward import PairedForward
from rattle.objectives.base import Memory, Moment, StepContext, now
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.idle import refuse_idle
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.lock import note_divergence, open_run, record_line
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Advance, Console, Interrupted, NullConsole
from rattle.runs.source import own_source
from rattle.training.given import Given, as_begun, named_recipe, take
from rattle.training.loggers import LogTarget, check_log, epoch_logger, peak_memory_mb
from rattle.training.ranks import average_statistics, shard, sync_with_last, wrap_model
from rattle.training.signals import HANDLED, Request, StoppedBySignal, listening
from rattle.training.state import Diverged, LossMeter, TrainState, init_state, refuse_non_finite, restore, save
from rattle.training.step import step
from rattle.training.teachers import train_teachers
from rattle.weights import EMA, SWA

ORDER, PIXELS, ATTACK, WEIGHTS, _INIT, LAYERS = range(6)  # what a derived seed is for; LAYERS: dropout and the like
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
    run, (recipe, images) = Run(Path(out)), take(recipe, model, data, classes)
    recipe = as_begun(recipe, run) if resume and run.exists() else refuse_idle(recipe)
    sources = train_teachers(recipe, run, images, partial(fit, log=log, console=console))
    with own_source(run if resume else None, recipe):
        state = init_state(recipe, images, model, sources)
    check_start(state, log)
    with open_run(run, recipe, resume=resume, overwrite=overwrite):  # after these: a bad recipe replaces nothing
        if resume:
            restore(state, run, console)
        return train_or_roll_back(state, run, log, console)


def check_start(state: TrainState, log: LogTarget) -> None:
    """Refuse what would stop training at its first step, before anything is written or replaced."""
    check_log(log)
    shard(torch.arange(min(state.recipe.batch_size, len(state.data.train))))


def train_or_roll_back(state: TrainState, run: Run, log: LogTarget, console: Console) -> Run:
    """Train; where the loss diverges, stop or go back, as the recipe says."""
    console.begin(state)
    for attempt in range(MOST_ROLLBACKS + 1):
        try:
            return train(state, run, log, console)
        except Diverged as diverged:
            if state.recipe.on_divergence == "stop" or attempt == MOST_ROLLBACKS:
                distributed.on_main(lambda diverged=diverged: note_divergence(run, str(diverged)))
                raise RattleError(f"{diverged}; {after_divergence(run)}") from diverged
            state = roll_back(state, run, console, diverged)
    raise AssertionError("unreachable")


def train(state: TrainState, run: Run, log: LogTarget, console: Console) -> Run:
    """Train the epochs that are left."""
    recipe, progress = state.recipe, state.progress
    images = on_device(state.data.train, state.device)
    steps = max(len(images) // min(recipe.batch_size, len(images)), 1)
    example = state.floats(images[torch.arange(1)].x.to(state.device))
    forward, ddp_forward = wrap_model(state.model, recipe, example, state.teachers)
    title = f"{recipe.method}, seed {recipe.seed}" if recipe.seed else recipe.method
    with (
        listening() as request,
        torch.random.fork_rng(devices=[]),
        console.progress(title, recipe.epochs * steps, done=progress.step) as advance,
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
    order = batches(len(images), recipe.batch_size, seed=derive_seed(recipe.seed, ORDER), epoch=progress.epoch)
    shown = progress.step
    state.train_mode()
    for index in list(order)[progress.batch :]:
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(state, progress.step, steps) * group["lr_scale"]
            optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(derive_seed(recipe.seed, LAYERS, progress.step, distributed.rank()))
        terms = train_step(state, forward, ddp_forward, images, shard(index))
        meter.add(distributed.mean_of(terms), progress.step + 1)
        if meter.due(progress.step):
            meter.read()  # a loss that is not finite stops here, before it reaches the weights
        for optimizer in state.optimizers:
            optimizer.step()
        for network in (state.model, *state.along.values()):
            average_statistics(network, recipe)
        if state.average is not None and isinstance(recipe.average, EMA):
            state.average.update_parameters(state.model)
        progress.batch += 1
        progress.step += 1
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


def train_step(
    state: TrainState, forward: PairedForward, ddp_forward: nn.Module, images: Images, index: Tensor
) -> dict[str, Tensor]:
    """The gradient of one minibatch; everything random is a function of seed, epoch, image and step.

    With `accumulate` the minibatch goes through the same step in micro-batches, whose gradients add up. Each has its
    own BatchNorm statistics, head gradients and AWP direction; all have the same u.
    """
    recipe, progress, device = state.recipe, state.progress, state.device
    seed, epoch, sums = recipe.seed, progress.epoch, {}
    moment = Moment(epoch=epoch, epochs=recipe.epochs, step=progress.step)
    parts = index.to(device).chunk(recipe.accumulate)
    for number, part in enumerate(parts):
        batch, weight = images[part.to(images.y.device)].to(device), len(part) / len(index)
        x = state.floats(recipe.data.augment(batch.x, ImageStreams(derive_seed(seed, PIXELS, epoch), part)))
        # No cache: the step moves weights in place, and a cached copy in bfloat16 would not move along.
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False)
        private = ImageStreams(derive_seed(seed, ATTACK, epoch), part)
        context = StepContext(moment=moment, draws=private, memory=Memory(state.memory, part))
        objective, attack, prepare = now(recipe.objective, recipe.attack, context)
        with autocast, sync_with_last(ddp_forward, number == len(parts) - 1):
            terms = step(
                forward,
                x,
                batch.y,
                attack=attack,
                noise=recipe.noise,
                objective=objective,
                awp=recipe.awp if recipe.awp and epoch >= recipe.awp.warmup else None,
                shared=torch.Generator().manual_seed(derive_seed(seed, WEIGHTS, progress.step)),
                private=private,
                prepare=prepare,
                noise_samples=recipe.noise_samples,
                weight=weight,
                ddp_forward=ddp_forward,
                reduce=distributed.mean_of,
            )
        sums = {name: weight * value + sums.get(name, 0) for name, value in terms.items()}
    return sums


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
        if reason := distributed.any_rank(self.request.number or int(due)):  # no signal that is handled has number 1
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
        begun = int(average.n_averaged) > 0  # it then goes on, also when the run is made longer and the start moves
        if begun or progress.epoch + 1 > swa.start * recipe.epochs:
            average.update_parameters(state.model)
            estimate_statistics(average.module, state)
    progress.closed = True


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
        result = evaluate(model, x, val.y, {"robust": recipe.val_attack}, seed=recipe.seed, stop=stop)
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
    if recipe.keep_checkpoints and metrics["epoch"] in recipe.keep_checkpoints.epochs(recipe.epochs):
        save(state, run, epoch_name(metrics["epoch"]))
    save(state, run, "last")


def roll_back(state: TrainState, run: Run, console: Console, diverged: Diverged) -> TrainState:
    """The last good checkpoint again, with half the learning rate from there on."""
    rate = state.progress.rate / 2
    if state.initial is not None:
        state.model.load_state_dict(state.initial)
    state = init_state(state.recipe, state.data, None if state.initial is None else state.model, state.sources)
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
    """An epoch in a line, for logs without a terminal."""
    values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name not in ("epoch", "step"))
    return f"epoch {metrics['epoch']}/{epochs}  {values}  {seconds:.1f} s"
