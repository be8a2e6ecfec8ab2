"""What changes while training: model, optimizer, average, progress; and how they are saved and restored."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from rattle.data import Dataset, Images, to_float
from rattle.errors import RattleError, first_line
from rattle.forward import PairedForward
from rattle.models import check_width, find_head, load_weights
from rattle.objectives.base import Remembers, RemembersClasses, RemembersPlaces
from rattle.randomness import derive_seed
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import from_plain
from rattle.runs import checkpoint, distributed
from rattle.runs.load import build_model, fill, load_model, open_checkpoint, resolve_checkpoint
from rattle.runs.lock import changes, truncate
from rattle.runs.overwrite import settle
from rattle.runs.paths import Run, is_published
from rattle.runs.progress import Console
from rattle.training.extra import load_extra
from rattle.training.meter import Diverged
from rattle.training.optimizers import make_optimizer
from rattle.training.teachers import cotrained, network_recipe, teachers_of
from rattle.weights import eval_mode

# What a derived seed is for; LAYERS: dropout etc., EXTRA: which extra images are drawn, CROPS: of encoded pictures.
ORDER, PIXELS, ATTACK, WEIGHTS, INIT, LAYERS, PARTNERS, EXTRA, CROPS = range(9)

MOST_PIXELS = 2**29  # that statistics are taken over: 2 GiB in single precision, 3,566 images of 224 pixels


@dataclass(slots=True)
class Progress:
    """How far a run is; plain numbers, saved in every checkpoint."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches completed of the next one
    step: int = 0  # optimizer steps completed
    sums: dict[str, float] = field(default_factory=dict)  # of the terms over the batches of the epoch begun
    term_weights: dict[str, float] = field(default_factory=dict)  # of the Taylor terms, at the epoch's first step
    best: float = -1.0  # highest robust accuracy on the held-out images
    best_epoch: int = 0
    metrics_size: int = 0  # bytes of metrics.jsonl that this progress includes
    rate: float = 1.0  # factor on the learning rate; halved by every rollback
    closed: bool = False  # all batches of the epoch begun are done and averaged: what is missing is its validation

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in asdict(self).items() if name not in ("sums", "term_weights", "best")}
        bad = [name for name, value in numbers.items() if not 0 <= value < math.inf]
        if bad or not (0 < self.rate <= 1 and -1 <= self.best <= 1):
            raise RattleError(f"{bad[0] if bad else 'rate or best'} is out of its range")


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
    extra: Images | None = None  # images drawn into every minibatch beside those of the dataset
    initial: Mapping[str, Tensor] | None = None  # the weights that a module given in Python had, for a rollback
    teachers: dict[str, nn.Module] = field(default_factory=dict)  # the networks that the objective learns from
    sources: Mapping[str, Path] = field(default_factory=dict)  # the weights of those that were trained first
    teacher_optimizer: torch.optim.Optimizer | None = None  # of those that are trained along
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the objective remembers of each image or class
    shared: dict[str, Tensor] = field(default_factory=dict)  # the memory when all ranks last had the same
    trust_code: bool = False  # the user's word that code which the checkpoint of a teacher names may run

    @property
    def cotrained(self) -> nn.ModuleDict:
        """The teachers that are trained together with the model."""
        return nn.ModuleDict({name: self.teachers[name] for name in cotrained(self.recipe.objective)})

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [each for each in (self.optimizer, self.teacher_optimizer) if each is not None]

    def share_memory(self) -> None:
        """Give every rank what the others remembered: each changed the rows of its own images since the last call.

        What nobody changed stays, and what somebody did is taken over bit for bit: sharing more often changes nothing.
        """
        if not distributed.active():
            return
        for name, before in self.shared.items():
            changed = torch.where(self.memory[name] == before, -torch.inf, self.memory[name])
            found = distributed.max_over_ranks(changed)
            self.memory[name].copy_(torch.where(found == -torch.inf, before, found))
        self.shared = {name: value.clone() for name, value in self.memory.items()}

    @property
    def eval_model(self) -> nn.Module:
        """The weights that count: the average once it holds something, else the model itself."""
        return self.average.module if self.average is not None and self.averaging else self.model

    @property
    def averaging(self) -> bool:
        """Whether the average has begun; it then goes on, also when the run is made longer and its start moves."""
        return self.average is not None and int(self.average.n_averaged) > 0

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def floats(self, x: Tensor) -> Tensor:
        """Images as the model takes them."""
        return to_float(x, self.layout)

    def train_mode(self) -> None:
        """Train mode; with `batch_norm held`, BatchNorm stays in evaluation mode and its statistics do not move."""
        self.model.train()
        self.cotrained.train()
        if self.recipe.batch_norm == "held":
            for module in (*self.model.modules(), *self.cotrained.modules()):
                if isinstance(module, _BatchNorm):
                    module.eval()


def init_state(
    recipe: Recipe,
    data: Dataset,
    module: nn.Module | None = None,
    sources: Mapping[str, Path] | None = None,
    trust_code: bool = False,
) -> TrainState:
    """The state of a run that begins: initial weights are a function of the seed, or come from `recipe.init`.

    module: trained in place of the network that the recipe names, from the weights it has. sources: the weights of the
    teachers that were trained first, see `train_teachers`; before they are, networks with fresh weights stand for them.
    trust_code: run code that the checkpoint of a teacher names and the recipe does not.
    """
    model = begin_from(recipe.init, new_model(recipe, data) if module is None else module)
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
    model = with_momentum(model.to(memory_format=layout), recipe.batch_norm_momentum)  # type: ignore[call-overload]
    average = recipe.average.averaged(model) if recipe.average else None
    extra, optimizer = load_extra(recipe, data) if recipe.data.extra else None, make_optimizer(recipe, model)
    state = TrainState(recipe, data, model, optimizer, average, Progress(), layout, extra, trust_code=trust_code)
    add_teachers(state, sources or {})
    if len(state.cotrained):
        state.teacher_optimizer = make_optimizer(recipe, state.cotrained)
    state.memory = {name: value.to(device) for name, value in first_memory(recipe, data).items()}
    state.shared = {name: value.clone() for name, value in state.memory.items()}
    if module is not None and recipe.on_divergence == "rollback":
        state.initial = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return state


