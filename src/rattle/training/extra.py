"""Extra images of a run: loaded once, and put into every minibatch."""

import torch
from torch import Tensor

from rattle.data import Dataset, Images
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed


def load_extra(recipe: Recipe, data: Dataset) -> Images | None:
    """The extra images that the recipe names; refuses those that its method cannot learn from."""
    recipe.data.extra_count(min(recipe.batch_size, len(data.train)))
    if distributed.active():  # one rank unpacks the file while the others wait to map it
        distributed.on_main(lambda: recipe.data.load_extra(data))
    extra = recipe.data.load_extra(data)
    if extra is not None and extra.y.ndim == 2:
        recipe.check_soft_labels(f"{recipe.data.extra} has soft labels")
    return extra


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
