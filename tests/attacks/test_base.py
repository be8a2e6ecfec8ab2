"""What every attack promises, one row for each attack and norm."""

from __future__ import annotations

import copy
import logging
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, PGD, AutoAttack, RayS, Square
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, spawn
from rattle.errors import RattleError
from rattle.inputs import accepts_channels_last, logits_of
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from rattle.weights import eval_mode
from support.attack_cases import ATTACKS, NORMS, ROWS, quick, robust, small_case


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_points_are_allowed_the_same_in_every_mode_and_the_model_is_left_as_it_was(name, norm) -> None:
    model, x, y = small_case()
    model.body[1].eval()  # a mode of its own
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    attack, points = quick(name, norm), []
    for mode in (nullcontext(), torch.no_grad(), torch.inference_mode()):
        with mode:
            images, labels = x.clone(), y.clone()  # inference tensors in the last one
            points.append(attack(model, images, labels, generator=torch.Generator().manual_seed(3)))
            assert not points[-1].requires_grad
    assert torch.equal(points[0], points[1])
    assert torch.equal(points[0], points[2])
    assert points[0].shape == x.shape
    assert attack.threat.contains(points[0], x, slack=1e-6).all()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.body[0].weight.grad is None


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_an_image_does_not_depend_on_its_neighbours(name, norm) -> None:
    model, x, y = small_case()
    draws = ImageStreams(0, torch.arange(len(x)))
    whole = quick(name, norm)(model, x, y, generator=draws[torch.arange(len(x))])
    some = torch.tensor([7, 2, 5])
    part = quick(name, norm)(model, x[some], y[some], generator=draws[some])
    torch.testing.assert_close(part, whole[some], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "norm"), [row for row in ROWS if row[0] != "pgd"])
def test_a_larger_ball_breaks_no_fewer_images(name, norm) -> None:
    model, x, y = small_case(n=20)
    counts = []
    for scale in (0.5, 1.0, 2.0, 4.0):
        x_adv = quick(name, norm, scale=scale)(model, x, y, generator=ImageStreams(0, torch.arange(len(x))))
        with eval_mode(model):
            counts.append(int(robust(model, x_adv, y).sum()))
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("name", "norm"), ROWS)
def test_nothing_moves_when_epsilon_is_zero(name, norm) -> None:
    model, x, y = small_case()
    assert torch.equal(quick(name, norm, scale=0.0)(model, x, y), x)


@pytest.mark.parametrize(("name", "norm"), [row for row in ROWS if row[0] != "pgd"])
def test_images_already_misclassified_are_returned_as_they_are(name, norm) -> None:
    model, x, _ = small_case()
    with eval_mode(model):
        wrong = (model(x).argmax(1) + 1) % 5
    assert torch.equal(quick(name, norm)(model, x, wrong), x)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(108, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.view(len(x), -1))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "pgd"])
def test_models_that_flatten_by_view_are_attacked_all_the_same(name, caplog) -> None:
    model, x = Views(), torch.rand(6, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    y = model(x.contiguous()).argmax(1).detach()
    norm = ATTACKS[name][1][0]
    with caplog.at_level(logging.WARNING, "rattle"):
        for _ in range(2):
            x_adv = quick(name, norm)(model, x, y)
    assert quick(name, norm).threat.contains(x_adv, x).all()
    assert len(caplog.records) == 1  # warned once


def test_a_broken_model_is_not_blamed_on_its_layout() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        accepts_channels_last(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), torch.rand(2, 3, 4, 4))


class Returns(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.what, self.body = what, nn.Sequential(nn.Flatten(), nn.Linear(72, 4))

    def forward(self, x: Tensor):
        return self.what(self.body(x))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "pgd"])
@pytest.mark.parametrize(
    ("what", "y", "message"),
    [
        (lambda z: (z[0], z), 0, "must return logits"),
        (lambda z: z[:, 0], 0, "must return logits"),
        (lambda z: z * float("nan"), 0, "NaN"),
        (lambda z: z * 1e39, 0, "infinite"),
        (lambda z: z, 4, "4 outputs"),
    ],
)
def test_what_is_no_classifier_is_refused_in_a_sentence(name, what, y, message) -> None:
    x = torch.rand(3, 2, 6, 6)
    with pytest.raises(RattleError, match=message):
        quick(name, ATTACKS[name][1][0])(Returns(what), x, torch.full((3,), y))


