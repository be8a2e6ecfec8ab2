"""What a minibatch goes through: images as the epoch sees them, extra ones too, then the step of Algorithm 1.

`numerics` sets the switches of torch that trade speed for bits.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.data import Images, to_device
from rattle.errors import RattleError, first_line
from rattle.forward import PairedForward
from rattle.inputs import Examples, to_float
from rattle.objectives.base import Memory, Moment, StepContext, Terms, label_rows
from rattle.objectives.trades import Released
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.training.ranks import sync_with_last
from rattle.training.state import ATTACK, CROPS, EXTRA, NOISE, PARTNERS, PIXELS, TrainState
from rattle.training.step import StepInputs, step

AREA = 0.08  # smallest share of a picture in a random crop, as usual for ImageNet


def train_step(
    state: TrainState, forward: PairedForward, ddp_forward: nn.Module, images: Images, index: Tensor
) -> Terms:
    """The gradient of one minibatch; everything random is a function of seed, epoch, image and step.

    With `accumulate` the minibatch goes through the same step in micro-batches, whose gradients add up. Each has its
    own BatchNorm statistics, head gradients and AWP direction; all have the same u.
    """
    recipe, progress, device = state.recipe, state.progress, state.device
    sums = {}
    parts = to_device(index, images.y.device).chunk(recipe.accumulate)
    for number, part in enumerate(parts):
        x, y = augmented(state, images, part)
        rows = to_device(part, device)
        given = StepInputs(
            x=x,
            y=y,
            forward=forward,
            attack=ramped_attack(recipe, progress.epoch),
            noise=recipe.noise,
            objective=recipe.objective,
            awp=recipe.awp if recipe.awp and progress.epoch >= recipe.awp.warmup else None,
            context=StepContext(
                moment=Moment(epoch=progress.epoch, epochs=recipe.epochs, step=progress.step),
                draws=ImageStreams(derive_seed(recipe.seed, ATTACK, progress.epoch), rows),
                memory=Memory(state.memory, rows),
                classes=len(state.data.classes),
                teachers=state.teachers,
                place=distributed.rank() * len(index) + number * len(parts[0]),
                reduce=distributed.mean_over_ranks,
            ),
            shared=torch.Generator().manual_seed(derive_seed(recipe.seed, NOISE, progress.step)),
            noise_samples=recipe.noise_samples,
            weight=len(part) / len(index),
            ddp_forward=ddp_forward,
        )
        # No cache: the step moves weights in place, and a cached copy in bfloat16 would not move along.
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False)
        with autocast, sync_with_last(ddp_forward, number == len(parts) - 1):
            if isinstance(recipe.objective, Released):  # for ResNet-18 the authors have a script of its own
                from rattle.training.released import released_step

                resnet, decay = recipe.model in ("preact18", "resnet18"), recipe.optimizer.weight_decay
                terms = released_step(given, awp_script=recipe.awp is not None, resnet=resnet, weight_decay=decay)
            else:
                terms = step(given)
        for name, value in terms.items():
            sums[name] = given.weight * value + sums.get(name, 0)
    return sums


def in_epoch(state: TrainState, images: Images, batches: Sequence[Tensor]) -> Images:
    """Images that are decoded on the fly as this epoch crops them, the next minibatches in advance; others as they are.

    batches: the indices of this rank's minibatches, in their order.
    """
    if not images.decoded:
        return images
    recipe, n, epoch = state.recipe, len(images), state.progress.epoch
    mixed = recipe.data.augment.mix != "none"

    def asked() -> Iterator[Tensor]:
        """The rows that will be asked for, in order: each micro-batch, and what it is mixed with."""
        for batch in batches:
            for index in batch.chunk(recipe.accumulate):
                yield index[index < n]
                if mixed:
                    others = partners(state, n, ImageStreams(derive_seed(recipe.seed, PARTNERS, epoch), index))
                    yield others[others < n]

    return images.cropped(derive_seed(recipe.seed, CROPS, epoch), recipe.data.augment.area or AREA, asked())


def with_extra(index: Tensor, n: int, count: int) -> Tensor:
    """The index of a minibatch in which `count` of its places, evenly spread, go to extra images.

    Image i of n gives way to row n + i, so that what is random of an extra image is a function of its row too. Evenly,
    because ranks and micro-batches get consecutive parts.

    >>> with_extra(torch.tensor([4, 0, 2, 3]), 10, 2)
    tensor([ 4, 10,  2, 13])
    """
    place = torch.arange(len(index))
    extra = (place + 1) * count // len(index) > place * count // len(index)
    return torch.where(extra, index + n, index)


def augmented(state: TrainState, images: Images, index: Tensor) -> Examples:
    """The images of an index as this epoch sees them, and their labels: soft ones where images are mixed.

    The other image is any of the training images, so that mixing does not depend on the batch or rank either. The index
    is on the images' device: to come back from a GPU it would have to wait.
    """
    seed, epoch, augment = state.recipe.seed, state.progress.epoch, state.recipe.data.augment

    def seen(rows: Tensor) -> Examples:
        batch, here = drawn(state, images, rows), to_device(rows, state.device)
        return state.floats(augment(batch.x, ImageStreams(derive_seed(seed, PIXELS, epoch), here))), batch.y

    x, y = seen(index)
    if augment.mix == "none":
        return x, y
    mix_seed = derive_seed(seed, PARTNERS, epoch)
    here = ImageStreams(mix_seed, index)
    other, y_other = seen(partners(state, len(images), here))
    draws = ImageStreams(mix_seed, to_device(index, state.device))
    draws.calls = here.calls  # the same streams continued on the device
    x, share = augment.mixed(x, other, draws)
    rows, others = (label_rows(each, len(state.data.classes), torch.get_default_dtype()) for each in (y, y_other))
    return x, share * rows + (1 - share) * others


def partners(state: TrainState, n: int, draws: ImageStreams) -> Tensor:
    """Which image each is mixed with: any of n training images, or as often as in a minibatch an extra one."""
    rows = draws.integers(n, 1)[:, 0]
    if state.extra is None:
        return rows
    size = min(state.recipe.batch_size, n)
    is_extra = draws.integers(size, 1)[:, 0] < state.recipe.data.extra_count(size)
    return rows + n * is_extra


def drawn(state: TrainState, images: Images, rows: Tensor) -> Images:
    """The images of these rows; those beyond the training images are extra ones, drawn with replacement."""
    device = state.device
    if state.extra is None:
        batch = taken(images, rows)
        return Images(to_device(batch.x, device), to_device(batch.y, device))
    own = rows < len(images)
    first = taken(images, rows[own]).to(device)
    seed = derive_seed(state.recipe.seed, EXTRA, state.progress.epoch)
    chosen = ImageStreams(seed, rows[~own]).integers(len(state.extra), 1)[:, 0]
    second = state.extra[chosen].to(device)
    x = to_float(second.x, torch.contiguous_format) if first.x.is_floating_point() else second.x
    place = torch.cat([own.nonzero(), (~own).nonzero()])[:, 0].argsort()  # the order of the rows again
    return Images(torch.cat([first.x, x])[place], torch.cat([first.y, second.y])[place])


def taken(images: Images, rows: Tensor) -> Images:
    """The images of these rows in memory; a picture that one rank cannot decode stops all ranks."""
    with distributed.raise_on_all_ranks() if images.decoded else nullcontext():
        return images[rows]


def ramped_attack(recipe: Recipe, epoch: int) -> PGD:
    """The inner attack in an epoch, counted from 0: the recipe's, or a smaller one on the ramp."""
    share = (epoch + 1) / (recipe.ramp * recipe.epochs) if recipe.ramp else 1.0
    attack = recipe.attack
    if share >= 1:
        return attack
    threat = replace(attack.threat, epsilon=share * attack.threat.epsilon)
    return replace(attack, threat=threat, step_size=share * attack.step_size)


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Train with deterministic algorithms or in TF32, where the recipe says so (docs/guides/scale.md)."""
    if recipe.precision == "tf32" and device.type != "cuda":
        raise RattleError(f"precision tf32 is for NVIDIA GPUs, this is {device.type}: use fp32")
    if recipe.precision == "bf16":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # on some kinds of device torch warns, and computes in float32
                torch.autocast(device.type, torch.bfloat16)
        except (RuntimeError, UserWarning) as reason:  # of an older GPU, or a kind that torch has no autocast for
            why = first_line(reason).rstrip(".")
            raise RattleError(f"precision bf16 is not for this device ({device.type}), use fp32: {why}") from reason
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
        torch.use_deterministic_algorithms(True)
    if recipe.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    except RuntimeError as reason:
        if recipe.deterministic and "deterministic" in str(reason):
            raise RattleError(f"--deterministic: {first_line(reason)}") from reason
        raise
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_float32_matmul_precision(before[1])
