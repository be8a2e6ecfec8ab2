"""Borrowed weights go back bit for bit; noise, AWP and averaging do what their papers say."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.weights import AWP, EMA, SWA, Noise, eval_mode, filter_rms, frozen_bn_stats, perturbed

values = st.floats(width=32, allow_nan=False)


def small() -> nn.Module:
    return create_model("cnn", classes=3, channels=1, width=2)


def bits(model: nn.Module) -> list[bytes]:
    return [v.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for v in model.state_dict().values()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=6), st.booleans())
def test_perturbed_restores_bit_for_bit_also_after_an_error(pairs: list[tuple[float, float]], fails: bool) -> None:
    model = nn.Linear(len(pairs), 1, bias=False)
    w, delta = (torch.tensor(part).view(1, -1) for part in zip(*pairs, strict=True))
    with torch.no_grad():
        model.weight.copy_(w)
    before, seen, raised = bits(model), [], pytest.raises(KeyError) if fails else nullcontext()
    with raised, perturbed(model, {"weight": delta}):
        seen.append(model.weight.detach().clone())
        if fails:
            raise KeyError("body")
    assert torch.equal(seen[0].nan_to_num(), (w + delta).nan_to_num())
    assert bits(model) == before


def test_gradients_taken_inside_perturbed_stay_with_the_weights() -> None:
    model, x = nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0]])
    with perturbed(model, {"weight": torch.ones(1, 2)}):
        model(x).square().sum().backward()
        inside = float(2 * model(x).detach())
    assert torch.allclose(model.weight.grad, inside * x)
    torch.optim.SGD(model.parameters(), lr=0.1).step()  # w kept its identity: the optimizer may go on


def fail_inside(borrowed: AbstractContextManager, check: Callable[[], bool]) -> None:
    with borrowed:
        assert check()
        raise KeyError("body")


def test_eval_mode_gives_each_module_its_own_mode_back() -> None:
    model = small().train()
    model.body[1].eval()
    modes = [m.training for m in model.modules()]
    with pytest.raises(KeyError):
        fail_inside(eval_mode(model), lambda: not any(m.training for m in model.modules()))
    assert [m.training for m in model.modules()] == modes


def test_frozen_bn_stats_normalises_by_the_batch_and_moves_no_statistics() -> None:
    model, x = small().train(), torch.rand(6, 1, 8, 8)
    twin = small()
    twin.load_state_dict(model.state_dict())
    wanted = twin(x)
    before = bits(model)
    with pytest.raises(KeyError):
        fail_inside(frozen_bn_stats(model), lambda: torch.equal(model(x), wanted))
    assert bits(model) == before
    assert bits(twin) != before
    model(x)
    assert bits(model) == bits(twin)  # and they move again afterwards


def test_noise_has_its_standard_deviation_on_every_matrix_and_nowhere_else() -> None:
    model = create_model("cnn", classes=10, channels=1, width=16)
    u = Noise(sigma=0.01)(model, generator=torch.Generator().manual_seed(0))
    assert set(u) == {name for name, p in model.named_parameters() if p.ndim > 1}
    drawn = torch.cat([v.flatten() for v in u.values()])
    assert float(drawn.std()) == pytest.approx(0.01, rel=0.03)
    assert abs(float(drawn.mean())) < 0.001
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert Noise(sigma=0)(model, generator=generator) == {}
    assert torch.equal(generator.get_state(), before)


def test_awp_moves_each_matrix_by_gamma_of_its_length_along_the_gradient_and_leaves_the_model_alone() -> None:
    model, x, y = small().train(), torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    before, awp = bits(model), AWP(gamma=0.01)
    v = awp(model, awp.gradients(model, lambda: F.cross_entropy(model(x), y)))
    assert bits(model) == before
    assert all(p.grad is None for p in model.parameters())
    assert set(v) == {name for name, p in model.named_parameters() if p.ndim > 1}  # biases and norms stay put
    F.cross_entropy(model(x), y).backward()
    for name, moved in v.items():
        p = model.get_parameter(name)
        torch.testing.assert_close(moved, 0.01 * p.detach().norm() * p.grad / p.grad.norm(), rtol=1e-4, atol=1e-7)


def test_awp_passes_over_weights_that_are_frozen_or_unused_or_flat() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].weight.requires_grad_(False)
    awp, x = AWP(), torch.ones(1, 2)
    d = awp.gradients(model, lambda: model["frozen"](model["used"](x)).sum())
    assert set(d) == {"used.weight"}
    flat = awp(model, {"used.weight": torch.zeros(2, 2)})
    assert torch.equal(flat["used.weight"], torch.zeros(2, 2))


def test_ema_is_the_moving_average_and_swa_the_mean() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema, swa = EMA(decay=0.9).averaged(model), SWA().averaged(model)
    for w in (1.0, 2.0, 4.0):
        with torch.no_grad():
            model.weight.fill_(w)
        ema.update_parameters(model)
        swa.update_parameters(model)
    assert float(ema.module.weight.detach()) == pytest.approx(0.9 * (0.9 * 1 + 0.1 * 2) + 0.1 * 4)
    assert float(swa.module.weight.detach()) == pytest.approx((1 + 2 + 4) / 3)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (Noise, {"sigma": -1.0}),
        (Noise, {"scale": "layer"}),
        (AWP, {"gamma": 0.0}),
        (SWA, {"start": 1.0}),
        (EMA, {"decay": 1.0}),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind: type, setting: dict) -> None:
    with pytest.raises(RattleError, match=rf"^(noise|awp|average)\.{next(iter(setting))} must be "):
        kind(**setting)


def test_noise_in_proportion_to_filters_is_as_long_as_sigma_times_each() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 6, 5), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(600, 4))
    with torch.no_grad():
        model[0].weight[2] *= 100
        model[3].weight[1] = 0
    u = Noise(sigma=0.1, scale="filter")(model, generator=torch.Generator().manual_seed(1))
    assert set(u) == {"0.weight", "3.weight"}
    for name, delta in u.items():
        lengths = model.get_parameter(name).detach().flatten(1).norm(dim=1)
        assert torch.allclose(delta.flatten(1).norm(dim=1), 0.1 * lengths, rtol=0.2)
    assert torch.equal(filter_rms(model[3].weight.detach())[1], torch.zeros(1))


def test_the_two_steps_may_have_a_sigma_each() -> None:
    noise = Noise(sigma=0.5, scale="filter", inner=0.01)
    assert noise.at("inner") == Noise(sigma=0.01, scale="filter")
    assert noise.at("outer") == Noise(sigma=0.5, scale="filter")
    assert Noise(inner=0.0).at("inner")(small()) == {}


def test_u_of_weights_on_another_device_is_drawn_there_and_moves_the_generator_on() -> None:
    model, generator = small().to("meta"), torch.Generator().manual_seed(0)
    before = generator.get_state()
    u = Noise()(model, generator=generator)
    assert {name: (d.shape, d.device) for name, d in u.items()} == {
        name: (p.shape, p.device) for name, p in model.named_parameters() if p.ndim > 1
    }
    assert not torch.equal(generator.get_state(), before)
