"""The training loop: `fit` trains a recipe into a run folder, around the step of Algorithm 1.

Nothing random is carried along: the order of images, augmentation and attack noise are functions of (seed, epoch,
image), and u of (seed, step). A run resumed at any step is the run that was never stopped, bit for bit.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rattle.data import on_device
from rattle.data.dataset import imbalance
from rattle.data.registry import batches
from rattle.errors import RattleError
from rattle.models.user import refuse_code
from rattle.randomness import derive_seed
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import kept_epochs
from rattle.runs import distributed
from rattle.runs.io import write_atomically
from rattle.runs.lock import open_run, record_line
from rattle.runs.paths import Run, epoch_name, held_out_accuracies
from rattle.runs.progress import HANDLED, Console, Figures, NullConsole, RichConsole, StoppedBySignal, listening
from rattle.settings import Plain, check_cores
from rattle.training.fit_inputs import TrainingData, first_state, start_note
from rattle.training.metrics import (
    Diverged,
    FlopCounter,
    LogTarget,
    LossMeter,
    check_log,
    epoch_logger,
    peak_flops,
    peak_memory_mb,
)
from rattle.training.minibatch import in_epoch, numerics, train_step, with_extra
from rattle.training.ranks import average_over_ranks, refuse_other_images, shard, wrap_model
from rattle.training.saving import refuse_non_finite, restore, save_state
from rattle.training.state import LAYERS, ORDER, TrainState, add_teachers
from rattle.training.teachers import code_of, train_teachers
from rattle.training.validation import false_robustness, validate
from rattle.weights import EMA, SWA


def fit(
    recipe: Recipe | str,
    out: Path | str,
    *,
    model: nn.Module | None = None,
    data: TrainingData | None = None,
    classes: Sequence[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    log: LogTarget = "tensorboard",
    console: Console | None = None,
    quiet: bool = False,
    trust_code: bool = False,
) -> Run:
    """Train a recipe into a run folder; `rattle.load(out)` then opens its best model.

    recipe: a Recipe, the name of one, or a YAML file or run folder that holds one. out: the run folder. model: a module
    with logits [n, C], trained in place of the recipe's network: it ends with the last weights, in evaluation mode;
    `rattle.load(out, model=module)` puts the best ones into it. data: images other than the recipe's, as (x, y), a
    torch Dataset, or a DataLoader that does not shuffle: uint8 or float in [0, 1], [n, C, H, W] or [n, H, W, C];
    `recipe.data` sets how many are held out. classes: the labels' names. resume: continue the run, also with more
    epochs; overwrite: replace it. log: where else metrics go. console: shows progress in another way; quiet: show none.
    trust_code: run code that a file names.

    >>> import dataclasses, tempfile, rattle
    >>> recipe = dataclasses.replace(rattle.get_recipe("digits-linf-cnn-trades"), epochs=1, width=4)
    >>> fit(recipe, tempfile.mkdtemp()).checkpoint("best").exists()
    True
    """
    if isinstance(recipe, str):
        text, recipe = recipe, resolve(recipe)
        refuse_code([] if trust_code else code_of(recipe), text)
    console = NullConsole() if quiet or not distributed.is_main() else console or RichConsole()
    if recipe.threads:
        check_cores("threads", recipe.threads)
        torch.set_num_threads(recipe.threads)
    run = Run(Path(out))
    # Everything that can be refused is refused before a file is written or replaced.
    with distributed.raise_on_all_ranks():
        check_log(log)
        state = first_state(recipe, run, model, data, classes, resume, trust_code)
        check_batches(state)
    refuse_other_images(state)
    with open_run(run, state.recipe, resume=resume, overwrite=overwrite):
        given = state.data if state.recipe.data.name.startswith("memory:") else None
        fit_teacher = partial(fit, data=given, log=log, console=console, trust_code=trust_code)
        add_teachers(state, train_teachers(state.recipe, run, fit_teacher, resume, overwrite, console))
        if resume:
            restore(state, run, console)
        console.begin(state)
        if note := imbalance(state.data.train, state.data.classes):
            advice = "" if state.recipe.data.balanced else "; data.balanced draws them equally often"
            console.log(note + advice)
        awp, epochs = state.recipe.awp, state.recipe.epochs
        if awp and awp.warmup:
            console.log(f"{type(awp).__name__} in the last {epochs - awp.warmup} of {epochs} epochs (awp.warmup)")
        if not resume and (model is not None or state.recipe.init) and distributed.is_main():
            console.log(start_note(state))
        try:
            train(state, run, log, console)
        except Diverged as diverged:
            sentence = str(diverged)
            distributed.on_main(lambda: write_atomically(run.diverged, sentence.encode()))
            last = run.checkpoint("last")
            saved = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint was written yet"
            raise distributed.told(RattleError(f"{sentence}; {saved}; try a smaller optimizer.lr")) from diverged
    return run


def train(state: TrainState, run: Run, log: LogTarget, console: Console) -> None:
    """Train the epochs that are left; raises Diverged where a loss or weight is not finite."""
    recipe, progress = state.recipe, state.progress
    images = on_device(state.data.train, state.device)
    steps = recipe.steps(len(images))  # of an epoch
    forward, ddp_forward = wrap_model(state)
    if recipe.compile and forward.spec.along_u is not None:
        console.log("the passes along u are not compiled; the attack and the passes at w are")
    bar = console.progress(recipe.with_seed(recipe.method), recipe.epochs * steps, done=progress.step)
    peak, counted = peak_flops(state.device), FlopCounter()  # operations of the first step; compiled ones are not seen
    logger = epoch_logger(log if distributed.is_main() else "none", run, recipe, purge_step=progress.epoch + 1)
    with (
        listening() as request,
        numerics(recipe, state.device),
        torch.random.fork_rng([]),
        bar as advance,
        logger as log_epoch,
    ):
        saved = time.monotonic()
        while progress.epoch < recipe.epochs:
            begun = time.monotonic()
            meter, shown = LossMeter(progress.sums, state.device), progress.step
            order = epoch_order(state, len(images))
            seen = in_epoch(state, images, order)
            state.train_mode()
            for index in order:
                rate = learning_rate(state, progress.step, steps)
                for optimizer in state.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate * group["lr_scale"]
                    optimizer.zero_grad(set_to_none=True)
                torch.manual_seed(derive_seed(recipe.seed, LAYERS, progress.step, distributed.rank()))
                with nullcontext() if peak is None or recipe.compile or counted.total else counted:
                    terms = train_step(state, forward, ddp_forward, seen, index)
                terms = average_over_ranks(terms, (state.model, *state.cotrained.values()), recipe)
                meter.add(terms, progress.step + 1)
                if meter.due(progress.step):
                    meter.read()  # a loss that is not finite stops here, before it reaches the weights
                for optimizer in state.optimizers:
                    optimizer.step()
                progress.batch += 1
                progress.step += 1
                if isinstance(recipe.average, EMA):
                    starts = round(recipe.average.start * recipe.epochs * steps)
                    update_average(state, begins=progress.step >= starts)
                if meter.due(progress.step) or progress.batch == steps:
                    progress.sums = meter.read()
                    advance(progress.step - shown, **figures(state))
                    shown = progress.step
                due = distributed.is_main() and time.monotonic() - saved > 60 * recipe.save_minutes
                # The same on every rank: the number of a signal, or 1, which is the number of none that is handled.
                reason = distributed.any_rank(request.number or int(due))
                if reason:
                    progress.sums = meter.read()
                    refuse_non_finite(state)
                    save_state(state, run, "last")
                    if reason in HANDLED:
                        raise StoppedBySignal(reason, str(run.folder), trust=bool(code_of(recipe)))
                    saved = time.monotonic()
            progress.sums = meter.read()
            steps_per_second = len(order) / (time.monotonic() - begun)
            close_epoch(state)
            metrics = epoch_metrics(state, steps)
            record_epoch(state, run, metrics)
            saved = time.monotonic()
            spent = {
                "seconds": saved - begun,
                "images_per_second": steps_per_second * min(recipe.batch_size, len(images)),
                "peak_share": steps_per_second * counted.total / peak if peak and counted.total else None,
                "memory_mb": peak_memory_mb(),
            }
            record_line(run.timing, {"epoch": metrics["epoch"], **spent})
            log_epoch(metrics)
            console.log(epoch_summary(metrics, recipe.epochs, spent))
            if "warning" in metrics:
                console.log(f"warning: {metrics['warning']} (docs/guides/false-robustness.md)")
    state.model.eval()


def check_batches(state: TrainState) -> None:
    """Refuse settings that the device lacks, and minibatches that do not divide over ranks or are too small."""
    recipe, images = state.recipe, len(state.data.train)
    with numerics(recipe, state.device):
        smallest = shard(torch.arange(min(recipe.batch_size, images)))
        if not recipe.drop_last and images % recipe.batch_size:
            smallest = shard(torch.arange(images % recipe.batch_size))
    alone = any(len(part) == 1 for part in smallest.chunk(recipe.accumulate))
    if alone and any(isinstance(module, _BatchNorm) for module in state.model.modules()):
        raise RattleError(
            "some minibatch or micro-batch would have a single image, and BatchNorm needs two in training: set "
            "a larger batch_size, a smaller accumulate, or drop_last"
        )


def epoch_order(state: TrainState, n: int) -> list[Tensor]:
    """The indices of this rank's minibatches that are left of the epoch; rows from n on are extra images."""
    recipe, progress = state.recipe, state.progress
    seed = derive_seed(recipe.seed, ORDER)
    extra = recipe.data.extra_count(min(recipe.batch_size, n))
    labels = state.data.train.y.cpu() if recipe.data.balanced else None
    order = []
    for index in batches(
        n, recipe.batch_size, seed=seed, epoch=progress.epoch, drop_last=recipe.drop_last, balanced=labels
    ):
        order += [shard(with_extra(index, n, extra))] * recipe.replays
    return order[progress.batch :]


