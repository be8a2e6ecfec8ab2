"""What a step begins with: the images of a minibatch as the epoch sees them, and the inner attack of the epoch."""

from dataclasses import replace

from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.data import Images, to_device
from rattle.objectives.base import Memory, Moment, StepContext
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.recipe import Recipe
from rattle.training.state import ATTACK, PARTNERS, PIXELS, TrainState


def augmented(state: TrainState, images: Images, index: Tensor) -> tuple[Tensor, Tensor]:
    """The images of an index as this epoch sees them, and their labels: soft ones where images are mixed.

    The other image is any of the training images, so that mixing does not depend on the batch or rank either. The index
    is on the images' device: to come back from a GPU it would have to wait.
    """
    seed, epoch, augment = state.recipe.seed, state.progress.epoch, state.recipe.data.augment

    def seen(rows: Tensor) -> tuple[Tensor, Tensor]:
        batch = images[rows]
        x, y, here = (to_device(values, state.device) for values in (batch.x, batch.y, rows))
        return state.floats(augment(x, ImageStreams(derive_seed(seed, PIXELS, epoch), here))), y

    x, y = seen(index)
    if augment.mix == "none":
        return x, y
    partners, draws = (
        ImageStreams(derive_seed(seed, PARTNERS, epoch), rows) for rows in (index, to_device(index, state.device))
    )
    other, y_other = seen(partners.integers(len(images), 1)[:, 0])
    draws.calls = partners.calls  # the same streams, going on
    x, share = augment.mixed(x, other, draws)
    hard, hard_other = (nn.functional.one_hot(labels, len(state.data.classes)).to(x.dtype) for labels in (y, y_other))
    return x, share * hard + (1 - share) * hard_other


def context_of(state: TrainState, index: Tensor) -> StepContext:
    """What a step on the images of an index knows besides them."""
    index = to_device(index, state.device)
    recipe, progress = state.recipe, state.progress
    return StepContext(
        moment=Moment(epoch=progress.epoch, epochs=recipe.epochs, step=progress.step),
        draws=ImageStreams(derive_seed(recipe.seed, ATTACK, progress.epoch), index),
        memory=Memory(state.memory, index),
        classes=len(state.data.classes),
        teachers=state.teachers,
    )


def grown(recipe: Recipe, epoch: int) -> PGD:
    """The inner attack in an epoch, counted from 0: the recipe's, or a smaller one on the ramp."""
    attack, share = recipe.attack, (epoch + 1) / (recipe.ramp * recipe.epochs) if recipe.ramp else 1.0
    if share >= 1:
        return attack
    threat = replace(attack.threat, epsilon=share * attack.threat.epsilon)
    return replace(attack, threat=threat, step_size=share * attack.step_size)
