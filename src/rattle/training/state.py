"""What changes while training: model, optimizer, average, progress; and how they are saved and restored."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from rattle.data import Dataset, to_float
from rattle.errors import RattleError, first_line
from rattle.forward import PairedForward
from rattle.models import check_width, find_head, load_weights
from rattle.objectives.base import Remembers
from rattle.randomness import derive_seed
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import from_plain
from rattle.runs import checkpoint, distributed
from rattle.runs.load import build_model, fill, resolve_checkpoint
from rattle.runs.lock import truncate
from rattle.runs.paths import Run, is_published
from rattle.runs.progress import Console
from rattle.runs.replaced import settle
from rattle.training.optimizers import make_optimizer
from rattle.training.teachers import build_teacher, teachers_of
from rattle.weights import eval_mode

INIT = 4  # what a derived seed is for; loop.py has the others


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

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in asdict(self).items() if name not in ("sums", "best")}
        bad = [name for name, value in numbers.items() if not 0 <= value < math.inf]
        if bad or not (0 < self.rate <= 1 and -1 <= self.best <= 1):
            raise RattleError(f"{bad[0] if bad else 'rate or best'} is out of its range")


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


@dataclass(slots=True)
class TrainState:
    """A training run under way: what it trains, and everything that changes."""

    recipe: Recipe
    data: Dataset
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None  # of the weights, when the recipe averages them
    progress: Progress
    layout: torch.memory_format  # of images and weights
    initial: Mapping[str, Tensor] | None = None  # the weights that a module given in Python had, for a rollback
    teachers: dict[str, nn.Module] = field(default_factory=dict)  # the networks that the objective learns from
    sources: Mapping[str, Path] = field(default_factory=dict)  # where their weights are; the others are trained along
    teacher_optimizer: torch.optim.Optimizer | None = None  # of those that are trained along
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the objective remembers of each image
    shared: dict[str, Tensor] = field(default_factory=dict)  # the memory when all ranks last had the same

    @property
    def along(self) -> nn.ModuleDict:
        """The teachers that are trained together with the model."""
        return nn.ModuleDict({name: each for name, each in self.teachers.items() if name not in self.sources})

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [each for each in (self.optimizer, self.teacher_optimizer) if each is not None]

    def share_memory(self) -> None:
        """Give every rank what the others remembered: each changed the rows of its own images since the last call."""
        for name, before in self.shared.items():
            self.memory[name].copy_(before + distributed.total(self.memory[name] - before))
        self.shared = {name: value.clone() for name, value in self.memory.items()}

    @property
    def eval_model(self) -> nn.Module:
        """The weights that count: the average once it holds something, else the model itself."""
        started = self.average is not None and int(self.average.n_averaged) > 0
        return self.average.module if self.average is not None and started else self.model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def floats(self, x: Tensor) -> Tensor:
        """Images as the model takes them."""
        return to_float(x, self.layout)

    def train_mode(self) -> None:
        """Train mode; with `batch_norm held`, BatchNorm stays in evaluation mode and its statistics do not move."""
        self.model.train()
        self.along.train()
        if self.recipe.batch_norm == "held":
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()


def init_state(
    recipe: Recipe, data: Dataset, module: nn.Module | None = None, sources: Mapping[str, Path] | None = None
) -> TrainState:
    """The state of a run that begins: initial weights are a function of the seed, or come from `recipe.init`.

    module: trained in place of the network that the recipe names, from the weights it has. sources: the weights of the
    objective's teachers, see `train_teachers`.
    """
    model = new_model(recipe, data) if module is None else module
    if recipe.init:
        found = is_published(recipe.init) or Path(recipe.init).is_dir()
        weights = resolve_checkpoint(recipe.init) if found else recipe.init
        load_weights(weights, model, fresh_head=True)
    if not len(data.train):
        raise RattleError(f"{data.name} has no training images, only {len(data.test)} test images")
    device = distributed.choose_device(recipe.device)
    model, two = model.to(device), data.train[torch.arange(2) % len(data.train)].x.to(device)
    example = to_float(two, torch.contiguous_format)
    check_width(model, example, len(data.classes))
    if recipe.objective.needs.features:
        find_head(model, recipe.head, example=example)  # refuse a model without one before anything is written
    layout = choose_layout(model, two, recipe)
    if recipe.batch_norm == "sync":
        if device.type != "cuda":
            raise RattleError(f"batch-norm sync needs GPUs, this is {device.type}: use --batch-norm held or local")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    average = recipe.average.averaged(model) if recipe.average else None
    state = TrainState(recipe, data, model, make_optimizer(recipe, model), average, Progress(), layout)
    add_teachers(state, sources or {})
    if isinstance(recipe.objective, Remembers):
        state.memory = {k: v.to(device) for k, v in recipe.objective.initial_memory(len(data.train)).items()}
        state.share_memory()
    if module is not None and recipe.on_divergence == "rollback":
        state.initial = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return state


def new_model(recipe: Recipe, data: Dataset) -> nn.Module:
    """The recipe's network, with weights drawn by its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(recipe.seed, INIT))
        return build_model(
            recipe, classes=len(data.classes), channels=data.channels, statistics=statistics(recipe, data)
        )


