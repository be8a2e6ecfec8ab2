"""The faster gradient by the image: torch's own numbers, for every geometry, and nothing left behind."""

import copy

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.attacks.fast_paths import MOST_CHANNELS, FirstLayer, attack_mode, fast_first_layer
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.weights import eval_mode

# channels, kernel, stride, padding
GEOMETRIES = [
    (3, 3, 1, 1),
    (3, 3, 2, 1),
    (1, 5, 2, 2),
    (3, 4, 4, 0),
    (2, 3, 2, 0),
    (4, 1, 1, 0),
    (3, (3, 5), (1, 2), (0, 2)),
]
LAYOUTS = [torch.channels_last, torch.contiguous_format]


def input_gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(model(leaf).sin().sum(), leaf)[0]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_gradient_is_that_of_torch_in_the_layout_of_the_image(geometry: tuple, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    channels, kernel, stride, padding = geometry
    conv = nn.Conv2d(channels, 6, kernel, stride, padding).double().requires_grad_(False)
    x = torch.rand(3, channels, 9, 10, dtype=torch.float64).to(memory_format=layout)
    plain = input_gradient(conv, x)
    with fast_first_layer(conv):
        assert isinstance(conv.forward, FirstLayer)
        fast = input_gradient(conv, x)
        assert torch.autograd.gradgradcheck(lambda z: conv(z).sin(), (x[:1].clone().requires_grad_(),))
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)
    assert fast.stride() == plain.stride()
    assert "forward" not in vars(conv)


def test_many_images_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 4, 3, padding=1).double().requires_grad_(False), torch.rand(5, 3, 6, 6, dtype=torch.float64)
    plain = input_gradient(conv, x)
    monkeypatch.setattr("rattle.attacks.fast_paths.MOST_NUMBERS", 2 * 27 * 36)  # two images at once
    with fast_first_layer(conv):
        torch.testing.assert_close(input_gradient(conv, x), plain, rtol=1e-12, atol=1e-12)


def test_a_copy_of_a_layer_under_attack_has_its_own_weights() -> None:
    conv, x = nn.Conv2d(1, 2, 3, bias=False).requires_grad_(False), torch.rand(1, 1, 4, 4, requires_grad=True)
    with fast_first_layer(conv):
        twin = copy.deepcopy(conv)
        twin.weight.zero_()
        assert not twin(x).any()
        assert conv(x).all()


def test_gradients_by_weights_are_there_where_they_are_wanted() -> None:
    conv, x = nn.Conv2d(3, 2, 3), torch.rand(2, 3, 5, 5, requires_grad=True)
    with fast_first_layer(conv):
        conv(x).sum().backward()
    assert conv.weight.grad is not None
    assert x.grad is not None


def test_other_layers_and_a_users_own_are_left_alone() -> None:
    class Own(nn.Conv2d):
        pass

    wide, dilated = nn.Conv2d(MOST_CHANNELS + 1, 2, 3), nn.Conv2d(3, 2, 3, dilation=2)
    layers = [wide, dilated, Own(3, 2, 3), nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 2, 3, padding="same")]
    layers += [nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect")]
    with fast_first_layer(nn.ModuleList(layers)):
        assert not any("forward" in vars(layer) for layer in layers)


def test_an_attack_finds_the_points_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = create_model("cnn", classes=5, width=8).double().eval(), torch.rand(6, 3, 8, 8, dtype=torch.float64)
    y, attack = torch.arange(6) % 5, PGD(steps=5)
    fast = attack(model, x, y, generator=ImageStreams(0, torch.arange(6)))
    monkeypatch.setattr("rattle.attacks.fast_paths.fast_first_layer", eval_mode)
    plain = attack(model, x, y, generator=ImageStreams(0, torch.arange(6)))
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)  # no sign of a gradient differs


def test_bf16_gives_a_gradient_in_the_precision_of_the_image() -> None:
    torch.manual_seed(0)
    model, x = create_model("cnn", classes=5, width=8).eval(), torch.rand(4, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        plain = input_gradient(model, x)
        with attack_mode(model):
            fast = input_gradient(model, x)
    assert fast.dtype == torch.float32
    assert float((fast - plain).norm() / plain.norm()) < 0.05  # bf16 has three digits
