"""Checkpoints of a run under way: written, found again when a run is resumed, and put into the state."""

import os
from dataclasses import asdict

import torch

from rattle.errors import RattleError, first_line
from rattle.recipes.schema import changes, from_plain
from rattle.runs import checkpoint, distributed
from rattle.runs.load import fill
from rattle.runs.lock import truncate
from rattle.runs.paths import Run
from rattle.runs.progress import Console
from rattle.training.metrics import Diverged
from rattle.training.state import Progress, TrainState

REMOVED_PROGRESS = ("rate", "term_weights", "closed")  # what version 0.2 had in the progress of a run


def save_state(state: TrainState, run: Run, name: str) -> None:
    """Write a checkpoint; `last` also holds the optimizer, and the `last` before it is kept as `previous`."""
    last = name == "last"
    state.share_memory()
    more = {f"teachers.{key}": value for key, value in state.cotrained.state_dict().items()}
    if last:
        more |= {f"memory.{key}": value for key, value in state.memory.items()}
        if state.teacher_optimizer is not None:
            more |= checkpoint.optimizer_tensors("teacher_optimizer", state.teacher_optimizer, state.cotrained)

    def write() -> None:
        checkpoint.write_checkpoint(
            run.checkpoint(name),
            recipe=state.recipe,
            classes=state.data.classes,
            shape=tuple(state.data.test.shape[1:]),
            progress=asdict(state.progress),
            model=state.model,
            average=state.average,
            optimizer=state.optimizer if last else None,
            more=more,
            backup=run.checkpoint("previous") if last else None,
        )

    distributed.on_main(write)


def restore(state: TrainState, run: Run, console: Console) -> None:
    """Resume from the last good checkpoint, if there is one; metrics written after it are removed, they come again."""
    saved = newest(run, console)
    if saved is None:
        truncate(run.metrics, 0)
        return
    if changed := changes(saved.recipe, state.recipe, but=("epochs", "model")):  # `fill` compares the model's weights
        raise RattleError(f"{saved.path} is of another recipe ({changed}): put the checkpoint of this run there")
    try:
        numbers = {name: value for name, value in saved.progress.items() if name not in REMOVED_PROGRESS}
        state.progress = from_plain(Progress, numbers, "progress")
        fill_state(state, saved)
    except (RattleError, RuntimeError, KeyError, TypeError) as reason:
        raise RattleError(f"{saved.path} does not resume this run: {first_line(reason)}") from reason
    state.share_memory()
    if state.recipe.epochs > saved.recipe.epochs:
        before, now = saved.recipe.epochs, state.recipe.epochs
        console.log(f"epochs {before} -> {now}: the schedule of the learning rate stretches with the run")
    truncate(run.metrics, state.progress.metrics_size)


def fill_state(state: TrainState, saved: checkpoint.Checkpoint) -> None:
    """Copy a checkpoint into the state, all but the progress."""
    fill(state.model, saved.part("model"), saved.path)
    if state.average is not None:
        state.average.load_state_dict(saved.part("average"))
    state.optimizer.state.clear()
    checkpoint.restore_optimizer(state.optimizer, state.model, saved.part("optimizer"))
    if state.teacher_optimizer is not None:
        fill(state.cotrained, saved.part("teachers"), saved.path)
        checkpoint.restore_optimizer(state.teacher_optimizer, state.cotrained, saved.part("teacher_optimizer"))
    for name, value in saved.part("memory").items():
        state.memory[name].copy_(value)


def newest(run: Run, console: Console) -> checkpoint.Checkpoint | None:
    """The last checkpoint, or the one before it when the last is damaged; None when none was ever written."""
    last, previous = run.checkpoint("last"), run.checkpoint("previous")
    damage = None
    for path in (last, previous):
        if not path.exists():
            continue
        try:
            found = checkpoint.read_checkpoint(path)
        except checkpoint.Damaged as reason:
            console.log(f"{reason}; trying the checkpoint before it" if path == last else str(reason))
            damage = reason
            continue
        distributed.barrier()  # every rank has read
        if damage is not None and distributed.is_main():
            os.replace(previous, last)  # or the next save would put the damaged one in its place
        distributed.barrier()
        return found
    if damage is not None:
        raise RattleError(f"no checkpoint in {run.folder} can be read: {damage}")
    return None


def refuse_non_finite(state: TrainState) -> None:
    """Raise Diverged if a weight or statistic overflowed on any rank: such a model is neither saved nor evaluated."""
    good = torch.stack([torch.isfinite(value).all() for value in state.model.state_dict().values()]).all()
    if distributed.any_rank(int(not bool(good))):
        progress = state.progress
        means = {name: value / max(progress.batch, 1) for name, value in progress.sums.items()}
        raise Diverged(progress.step, {**means, "weights": float("nan")})
