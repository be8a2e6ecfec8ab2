"""What changes while training, and how it begins: model, optimizer, average, teachers and progress."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from rattle.data import Dataset, Images
from rattle.errors import RattleError
from rattle.inputs import to_float, trains_channels_last
from rattle.models.head import check_width, find_head
from rattle.models.layers import MeanStd
from rattle.randomness import derive_seed
from rattle.recipes.recipe import AdamW, Recipe
from rattle.runs import distributed
from rattle.runs.load import build_model, load_model, open_checkpoint, resolve_checkpoint
from rattle.runs.paths import is_published
from rattle.settings import Bound, check_settings
from rattle.training.teachers import cotrained, network_recipe, teachers_of
from rattle.weights import Tensors

# What a derived seed is for; LAYERS: dropout etc., EXTRA: which extra images are drawn, CROPS: of encoded pictures.
ORDER, PIXELS, ATTACK, NOISE, INIT, LAYERS, PARTNERS, EXTRA, CROPS = range(9)

STATISTICS_PIXELS = 2**29  # that statistics are taken over: 2 GiB in single precision, 3,566 images of 224 pixels


Whole = Annotated[int, Bound(least=0)]


@dataclass(slots=True)
class Progress:
    """How far a run is; plain numbers, saved in every checkpoint."""

    epoch: Whole = 0  # epochs completed
    batch: Whole = 0  # batches completed of the next one
    step: Whole = 0  # optimizer steps completed
    sums: dict[str, float] = field(default_factory=dict)  # of the terms over the batches of the epoch begun
    best: Annotated[float, Bound(least=-1, most=1)] = -1.0  # highest robust accuracy on the held-out images
    best_epoch: Whole = 0
    metrics_size: Whole = 0  # bytes of metrics.jsonl that this progress includes

    def __post_init__(self) -> None:
        check_settings(self, "")


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
    head: nn.Linear | None  # the layer of the logits, where the objective needs it
    extra: Images | None = None  # images drawn into every minibatch beside those of the dataset
    teachers: dict[str, nn.Module] = field(default_factory=dict)  # the networks that the objective learns from
    teacher_optimizer: torch.optim.Optimizer | None = None  # of those that are trained along
    memory: Tensors = field(default_factory=dict)  # what the objective remembers of each image or class
    shared: Tensors = field(default_factory=dict)  # the memory when all ranks last had the same
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

        Unchanged rows stay and changed ones are copied bit for bit: sharing more often changes nothing.
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
        """The model that is validated: the average once it has begun, else the model itself."""
        return self.average.module if self.average is not None and self.averaging else self.model

    @property
    def averaging(self) -> bool:
        """Whether the average has begun; it then continues, also when the run is made longer and its start moves."""
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
    trust_code: bool = False,
) -> TrainState:
    """The state of a run that begins: initial weights are a function of the seed, or come from `recipe.init`.

    module: trained in place of the network that the recipe names, from the weights it has. Networks with fresh weights
    stand for teachers that are trained first, see `train_teachers`. trust_code: run code that the checkpoint of a
    teacher names and the recipe does not.
    """
    if not len(data.train):
        raise RattleError(f"{data.name} has no training images, only {len(data.test)} test images")
    device = distributed.choose_device(recipe.device)
    model = new_model(recipe, data) if module is None else module
    if recipe.init:  # a head for other classes stays fresh
        from rattle.models.pretrained import load_weights

        is_run = is_published(recipe.init) or Path(recipe.init).is_dir()
        load_weights(resolve_checkpoint(recipe.init) if is_run else recipe.init, model, fresh_head=True)
    model.to(device)
    example = to_float(two_images(data).to(device), torch.contiguous_format)
    check_width(model, example, len(data.classes))
    head = find_head(model, recipe.head, example=example) if recipe.objective.needs.features else None
    # Channels last is faster; networks that are neither ours nor timm's may flatten by `.view`, which refuses it.
    ours = type(model).__module__.startswith("rattle.models.") or recipe.model.startswith("timm:")
    layout = torch.channels_last if ours and trains_channels_last(model) else torch.contiguous_format
    if recipe.batch_norm == "sync":
        if device.type != "cuda":
            raise RattleError(f"batch-norm sync needs GPUs, this is {device.type}: use --batch-norm held or local")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    if recipe.batch_norm_momentum is not None:
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if not norms:
            raise RattleError("batch-norm-momentum does nothing: the network has no BatchNorm layer")
        for module in norms:
            module.momentum = recipe.batch_norm_momentum
    recipe.data.extra_count(min(recipe.batch_size, len(data.train)))  # refuses a share that is none of them, or all
    state = TrainState(
        recipe=recipe,
        data=data,
        model=model,
        optimizer=make_optimizer(recipe, model),
        average=recipe.average.averaged(model) if recipe.average else None,
        progress=Progress(),
        layout=layout,
        head=head,
        extra=recipe.data.load_extra(data),
        trust_code=trust_code,
    )
    add_teachers(state, {})
    if len(state.cotrained):
        state.teacher_optimizer = make_optimizer(recipe, state.cotrained)
    batch = torch.Size((min(recipe.batch_size, len(data.train)), *data.train.shape[1:]))
    memory = recipe.objective.state(images=len(data.train), classes=len(data.classes), batch=batch)
    state.memory = {name: value.to(device) for name, value in memory.items()}
    state.share_memory()
    return state


def two_images(data: Dataset) -> Tensor:
    """Two training images, to try a network on."""
    return data.train[torch.arange(2) % len(data.train)].x


def new_model(recipe: Recipe, data: Dataset, number: int = 0) -> nn.Module:
    """The recipe's network, with weights drawn by its seed; of the same network, each number has others."""
    purpose = (INIT, number) if number else (INIT,)
    classes, mean_std = len(data.classes), statistics(recipe, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(recipe.seed, *purpose))
        return build_model(recipe, classes=classes, channels=data.channels, statistics=mean_std)