def add_teachers(state: TrainState, sources: Mapping[str, Path]) -> None:
    """Build the objective's teachers: frozen ones with their weights, the others new, to be trained along."""
    state.sources = sources
    for number, (name, (teacher, _)) in enumerate(teachers_of(state.recipe.objective).items()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(state.recipe.seed, INIT, 1 + number))
            network = build_teacher(name, teacher, state.recipe, state.data, sources.get(name))
        state.teachers[name] = network.to(state.device).to(memory_format=state.layout)  # type: ignore[call-overload]
    if len(state.along):
        state.teacher_optimizer = make_optimizer(state.recipe, state.along)


def choose_layout(model: nn.Module, x: Tensor, recipe: Recipe) -> torch.memory_format:
    """Channels last, which is faster, where the model takes it forwards and backwards; else contiguous.

    Only networks of other people are tried, on the images x: one that flattens by `.view` refuses channels last. The
    trial changes nothing: weights, statistics, modes and gradients stay.
    """
    if type(model).__module__.startswith("rattle.models."):
        return torch.channels_last
    needs, reason = recipe.objective.needs, ""
    example = to_float(x, torch.contiguous_format)
    head = find_head(model, recipe.head, example=example) if needs.features else None
    weights = [p for p in model.parameters() if p.requires_grad]
    before = {name: value.detach().clone() for name, value in tensors_of(model)}
    for layout in (torch.channels_last, torch.contiguous_format):
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), eval_mode(model):
                model.to(memory_format=layout).train()  # type: ignore[call-overload]
                _, logits = PairedForward(model, needs, head).features_and_logits(to_float(x, layout))
                torch.autograd.grad(logits.sum(), weights, allow_unused=True)
            return layout
        except RuntimeError as error:
            reason = first_line(error)
        finally:
            with torch.no_grad():
                for name, value in tensors_of(model):
                    value.copy_(before[name])
    raise RattleError(f"the model cannot be trained on images of shape {list(x.shape[1:])}: {reason}")


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Everything that training a model may change, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def statistics(recipe: Recipe, data: Dataset) -> tuple[list[float], list[float]] | None:
    """Mean and deviation of each channel over the training images, when the recipe normalises."""
    if not recipe.normalise:
        return None
    first = torch.arange(min(len(data.train), 10_000))
    x = to_float(data.train[first].x)
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3)).clamp_min(1e-3).tolist()


def save(state: TrainState, run: Run, name: str) -> None:
    """Write a checkpoint; `last` also holds the optimizer, and the `last` before it is kept as `previous`."""
    last = name == "last"
    state.share_memory()
    more = {f"teachers.{key}": value for key, value in state.along.state_dict().items()}
    if last:
        more |= {f"memory.{key}": value for key, value in state.memory.items()}
        if state.teacher_optimizer is not None:
            more |= checkpoint.optimizer_tensors("teacher_optimizer", state.teacher_optimizer, state.along)

    def write() -> None:
        checkpoint.save(
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
        if last:
            settle(run)  # a run that this one replaces is no longer needed

    distributed.on_main(write)


def restore(state: TrainState, run: Run, console: Console) -> None:
    """Go on from the last good checkpoint, if there is one; metrics written after it are removed, they come again."""
    saved = newest(run, console)
    if saved is None:
        truncate(run.metrics, 0)
        return
    try:
        state.progress = from_plain(Progress, saved.progress, "progress")
        fill_state(state, saved)
    except (RattleError, RuntimeError, KeyError, TypeError) as reason:
        raise RattleError(f"{saved.path} does not go on with this run: {first_line(reason)}") from reason
    state.share_memory()
    if state.recipe.epochs > saved.recipe.epochs:
        console.log(extension(state, saved.recipe.epochs))
    truncate(run.metrics, state.progress.metrics_size)


def fill_state(state: TrainState, saved: checkpoint.Checkpoint) -> None:
    """Put everything that a checkpoint holds into the state but the progress."""
    fill(state.model, saved.part("model"), saved.path)
    if state.average is not None:
        state.average.load_state_dict(saved.part("average"))
    state.optimizer.state.clear()
    checkpoint.restore_optimizer(state.optimizer, state.model, saved.part("optimizer"))
    if state.teacher_optimizer is not None:
        fill(state.along, saved.part("teachers"), saved.path)
        checkpoint.restore_optimizer(state.teacher_optimizer, state.along, saved.part("teacher_optimizer"))
    for name, value in saved.part("memory").items():
        state.memory[name].copy_(value)


def extension(state: TrainState, before: int) -> str:
    """What more epochs than the checkpoint was trained for (`before`) do: the schedule stretches with the run."""
    recipe, progress = state.recipe, state.progress
    done, rate = progress.epoch, recipe.optimizer.lr * progress.rate
    was, now = (rate * recipe.schedule(min(done / epochs, 1)) for epochs in (before, recipe.epochs))
    kind = type(recipe.schedule).__name__
    average = "; the average of the weights goes on" if recipe.average else ""
    return (
        f"epochs {before} -> {recipe.epochs}: {done} are done, fraction {done / recipe.epochs:.3g} of the longer run; "
        f"the {kind} schedule stretches with it: the learning rate goes on at {now:.4g} (it was {was:.4g}){average}"
    )


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


def refuse_non_finite(state: TrainState) -> None:
    """Raise Diverged if a weight or statistic overflowed: such a model is neither saved nor evaluated."""
    if not all(bool(torch.isfinite(value).all()) for value in state.model.state_dict().values()):
        progress = state.progress
        means = {name: value / max(progress.batch, 1) for name, value in progress.sums.items()}
        raise Diverged(progress.step, {**means, "weights": float("nan")})
