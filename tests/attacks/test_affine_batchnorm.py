"""BatchNorm replaced by a multiply-add during attacks: same logits, gradients and adversarial points, and restored."""

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.attacks.batchnorm import affine_batchnorm
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.weights import eval_mode


def with_random_statistics(model: nn.Module) -> nn.Module:
    """The model in eval mode, its BatchNorm layers with random statistics and weights."""
    for norm in (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.1)
    return model.eval()


@pytest.mark.parametrize("name", ["preact18", "resnet18", "vgg16", "mobilenetv2", "cnn"])
def test_batchnorm_as_a_multiply_add_gives_the_plain_logits_and_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = with_random_statistics(create_model(name, classes=5, width=4))
    x = torch.rand(3, 3, 32, 32, requires_grad=True)
    plain = model(x)
    (gradient,) = torch.autograd.grad(plain.logsumexp(1).sum(), x)
    with affine_batchnorm(model):
        fast = model(x)
        (fast_gradient,) = torch.autograd.grad(fast.logsumexp(1).sum(), x)
    assert torch.allclose(plain, fast, rtol=1e-4, atol=1e-5)
    assert torch.allclose(gradient, fast_gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))
    assert torch.equal(model(x), plain)  # restored
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(4), (6, 4)),
        (nn.BatchNorm1d(4, affine=False), (6, 4, 3)),
        (nn.BatchNorm3d(4), (2, 4, 2, 2, 2)),
        (nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 2, 2)),
    ],
)
def test_every_kind_of_batchnorm_gives_its_plain_output_under_attack(norm: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = norm.eval() if getattr(norm, "running_mean", None) is None else with_random_statistics(norm)
    x = torch.rand(shape)
    plain = model(x)
    with attack_mode(model):
        assert torch.allclose(model(x), plain, atol=1e-6)


def test_input_in_another_precision_and_a_users_own_batchnorm_are_left_alone() -> None:
    class Own(nn.BatchNorm2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1

    model, x = Own(2).eval(), torch.rand(3, 2, 4, 4)
    with affine_batchnorm(model):
        assert torch.equal(model(x), model.forward(x))
        assert "forward" not in vars(model)
    plain = nn.BatchNorm2d(2).eval()
    with affine_batchnorm(plain), torch.no_grad():
        assert plain(x.bfloat16()).dtype == torch.bfloat16


def test_batchnorm_is_restored_after_an_error() -> None:
    model = create_model("cnn", classes=3, width=2, channels=1).eval()
    with pytest.raises(ZeroDivisionError), affine_batchnorm(model):
        raise ZeroDivisionError
    assert not any("forward" in vars(module) for module in model.modules())


def test_an_attack_with_multiply_adds_finds_the_points_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = with_random_statistics(create_model("cnn", classes=5, width=8)), torch.rand(6, 3, 8, 8)
    y, attack = torch.arange(6) % 5, PGD(steps=5)
    fast = attack(model, x, y, generator=ImageStreams(0, torch.arange(6)))
    monkeypatch.setattr("rattle.attacks.base.affine_batchnorm", eval_mode)
    plain = attack(model, x, y, generator=ImageStreams(0, torch.arange(6)))
    assert float(((fast - plain).abs() > 1e-6).double().mean()) < 0.01
    exact = attack(model.double(), x.double(), y, generator=ImageStreams(0, torch.arange(6)))
    monkeypatch.undo()  # in double precision rounding changes no gradient's sign
    assert torch.allclose(attack(model, x.double(), y, generator=ImageStreams(0, torch.arange(6))), exact, atol=1e-12)
