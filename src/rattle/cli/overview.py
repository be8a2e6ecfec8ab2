"""What a run is about to do, in a few lines: images, network, threat, length and the time it may take."""

import copy
from contextlib import suppress
from dataclasses import replace

import torch

from rattle.bench.limit import unavoidable_passes
from rattle.bench.measure import timed
from rattle.data import Augment
from rattle.report.naming import duration
from rattle.runs import distributed
from rattle.threat import Threat
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import TrainState

NONE_HELD_OUT = "nothing: the last checkpoint counts as the best"
PATIENCE = 3.0  # seconds that measuring a step may take, beyond a step of FEW images
FEW = 8
BACKWARD = 2  # a backward pass costs about two forward ones


def overview(state: TrainState) -> str:
    """The lines that `rattle train` prints before it trains."""
    recipe, data, done = state.recipe, state.data, state.progress.epoch
    n, batch, left = len(data.train), min(recipe.batch_size, len(data.train)), recipe.epochs - done
    shape, weights = "x".join(map(str, data.train.shape[1:])), sum(p.numel() for p in state.model.parameters())
    classes, changes = f"{len(data.classes)} classes", augmented(recipe.data.augment)
    changes = f"random crops, decoded on the fly, {changes}" if data.train.decoded else changes
    length = f"{recipe.epochs}, {left or 'none'} of them left" if done else f"{recipe.epochs}"
    if state.extra is not None:
        changes += (
            f"; {recipe.data.extra_count(batch)} of every {batch} from {recipe.data.extra} ({len(state.extra):,})"
        )
    rows = {
        "images": f"{n:,} of {shape} from {recipe.data.name}, {classes}; {changes}",
        "held out": f"{len(data.val):,} images, to choose the best checkpoint by" if data.val else NONE_HELD_OUT,
        "network": f"{recipe.model}, {weights:,} parameters",
        "method": recipe.with_seed(f"{recipe.method} against {written(recipe.attack.threat)}"),
        "epochs": f"{length}, each {recipe.steps(n)} steps of {batch} images; "
        f"learning rate {recipe.optimizer.lr:g}, {type(recipe.schedule).__name__}",
    }
    if left and not distributed.active():  # a step on one rank would wait for the others
        with suppress(RuntimeError):  # not every module can be copied, and not every device holds two
            seconds = seconds_of_epoch(state, batch) * left
            rows["time"] = (
                f"about {duration(seconds)} on {state.device}" if seconds >= 60 else "less than a minute or so"
            )
    return "\n".join(f"{name:<8} {row}" for name, row in rows.items())


def augmented(augment: Augment) -> str:
    """How training images are changed.

    >>> augmented(Augment()), augmented(Augment(pad=0, flip=False))
    ('augmented by pad 4, flip', 'not augmented')
    """
    found = [f"{name} {size}" for name, size in (("pad", augment.pad), ("cutout", augment.cutout)) if size]
    found += ["flip"] if augment.flip else []
    found += [augment.mix] if augment.mix != "none" else []
    return f"augmented by {', '.join(found)}" if found else "not augmented"


def written(threat: Threat) -> str:
    """A threat in words; l_inf in steps of the 255 levels too.

    >>> written(Threat(norm="linf", epsilon=8 / 255))
    'linf 0.03137 (8/255)'
    """
    levels = f" ({255 * threat.epsilon:.3g}/255)" if threat.norm == "linf" else ""
    return f"{threat.norm} {threat.epsilon:.4g}{levels}"


def seconds_of_epoch(state: TrainState, batch: int) -> float:
    """Seconds that an epoch and its validation may take, from a step or two of a copy of the model."""
    recipe, data, passes = replace(state.recipe, compile=False), state.data, unavoidable_passes(state.recipe)
    warm = replace(state.progress, epoch=max(state.progress.epoch, recipe.awp.warmup if recipe.awp else 0))
    memory = {name: value.clone() for name, value in state.memory.items()}
    model, teachers = copy.deepcopy(state.model), copy.deepcopy(state.teachers)  # a step moves their statistics
    trial = replace(state, model=model, teachers=teachers, recipe=recipe, progress=warm, memory=memory)
    trial.train_mode()
    example = state.floats(data.train[torch.arange(1)].x.to(state.device))
    forward, _ = wrap_model(trial.model, recipe, example, teachers)

    def seconds(size: int) -> float:
        return timed(lambda: train_step(trial, forward, forward, data.train, torch.arange(size)))["wall"]

    few = min(FEW, batch)
    step = min(seconds(few), seconds(few)) * batch / few  # the first is slower
    step = step if step > PATIENCE else seconds(batch)
    forwards = passes.forward + BACKWARD * (passes.by_input + passes.full)
    validation = len(data.val) * recipe.val_attack.steps * (1 + BACKWARD) / recipe.evaluate_every if data.val else 0
    return step * recipe.replays / batch * (len(data.train) + validation / forwards)