def add_teachers(state: TrainState, sources: Mapping[str, Path]) -> None:
    """Build the teachers that the state does not have yet, and those in `sources` with the weights found there.

    A teacher that has weights or gets them later is frozen; the others are trained together with the model. Code that
    a teacher's checkpoint names runs by the user's word, or if the recipe names it too.
    """
    recipe, data = state.recipe, state.data
    example = state.floats(two_images(data).to(state.device))
    for number, (name, (teacher, _)) in enumerate(teachers_of(recipe.objective).items(), 1):
        if name in state.teachers and name not in sources:
            continue
        weights, trained = teacher.weights or sources.get(name), name in cotrained(recipe.objective)
        try:
            if weights:
                saved = open_checkpoint(weights)
                named = saved.recipe.model == (teacher.model or recipe.model)  # by the recipe that is trained
                network = load_model(replace(saved, trust_code=state.trust_code or named))
            else:
                network = new_model(network_recipe(recipe, teacher), data, number)
            check_width(network.to(state.device), example, len(data.classes))
        except RattleError as reason:
            which = f"{name!r} ({weights})" if weights else repr(name)
            raise RattleError(f"the teacher {which}: {reason}") from reason
        if trained and recipe.batch_norm == "sync":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        network.requires_grad_(trained).train(trained)
        state.teachers[name] = network.to(memory_format=state.layout)  # type: ignore[call-overload]


def statistics(recipe: Recipe, data: Dataset) -> MeanStd:
    """Mean and std of each channel by which the recipe normalises: its own, or those of the training images."""
    if isinstance(recipe.normalise, tuple):
        if len(recipe.normalise) != 2 * data.channels:
            raise RattleError(f"give a mean and a std for each of the {data.channels} channels of {data.name}")
        return list(recipe.normalise[: data.channels]), list(recipe.normalise[data.channels :])
    if not recipe.normalise:
        return None
    first = torch.arange(min(len(data.train), 10_000, STATISTICS_PIXELS // data.train.shape[1:].numel()))
    x = to_float(data.train[first].x)
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3)).clamp_min(1e-3).tolist()


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimizer; fused, one pass over each tensor instead of four.

    Each group has the factor on its learning rate as `lr_scale`.
    """
    settings = recipe.optimizer
    if settings.layer_decay is not None:
        groups = timm_groups(model, settings.layer_decay, settings.weight_decay, settings.decay_norms)
    else:
        matrices, vectors = [], []
        for p in model.parameters():
            (matrices if settings.decay_norms or p.ndim > 1 else vectors).append(p)
        groups = [{"params": matrices, "lr_scale": 1.0}]
        if vectors:
            groups.append({"params": vectors, "lr_scale": 1.0, "weight_decay": 0.0})
    fused = all(p.is_floating_point() for p in model.parameters())
    shared: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": fused}
    if isinstance(settings, AdamW):
        return torch.optim.AdamW(groups, **shared)
    return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.nesterov, **shared)


def timm_groups(model: nn.Module, layer_decay: float, weight_decay: float, decay_norms: bool) -> list[dict[str, Any]]:
    """The layers of a timm network, whose rate falls towards the images by the factor `layer_decay` a layer."""
    for module in model.modules():  # a network behind a normalisation too
        if hasattr(module, "group_matcher") and len(list(module.parameters())) == len(list(model.parameters())):
            groups = importlib.import_module("timm.optim").param_groups_layer_decay(
                module, weight_decay, layer_decay=layer_decay
            )
            if decay_norms:
                for group in groups:
                    group["weight_decay"] = weight_decay
            return groups
    raise RattleError("optimizer.layer-decay needs a network of timm, which names its layers: leave it out")
