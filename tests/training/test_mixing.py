"""CutMix and mixup: shares and labels by hand, whatever the batch, up the loss to the mixed label."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.data import Augment
from rattle.errors import RattleError
from rattle.objectives import AT, Trades
from rattle.objectives.gat import GAT
from rattle.objectives.n_fgsm import NFGSM
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.threat import Threat
from rattle.training.minibatch import augmented
from rattle.training.state import init_state
from support.inner_attacks import our_step, problem
from support.training import tiny

KINDS = ["cutmix", "mixup"]
SMALL = PGD(threat=Threat(epsilon=0.1), steps=2, step_size=0.1)


def mixing(kind: str, method: str = "trades") -> dict:
    recipe = get_recipe(f"digits-linf-cnn-{method}")
    return {"data": replace(recipe.data, augment=Augment(pad=1, mix=kind), train_size=80, val_size=20)}


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_holds_its_share_of_both(kind: str) -> None:
    black, white = torch.zeros(300, 3, 8, 10), torch.ones(300, 3, 8, 10)
    x, share = Augment(mix=kind).mixed(black, white, ImageStreams(0, torch.arange(300)))
    torch.testing.assert_close(1 - x.mean((1, 2, 3)), share[:, 0])
    assert share.min() < 0.3  # a large rectangle is clipped at the edge, as published
    assert share.max() > 0.9
    values = x.unique()
    assert (len(values) == 2) == (kind == "cutmix")  # pixels of one or the other, or of both
    if kind == "cutmix":
        rectangle = x[:, 0].amax(2)[:, :, None] * x[:, 0].amax(1)[:, None, :]
        assert torch.equal(rectangle, x[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_images_and_labels_do_not_depend_on_the_batch(kind: str) -> None:
    recipe = tiny("trades", **mixing(kind))
    state = init_state(recipe, recipe.data.load())
    index = torch.arange(12)
    x, y = augmented(state, state.data.train, index)
    assert y.shape == (12, 10)
    torch.testing.assert_close(y.sum(1), torch.ones(12))
    assert bool(((y > 0).sum(1) <= 2).all())
    assert bool(((y > 0).sum(1) == 2).any())
    parts = [augmented(state, state.data.train, part) for part in index.split(5)]
    assert torch.equal(torch.cat([part for part, _ in parts]), x)
    assert torch.equal(torch.cat([part for _, part in parts]), y)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("objective", [AT(), Trades(), GAT(), NFGSM()], ids=lambda objective: objective.title)
def test_one_hot_rows_are_the_labels_they_stand_for(objective: AT) -> None:
    given = problem(10)
    soft = replace(given, y=F.one_hot(given.y, 10).double())
    hard, rows = our_step(objective, SMALL, given), our_step(objective, SMALL, soft)
    assert rows.loss == pytest.approx(hard.loss, rel=1e-9)
    torch.testing.assert_close(rows.batch.x_adv, hard.batch.x_adv)
    torch.testing.assert_close(rows.gradients, hard.gradients)


@pytest.mark.parametrize(
    ("method", "attack", "taker"),
    [
        ("trades-2nd", {}, "TRADES + 1st + 2nd"),
        ("fat", {}, "FAT"),
        ("at", {"attack": PGD(loss="cw")}, "attack.loss cw"),
    ],
)
def test_what_needs_whole_labels_refuses_to_mix(method: str, attack: dict, taker: str) -> None:
    with pytest.raises(RattleError, match=re.escape(f"makes soft labels, which {taker} cannot take")):
        replace(get_recipe(f"digits-linf-cnn-{method}"), **attack, **mixing("cutmix"))
