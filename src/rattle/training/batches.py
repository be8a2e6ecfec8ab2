"""What a step takes: the images of a minibatch as the epoch sees them, extra ones too, and the epoch's attack."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.data import Images, to_device, to_float
from rattle.objectives.base import Memory, Moment, StepContext, label_rows
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.training.state import ATTACK, CROPS, EXTRA, PARTNERS, PIXELS, TrainState

AREA = 0.08  # smallest share of a picture in a random crop, as usual for ImageNet


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


def augmented(state: TrainState, images: Images, index: Tensor) -> tuple[Tensor, Tensor]:
    """The images of an index as this epoch sees them, and their labels: soft ones where images are mixed.

    The other image is any of the training images, so that mixing does not depend on the batch or rank either. The index
    is on the images' device: to come back from a GPU it would have to wait.
    """
    seed, epoch, augment = state.recipe.seed, state.progress.epoch, state.recipe.data.augment

    def seen(rows: Tensor) -> tuple[Tensor, Tensor]:
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
    return x, share * as_rows(state, y) + (1 - share) * as_rows(state, y_other)


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
    labels = as_rows(state, first.y) if second.y.ndim == 2 else first.y
    place = torch.cat([own.nonzero(), (~own).nonzero()])[:, 0].argsort()  # the order of the rows again
    return Images(torch.cat([first.x, x])[place], torch.cat([labels, second.y.to(labels.dtype)])[place])


def taken(images: Images, rows: Tensor) -> Images:
    """The images of these rows in memory; a picture that one rank cannot decode stops all ranks."""
    with distributed.raise_on_all_ranks() if images.decoded else nullcontext():
        return images[rows]


def as_rows(state: TrainState, y: Tensor) -> Tensor:
    """Labels as rows of probabilities, in the precision that soft labels have here."""
    return label_rows(y, len(state.data.classes), y.dtype if y.ndim == 2 else torch.get_default_dtype())


def context_of(state: TrainState, index: Tensor, place: int = 0) -> StepContext:
    """What a step on the images of an index knows besides them; place: of the first of them in the minibatch."""
    index = to_device(index, state.device)
    recipe, progress = state.recipe, state.progress
    return StepContext(
        moment=Moment(epoch=progress.epoch, epochs=recipe.epochs, step=progress.step),
        draws=ImageStreams(derive_seed(recipe.seed, ATTACK, progress.epoch), index),
        memory=Memory(state.memory, index),
        classes=len(state.data.classes),
        teachers=state.teachers,
        place=place,
        reduce=distributed.mean_over_ranks,
    )


def ramped_attack(recipe: Recipe, epoch: int) -> PGD:
    """The inner attack in an epoch, counted from 0: the recipe's, or a smaller one on the ramp."""
    share = (epoch + 1) / (recipe.ramp * recipe.epochs) if recipe.ramp else 1.0
    attack = recipe.attack
    if share >= 1:
        return attack
    threat = replace(attack.threat, epsilon=share * attack.threat.epsilon)
    return replace(attack, threat=threat, step_size=share * attack.step_size)