@pytest.mark.parametrize("name", list(ATTACKS))
def test_int32_labels_give_the_same_points(name) -> None:
    model, x, y = small_case()
    attack = quick(name, ATTACKS[name][1][0])
    points = [attack(model, x, labels, generator=ImageStreams(0, torch.arange(len(x)))) for labels in (y, y.int())]
    assert torch.equal(*points)


@pytest.mark.parametrize("name", list(ATTACKS))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x.numpy(), y), "images .* ndarray"),
        (lambda x, y: (x, y.tolist()), "labels .* list"),
        (lambda x, y: (x, y[:, None]), r"\[3, 1\]"),
        (lambda x, y: (x, y.bool()), "labels .* torch.bool"),
        (lambda x, y: (x * float("nan"), y), r"\[0, 1\]"),
        (lambda x, y: (x.byte(), y), "uint8"),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(name, change, message) -> None:
    x, y = torch.rand(3, 2, 6, 6), torch.zeros(3, dtype=torch.long)
    with pytest.raises(RattleError, match=message):
        quick(name, ATTACKS[name][1][0])(Returns(lambda z: z), *change(x, y))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (PGD, {"steps": 0}),
        (PGD, {"restarts": 2**31}),
        (PGD, {"loss": "hinge"}),
        (APGD, {"rho": 2.0}),
        (APGD, {"eps_schedule": True}),
        (FAB, {"overshoot": 0.5}),
        (Square, {"p_init": 0.0}),
        (RayS, {"threat": Threat(norm="l2")}),
        (AutoAttack, {"version": "best"}),
        (Threat, {"epsilon": -0.1}),
        (Threat, {"norm": "l0"}),
    ],
)
def test_a_bad_setting_is_refused_by_name(kind, setting) -> None:
    (name,) = setting
    with pytest.raises(RattleError, match=name):
        kind(**setting)


def test_a_failure_that_is_not_about_types_is_not_blamed_on_them() -> None:
    class Fails(Returns):
        def forward(self, x: Tensor):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        logits_of(Fails(None), torch.rand(3, 2, 6, 6, dtype=torch.float64))


def test_one_broken_target_ends_all_rows_of_its_image() -> None:
    row = torch.arange(6)
    image, x = torch.tensor([0, 0, 1, 1, 2, 2]), torch.rand(6, 4)
    rows, result = TargetRows(row, image, x, torch.zeros(6), torch.ones(6)), RunResult(x)
    result.pack_broken(rows, x + 1, torch.tensor([False, True, False, False, False, False]))
    assert rows.row.tolist() == [2, 3, 4, 5]
    assert rows.image.tolist() == [1, 1, 2, 2]
    assert torch.equal(rows.x, x[2:])
    assert result.score.tolist() == [-torch.inf, torch.inf] + 4 * [-torch.inf]
    assert torch.equal(result.x_adv[1], x[1] + 1)
    result.pack_broken(rows, x[2:], torch.zeros(4, dtype=torch.bool))
    assert len(rows.y) == 4


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_rows_and_images_are_views_of_each_other(norm, channels_last) -> None:
    x = torch.rand(3, 2, 4, 5)
    flat_model = FlatModel(Returns(lambda z: z), torch.rand(3, 2, 6, 6))
    flat_model.shape, flat_model.channels_last = x.shape[1:], channels_last
    rows = flat_model.flat(x)
    assert torch.equal(flat_model.images(rows), x)
    assert flat_model.images(rows).data_ptr() == rows.data_ptr()
    distance = Threat(norm=norm).distance
    torch.testing.assert_close(distance(rows, 0 * rows), distance(x, 0 * x))


def test_spawned_streams_are_independent() -> None:
    draws = ImageStreams(0, torch.arange(3))
    numbers = torch.stack([spawn(draws, k).uniform(100).flatten() for k in range(4)] + [draws.uniform(100).flatten()])
    assert len(numbers.unique()) > 0.999 * numbers.numel()
    assert (torch.corrcoef(numbers) - torch.eye(5)).abs().max() < 0.25
