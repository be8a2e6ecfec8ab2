"""The figures of an epoch: sums of the losses, peak memory, operations, and the loggers besides metrics.jsonl."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from rattle.errors import RattleError, unknown
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import flatten, to_plain
from rattle.runs.io import refuse_links
from rattle.runs.paths import Run
from rattle.settings import Plain
from rattle.weights import Tensors


class LossMeter:
    """Sums of the terms over an epoch, kept on the device.

    Losses are read at every step on a CPU; on a GPU only at every 50th, so that the loop does not wait for the device.
    """

    def __init__(self, sums: Mapping[str, float], device: torch.device) -> None:
        self.sums: dict[str, Tensor | float] = dict(sums)
        self.terms: Tensors = {}
        self.step = 0
        self.every = 1 if device.type == "cpu" else 50

    def add(self, terms: Tensors, step: int) -> None:
        for name, value in terms.items():
            self.sums[name] = value.to(torch.float64) + self.sums.get(name, 0.0)
        self.terms, self.step = terms, step

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def read(self) -> dict[str, float]:
        """The sums so far; raises Diverged if a loss was not finite."""
        sums = {name: float(value) for name, value in self.sums.items()}
        if not all(map(math.isfinite, sums.values())):
            raise Diverged(self.step, {name: float(value) for name, value in self.terms.items()})
        return sums


class Diverged(RattleError):
    """A loss or weight that is not finite."""

    def __init__(self, step: int, terms: Mapping[str, float]) -> None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
        super().__init__(f"the loss diverged at step {step} ({values})")


LogTarget = Literal["tensorboard", "wandb", "mlflow", "none"]
LogEpoch = Callable[[Plain], None]  # logs the metrics of an epoch


def check_log(kind: str) -> None:
    """Raise RattleError if there is no such log, or its package is not installed."""
    if kind not in get_args(LogTarget):
        raise unknown("log", kind, get_args(LogTarget))
    if kind in ("wandb", "mlflow"):
        try:
            importlib.import_module(kind)
        except ImportError:
            raise RattleError(f"--log {kind} needs the {kind} extra: pip install 'rattle-robust[{kind}]'") from None


@contextmanager
def epoch_logger(kind: str, run: Run, recipe: Recipe, *, purge_step: int) -> Iterator[LogEpoch]:
    """A function that logs an epoch's metrics; events from purge_step on are hidden when a run is resumed."""
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        refuse_links(run.events / "events")
        with SummaryWriter(str(run.events), purge_step=purge_step) as writer:

            def log(metrics: Plain) -> None:
                for name, value in logged_values(metrics).items():
                    writer.add_scalar(name, value, metrics["epoch"])
                writer.flush()

            yield log
    elif kind == "wandb":  # offline: files in RUN/events/wandb, for `wandb sync`
        run.events.mkdir(parents=True, exist_ok=True)
        session = importlib.import_module("wandb").init(
            mode="offline", dir=str(run.events), project="rattle", name=run.folder.name, config=to_plain(recipe)
        )
        try:
            yield lambda metrics: session.log(logged_values(metrics), step=int(metrics["epoch"]))
        finally:
            session.finish()
    elif kind == "mlflow":  # RUN/events/mlflow.db, or where MLFLOW_TRACKING_URI says
        run.events.mkdir(parents=True, exist_ok=True)
        with mlflow_logger(run, recipe) as log_epoch:
            yield log_epoch
    else:
        yield lambda metrics: None


@contextmanager
def mlflow_logger(run: Run, recipe: Recipe) -> Iterator[LogEpoch]:
    """An MLflow run with the recipe's settings as parameters, which ends as FINISHED or FAILED."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(run.events / 'mlflow.db').absolute()}")
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=where)
    known = client.get_experiment_by_name("rattle")
    experiment = known.experiment_id if known else client.create_experiment("rattle")
    session = client.create_run(experiment, run_name=run.folder.name).info.run_id
    for name, value in flatten(to_plain(recipe)).items():
        client.log_param(session, name, value)
    state = "FAILED"
    try:

        def log(metrics: Plain) -> None:
            for name, value in logged_values(metrics).items():
                client.log_metric(session, name, value, step=int(metrics["epoch"]))

        yield log
        state = "FINISHED"
    finally:
        client.set_terminated(session, state)


def logged_values(metrics: Plain) -> dict[str, float]:
    """The metrics of an epoch without its number."""
    return {name: value for name, value in metrics.items() if name not in ("epoch", "step", "warning")}


def peak_memory_mb() -> float | None:
    """The peak of memory so far, in MB: of the GPU where there is one, else of the process; None on Windows."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


# FLOP/s of dense bf16 by the vendor's data sheet, by a part of the device's name.
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


class FlopCounter(TorchDispatchMode):
    """Counts the operations of convolutions and matrix products by torch's own formulas.

    torch's FlopCounterMode also keeps track of modules, which breaks on gradients by an image.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=found)
        return found


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s that the device can reach in bf16, where its data sheet is known."""
    name = device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