def begin_from(init: str | None, model: nn.Module) -> nn.Module:
    """The model, with the weights of a run, a checkpoint or a file where `recipe.init` names one."""
    if init:
        found = is_published(init) or Path(init).is_dir()
        load_weights(resolve_checkpoint(init) if found else init, model, fresh_head=True)
    return model


def with_momentum(model: nn.Module, momentum: float | None) -> nn.Module:
    """The model, with that momentum in its BatchNorm layers if one is given."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if momentum is not None and not norms:
        raise RattleError("batch-norm-momentum does nothing: the network has no BatchNorm layer")
    for module in norms if momentum is not None else ():
        module.momentum = momentum
    return model


def first_memory(recipe: Recipe, data: Dataset) -> dict[str, Tensor]:
    """What the objective remembers before it saw anything."""
    objective, found = recipe.objective, {}
    if isinstance(objective, Remembers):
        found |= objective.initial_memory(len(data.train))
    if isinstance(objective, RemembersClasses):
        found |= objective.initial_class_memory(len(data.classes))
    if isinstance(objective, RemembersPlaces):
        size = min(recipe.batch_size, len(data.train))
        found |= objective.initial_place_memory(torch.Size((size, *data.train.shape[1:])))
    return found


def new_model(recipe: Recipe, data: Dataset, number: int = 0) -> nn.Module:
    """The recipe's network, with weights drawn by its seed; of the same network, each number has others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(recipe.seed, INIT, *((number,) if number else ())))
        return build_model(
            recipe, classes=len(data.classes), channels=data.channels, statistics=statistics(recipe, data)
        )


def add_teachers(state: TrainState, sources: Mapping[str, Path]) -> None:
    """Build the teachers that the state does not have yet, and those in `sources` with the weights found there.

    A teacher that has weights or gets them later is frozen; the others are trained along.
    """
    recipe, data, state.sources = state.recipe, state.data, sources
    example = state.floats(data.train[torch.arange(2) % len(data.train)].x.to(state.device))
    for number, (name, (teacher, _)) in enumerate(teachers_of(recipe.objective).items(), 1):
        if name in state.teachers and name not in sources:
            continue
        weights, trained = teacher.weights or sources.get(name), name in cotrained(recipe.objective)
        try:
            if weights:
                network = load_teacher(weights, teacher.model or recipe.model, state.trust_code)
            else:
                network = new_model(network_recipe(recipe, teacher), data, number)
            check_width(network.to(state.device), example, len(data.classes))
        except RattleError as reason:
            raise RattleError(f"the teacher {name!r}{f' ({weights})' if weights else ''}: {reason}") from reason
        if trained and recipe.batch_norm == "sync":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        state.teachers[name] = network.requires_grad_(trained).train(trained).to(memory_format=state.layout)  # type: ignore[call-overload]


def load_teacher(path: Path | str, own: str, trust_code: bool) -> nn.Module:
    """A trained teacher; code that its checkpoint names runs by the user's word, or if it is `own`, the recipe's."""
    saved = open_checkpoint(path)
    return load_model(replace(saved, trust_code=trust_code or saved.recipe.model == own))


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
    first = torch.arange(min(len(data.train), 10_000, MOST_PIXELS // data.train.shape[1:].numel()))
    x = to_float(data.train[first].x)
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3)).clamp_min(1e-3).tolist()


def save(state: TrainState, run: Run, name: str) -> None:
    """Write a checkpoint; `last` also holds the optimizer, and the `last` before it is kept as `previous`."""
    last = name == "last"
    state.share_memory()
    more = {f"teachers.{key}": value for key, value in state.cotrained.state_dict().items()}
    if last:
        more |= {f"memory.{key}": value for key, value in state.memory.items()}
        if state.teacher_optimizer is not None:
            more |= checkpoint.optimizer_tensors("teacher_optimizer", state.teacher_optimizer, state.cotrained)

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
    if changed := changes(saved.recipe, state.recipe, but="model"):  # the model's weights are looked at below
        raise RattleError(f"{saved.path} is of another recipe ({changed}): put the checkpoint of this run there")
    try:
        state.progress = from_plain(Progress, saved.progress, "progress")
        fill_state(state, saved)
    except (RattleError, RuntimeError, KeyError, TypeError) as reason:
        raise RattleError(f"{saved.path} does not go on with this run: {first_line(reason)}") from reason
    state.share_memory()
    if state.recipe.epochs > saved.recipe.epochs:
        console.log(extension(state, saved.recipe.epochs))
    if lost := truncate(run.metrics, state.progress.metrics_size):
        console.log(lost)


def fill_state(state: TrainState, saved: checkpoint.Checkpoint) -> None:
    """Put everything that a checkpoint holds into the state but the progress."""
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
    """Raise Diverged if a weight or statistic overflowed on any rank: such a model is neither saved nor evaluated."""
    good = torch.stack([torch.isfinite(value).all() for value in state.model.state_dict().values()]).all()
    if distributed.any_rank(int(not bool(good))):
        progress = state.progress
        means = {name: value / max(progress.batch, 1) for name, value in progress.sums.items()}
        raise Diverged(progress.step, {**means, "weights": float("nan")})