def learning_rate(state: TrainState, step: int, steps: int) -> float:
    """The learning rate at a step of the run; `steps` is the number in an epoch."""
    recipe = state.recipe
    return recipe.optimizer.lr * recipe.schedule(step / (recipe.epochs * steps))


def close_epoch(state: TrainState) -> None:
    """Update the SWA average after an epoch's steps."""
    recipe, progress = state.recipe, state.progress
    refuse_non_finite(state)
    if isinstance(recipe.average, SWA) and state.average is not None:
        update_average(state, begins=progress.epoch + 1 > recipe.average.start * recipe.epochs)
        if state.averaging:  # BatchNorm statistics by one pass over the clean training images (Izmailov et al. 2018)
            images = state.data.train
            indices = torch.arange(len(images)).split(recipe.batch_size)
            parts = (state.floats(images[index].x.to(state.device)) for index in indices if len(index) > 1)
            torch.optim.swa_utils.update_bn(parts, state.average.module)


def update_average(state: TrainState, *, begins: bool) -> None:
    """Update the average of the weights if it has begun, or begins now."""
    if state.average is not None and (begins or state.averaging):
        state.average.update_parameters(state.model)


def epoch_metrics(state: TrainState, steps: int) -> Plain:
    """The epoch's mean loss and terms, with the accuracies on the held-out images when they are due."""
    recipe, progress = state.recipe, state.progress
    epoch = progress.epoch + 1
    metrics: Plain = {
        "epoch": epoch,
        "step": progress.step,
        "lr": learning_rate(state, progress.step - 1, steps),
        "loss": sum(progress.sums.values()) / steps,
    }
    for name, value in progress.sums.items():
        metrics[name] = value / steps
    due = epoch % recipe.evaluate_every == 0 or epoch == recipe.epochs
    if due and state.data.val is not None:
        metrics |= validate(state, state.model)
        if state.eval_model is not state.model:
            for name, value in validate(state, state.eval_model).items():
                metrics[f"{name}_average"] = value
        if sentence := false_robustness(metrics, recipe.val_attack.steps):
            metrics["warning"] = sentence
    return metrics


