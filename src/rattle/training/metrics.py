"""The figures of an epoch: sums of the losses, weights of the Taylor terms, and the loggers besides metrics.jsonl.

A Taylor term weighs the length of its weight gradient over that of the zeroth term's.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, unknown
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import to_plain
from rattle.runs import distributed
from rattle.runs.io import refuse_links
from rattle.runs.paths import Run
from rattle.training.state import TrainState


class LossMeter:
    """Sums of the terms over an epoch, kept on the device; remembers the first step whose loss was not finite.

    Losses are read at every step on a CPU; on a GPU only at every 50th, so that the loop does not wait for the device.
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
        elif self.names != list(terms):
            raise RattleError(f"the checkpoint's sums are of {', '.join(self.names)}, not of {', '.join(terms)}")
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


LogTarget = Literal["tensorboard", "wandb", "none"]


def check_log(kind: str) -> None:
    """Raise RattleError if there is no such log, or its package is not installed."""
    if kind not in get_args(LogTarget):
        raise unknown("log", kind, get_args(LogTarget))
    if kind == "wandb":
        try:
            importlib.import_module("wandb")
        except ImportError:
            raise RattleError("--log wandb needs the wandb extra: pip install 'rattle-robust[wandb]'") from None


@contextmanager
def epoch_logger(
    kind: str, run: Run, recipe: Recipe, *, purge_step: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that logs an epoch's metrics; events from purge_step on are hidden when a run is resumed."""
    check_log(kind)
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        refuse_links(run.events / "events")
        with SummaryWriter(str(run.events), purge_step=purge_step) as writer:

            def log(metrics: Mapping[str, Any]) -> None:
                for name, value in values_of(metrics).items():
                    writer.add_scalar(name, value, metrics["epoch"])
                writer.flush()

            yield log
    elif kind == "wandb":  # offline: files in RUN/events/wandb, for `wandb sync`
        run.events.mkdir(parents=True, exist_ok=True)
        session = importlib.import_module("wandb").init(
            mode="offline", dir=str(run.events), project="rattle", name=run.folder.name, config=to_plain(recipe)
        )
        try:
            yield lambda metrics: session.log(values_of(metrics), step=int(metrics["epoch"]))
        finally:
            session.finish()
    else:
        yield lambda metrics: None


def values_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an epoch without its number."""
    return {name: value for name, value in metrics.items() if name not in ("epoch", "step")}


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


COMPARED = ("zeroth", "first", "second")
NEGLIGIBLE, DOMINANT = 0.01, 10.0  # the heaviest term below, or above


def term_gradients(model: nn.Module, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each term by all weights, as one vector; the terms can still be differentiated afterwards."""
    weights = [p for p in model.parameters() if p.requires_grad]
    found = {}
    for name, value in terms.items():
        parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        found[name] = torch.cat([part.flatten() for part in parts])
    return found


def term_observer(state: TrainState) -> Callable[[Mapping[str, Tensor]], None] | None:
    """At the first step of an epoch, notes the weights of its Taylor terms in `state.progress`; None at others.

    A compiled network is left out: its graph can be run backwards once only.
    """
    if state.progress.batch > 0 or state.recipe.compile:
        return None

    def observe(terms: Mapping[str, Tensor]) -> None:
        compared = {name: terms[name] for name in COMPARED if name in terms}
        if len(compared) < 2 or "zeroth" not in compared:
            return
        gradients = distributed.mean_over_ranks(term_gradients(state.model, compared))
        lengths = {name: float(gradient.norm()) for name, gradient in gradients.items()}
        zeroth = lengths.pop("zeroth")
        if zeroth > 0:
            weights = {f"{name}_over_zeroth": length / zeroth for name, length in lengths.items()}
            state.progress.term_weights = weights

    return observe


def remark(weights: Mapping[str, float]) -> str | None:
    """A sentence on Taylor terms that are negligible beside the zeroth term, or dominate it; None in between.

    >>> remark({"first_over_zeroth": 7e-4, "second_over_zeroth": 6e-5})
    'the Taylor terms are negligible (0.0007 of the zeroth): raise objective.taylor.eta, or noise.outer if u is drawn'
    """
    if not weights:
        return None
    heaviest = max(weights.values())
    if NEGLIGIBLE <= heaviest <= DOMINANT:
        return None
    found, advice = ("are negligible", "raise") if heaviest < NEGLIGIBLE else ("dominate", "lower")
    return (
        f"the Taylor terms {found} ({heaviest:.1g} of the zeroth): "
        f"{advice} objective.taylor.eta, or noise.outer if u is drawn"
    )
