"""Square against exact distances, its schedule and its patches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import Square
from rattle.attacks.rows import spawn
from rattle.attacks.square import DRAWN_AHEAD, bump, patch_side
from rattle.errors import RattleError
from rattle.losses import cw
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.attack_cases import NORMS, linear, robust, robust_after


@pytest.mark.parametrize("classes", [2, 5])
def test_the_linf_result_on_a_linear_model_is_exact(classes) -> None:
    case = linear(classes)
    threat = case.threat("linf")
    found, safe = robust_after(Square(threat=threat, queries=2000), case), case.distance["linf"] > threat.epsilon
    assert not (safe & ~found).any()
    assert (found == safe).float().mean() >= (1 if classes == 2 else 0.9)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_l2_and_l1_break_what_is_near_and_nothing_that_is_safe(norm) -> None:
    case = linear(3)
    epsilon = float(case.distance[norm].median())
    safe, found = case.distance[norm] > epsilon, []
    for scale in (1.0, 4.0):
        found.append(robust_after(Square(threat=Threat(norm=norm, epsilon=scale * epsilon), queries=300), case))
    assert not (safe & ~found[0]).any()
    assert int(found[1].sum()) <= 4


def test_patches_shrink_as_in_the_reference() -> None:
    from pyautoattack.square import SquareAttack

    theirs = SquareAttack(None, p_init=0.8, n_queries=5000, eps=0.1, resc_schedule=False)
    for query in (0, 10, 11, 50, 51, 201, 501, 1001, 2001, 4001, 6001, 8001):
        side = max(round((theirs.p_selection(query) * 1024) ** 0.5), 1)
        assert patch_side(query, 0.8, 32, 32, "linf") == side
    assert patch_side(0, 0.8, 4, 9, "linf") == 4
    assert all(patch_side(q, 0.8, 32, 32, "l2") % 2 for q in range(0, 5000, 7))


@pytest.mark.parametrize(("norm", "theirs"), [("l2", "L2"), ("l1", "L1")])
@pytest.mark.parametrize("side", [1, 2, 3, 6, 11])
def test_bumps_are_the_references(norm, theirs, side) -> None:
    from pyautoattack.square import SquareAttack

    attack = SquareAttack(None, norm=theirs, eps=0.1, device="cpu")
    patch = attack.eta(side)
    mine = bump(side, norm)
    assert torch.allclose(patch, mine, atol=1e-6) or torch.allclose(patch, mine.T, atol=1e-6)


def plain_square(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, queries: int, draws: ImageStreams) -> Tensor:
    """Algorithms 1 and 2 word by word: a copy of the image a query, every query asked. At most BLOCK queries."""
    c, h, w = x.shape[1:]
    best = (x + epsilon * draws.signs(c, 1, w).to(x)).clamp(0, 1)
    loss = cw(model(best), y)
    places, signs = draws.uniform(DRAWN_AHEAD, 5).to(x), draws.signs(DRAWN_AHEAD, c).to(x)
    for query in range(queries):
        side = patch_side(query, 0.8, h, w, "linf")
        for i in (loss <= 0).nonzero().squeeze(1).tolist():
            top, left = int(places[i, query, 0] * (h - side)), int(places[i, query, 1] * (w - side))
            patch, new = (slice(None), slice(top, top + side), slice(left, left + side)), best[i].clone()
            new[patch] = (x[i][patch] + epsilon * signs[i, query].view(c, 1, 1)).clamp(0, 1)
            risen = cw(model(new[None]), y[i : i + 1])[0]
            if risen > loss[i]:
                best[i], loss[i] = new, risen
    return best


@torch.no_grad()
def test_the_linf_search_is_algorithms_1_and_2() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 5, 4)).double()
    x = torch.rand(12, 3, 8, 7, dtype=torch.float64)
    model[3].bias -= model(x).mean(0)  # near every boundary
    y = model(x).argmax(1)
    attack = Square(threat=Threat(epsilon=0.05), queries=DRAWN_AHEAD)
    found = attack(model, x, y, generator=ImageStreams(0, torch.arange(12)))
    draws = spawn(ImageStreams(0, torch.arange(12)), torch.zeros(12, dtype=torch.long))
    plain = plain_square(model, x, y, 0.05, DRAWN_AHEAD, draws)
    assert 0 < robust(model, found, y).sum() < 12  # some images leave the batch on the way
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (2, 14, 9)])
def test_any_image_size_is_taken(norm, shape) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 3))
    x = torch.rand(4, *shape)
    threat = Threat(norm=norm, epsilon=0.1)
    x_adv = Square(threat=threat, queries=20)(model, x, model(x).argmax(1).detach())
    assert threat.contains(x_adv, x).all()


def test_inputs_that_are_not_images_are_refused() -> None:
    with pytest.raises(RattleError, match=r"\[n, C, H, W\]"):
        Square()(nn.Linear(4, 2), torch.rand(3, 4), torch.zeros(3, dtype=torch.long))
