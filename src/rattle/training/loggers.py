"""Loggers of a run's metrics besides metrics.jsonl: TensorBoard, and Weights & Biases offline as an extra."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args

from rattle.errors import RattleError, unknown
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import to_plain
from rattle.runs import distributed
from rattle.runs.io import refuse_links
from rattle.runs.paths import Run

LogTarget = Literal["tensorboard", "wandb", "none"]

Log = Callable[[Mapping[str, Any]], None]  # takes an epoch's figures, the object that metrics.jsonl gets


def epoch_logger(kind: str, run: Run, recipe: Recipe, *, purge_step: int) -> AbstractContextManager[Log]:
    """A context whose value logs an epoch; events from purge_step on are hidden when a run is resumed."""
    if kind == "tensorboard":
        return events(run, purge_step=purge_step)
    if kind == "wandb":
        return wandb_offline(run, recipe)
    check_log(kind)
    return silent()


def check_log(kind: str) -> Any:
    """The module that a kind of log needs besides rattle's own; raises RattleError if it or the kind is unknown."""
    if kind not in get_args(LogTarget):
        raise unknown("log", kind, get_args(LogTarget))
    try:
        return importlib.import_module("wandb") if kind == "wandb" else None
    except ImportError:
        raise RattleError("--log wandb needs the wandb extra: pip install 'rattle-robust[wandb]'") from None


@contextmanager
def silent() -> Iterator[Log]:
    yield lambda metrics: None


@contextmanager
def wandb_offline(run: Run, recipe: Recipe) -> Iterator[Log]:
    """Weights & Biases in offline mode: files in RUN/events/wandb, for `wandb sync`."""
    wandb = check_log("wandb")
    run.events.mkdir(parents=True, exist_ok=True)
    session = wandb.init(
        mode="offline", dir=str(run.events), project="rattle", name=run.folder.name, config=to_plain(recipe)
    )
    try:
        yield lambda metrics: session.log(
            {name: value for name, value in metrics.items() if name not in ("epoch", "step")},
            step=int(metrics["epoch"]),
        )
    finally:
        session.finish()


def peak_memory_mb() -> float | None:
    """The peak of memory so far, in MB: of the GPU where there is one, else of the process; None on other systems."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


@contextmanager
def events(run: Run, *, purge_step: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that writes an epoch's figures as TensorBoard scalars; events from purge_step on are hidden."""
    if not distributed.is_main():
        yield lambda metrics: None
        return
    from torch.utils.tensorboard import SummaryWriter

    refuse_links(run.events / "events")
    with SummaryWriter(str(run.events), purge_step=purge_step) as writer:

        def log(metrics: Mapping[str, Any]) -> None:
            for name, value in metrics.items():
                if name not in ("epoch", "step"):
                    writer.add_scalar(name, value, metrics["epoch"])
            writer.flush()

        yield log
