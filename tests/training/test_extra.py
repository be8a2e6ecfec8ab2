"""Training with extra images: which are drawn, whatever the batch, rank or interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rattle.data import Augment
from rattle.data.registry import batches
from rattle.errors import RattleError
from rattle.recipes.recipe import Recipe
from rattle.training.minibatch import augmented, with_extra
from rattle.training.state import TrainState, init_state
from support.training import tiny

DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 17, (50, 8, 8, 1), dtype=np.uint8) * 15


def recipe_with(tmp_path: Path, method: str = "at", **settings: Any) -> Recipe:
    np.savez(tmp_path / "extra.npz", image=X, label=np.arange(50) % 10)
    recipe = tiny(method, save_minutes=0)
    data = replace(recipe.data, extra=str(tmp_path / "extra.npz"), **settings)
    return replace(recipe, data=data, attack=replace(recipe.attack, steps=1))


def state_of(recipe: Recipe) -> TrainState:
    return init_state(recipe, recipe.data.load())


def test_extra_images_take_places_evenly_spread_and_originals_are_seen_once() -> None:
    epoch = [with_extra(index, 192, 44) for index in batches(192, 64, seed=3, epoch=1)]
    extra = [(index >= 192) for index in epoch]
    assert [int(each.sum()) for each in extra] == [44, 44, 44]
    assert all(abs(int(part.sum()) - 11) <= 1 for each in extra for part in each.chunk(4))  # for ranks, micro-batches
    rows = torch.cat(epoch)
    assert len(rows.unique()) == 192  # no original twice, and each extra place has random numbers of its own
    assert torch.equal(torch.where(rows < 192, rows, rows - 192).sort().values, torch.arange(192))


def test_every_image_of_the_file_is_drawn_with_its_own_label(tmp_path: Path) -> None:
    state = state_of(recipe_with(tmp_path))
    x, y = augmented(state, state.data.train, torch.arange(192, 384))
    assert not state.recipe.data.augment.pad, "the images come as they are"
    own, levels = torch.from_numpy(X[..., 0]), (255 * x[:, 0]).round().to(torch.uint8)
    found = (levels[:, None] == own[None]).flatten(2).all(2)
    assert found.any(1).all()
    assert torch.equal(found.float().argmax(1) % 10, y)
    assert found.any(0).float().mean() > 0.9  # 192 draws with replacement of 50
    x, y = augmented(state, state.data.train, torch.arange(192))
    assert torch.equal(y, state.data.train.y)
    assert torch.equal((255 * x).round().to(torch.uint8), state.data.train.x)


def test_images_follow_from_epoch_and_row(tmp_path: Path) -> None:
    state = state_of(recipe_with(tmp_path, augment=Augment(pad=1, flip=True)))
    rows = torch.tensor([5, 197, 6])
    x, y = augmented(state, state.data.train, rows)
    for i, row in enumerate(rows):  # whatever the batch
        alone = augmented(state, state.data.train, row[None])
        assert torch.equal(alone[0][0], x[i])
        assert torch.equal(alone[1][0], y[i])
    state.progress.epoch = 1
    assert not torch.equal(augmented(state, state.data.train, rows)[0], x)
    assert torch.equal(y[[0, 2]], state.data.train.y[5:7])


def test_a_method_that_cannot_learn_from_them_refuses(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match=r"^MMA remembers every training image once an epoch: no data"):
        recipe_with(tmp_path, method="mma")