def record_epoch(state: TrainState, run: Run, metrics: Plain) -> None:
    """Write an epoch's line and checkpoints: `best` when it is, and `last` last, since resuming starts from it."""
    recipe, progress = state.recipe, state.progress
    progress.epoch += 1
    progress.batch, progress.sums = 0, {}
    record_line(run.metrics, metrics)
    progress.metrics_size = run.metrics.stat().st_size if distributed.is_main() else 0
    reached = held_out_accuracies(metrics)
    if state.data.val is None or (reached and reached[1] > progress.best):
        progress.best, progress.best_epoch = reached[1] if reached else 0.0, progress.epoch
        save_state(state, run, "best")
    if progress.epoch in kept_epochs(recipe.keep_checkpoints, recipe.epochs):
        save_state(state, run, epoch_name(progress.epoch))
    save_state(state, run, "last")


def figures(state: TrainState) -> Figures:
    """The figures beside the progress bar, the most important first: as many are shown as there is room for."""
    progress = state.progress
    found: Figures = {
        "epoch": f"{progress.epoch + 1}/{state.recipe.epochs}",
        "loss": sum(progress.sums.values()) / progress.batch,
    }
    if progress.best >= 0:  # held-out images chose the best checkpoint
        found["best robust"] = f"{100 * progress.best:.1f} %"
    return found


def epoch_summary(metrics: Plain, epochs: int, spent: Plain) -> str:
    """An epoch in a line that fits a terminal; of averaged weights if there are any, since `best` is chosen by them.

    spent: the epoch's line of timing.jsonl.
    """
    line = f"epoch {metrics['epoch']}/{epochs}  loss {metrics['loss']:.3f}"
    for name in ("clean", "robust", "margin"):
        value = metrics.get(f"val_{name}_average", metrics.get(f"val_{name}"))
        if value is not None:
            line += f"  {name} {100 * value:.1f} %"
    line += f"  {spent['seconds']:.0f} s  {spent['images_per_second']:.0f} images/s"
    if spent["peak_share"] is not None:
        line += f"  {100 * spent['peak_share']:.0f} % of peak"
    return line
