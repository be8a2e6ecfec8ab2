"""The networks: counts, shapes, heads, and the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.errors import RattleError
from rattle.inputs import trains_channels_last
from rattle.models import check_width, find_head
from rattle.models.layers import conv1x1
from rattle.models.registry import BUILDERS, create_model

SLIM = dict.fromkeys(BUILDERS, 4) | {name: 1 for name in BUILDERS if name.startswith("wrn")} | {"wrn10-2-dm": 4}
SMALL = [name for name in SLIM if name not in ("wrn34-20", "wrn70-16", "wrn34-10")]
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))


def count(name: str, classes: int = 10) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in create_model(name, classes=classes).parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("preact18", 11_172_170),
        ("preact50", 23_513_162),
        ("resnet18", 11_173_962),
        ("wrn28-10", 36_479_194),
        ("wrn34-10", 46_160_474),
        ("wrn70-16", 266_796_506),
        ("wrn28-10-dm", 36_479_194),
        ("vgg16", 14_728_266),
        ("mobilenetv2", 2_296_922),
        ("cnn-slim", 43_226),
        ("cnn-strided", 165_114),
    ],
)
def test_a_network_has_as_many_parameters_as_the_published_one(name: str, parameters: int) -> None:
    assert count(name) == parameters


def slim(name: str, **options: object) -> nn.Module:
    return create_model(name, **{"classes": 5, "width": SLIM[name], **options})


X = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SMALL)
def test_a_network_is_its_features_and_then_its_head_and_every_weight_counts(name: str) -> None:
    model = slim(name)
    model(torch.rand(4, 3, 16, 16)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    features = model.eval().features(X)
    assert features.shape == (2, model.head.in_features)
    assert torch.equal(model.head(features), model(X))
    assert find_head(model) is find_head(model, example=X) is model.head
    check_width(model, X, 5)


@torch.no_grad()
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (3, 64)])
def test_a_network_takes_images_of_any_usual_size(name: str, channels: int, size: int) -> None:
    logits = slim(name, channels=channels)(torch.rand(2, channels, size, size))
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", SMALL)
def test_layout_and_normalisation_inside_change_no_logits_and_silu_does(name: str) -> None:
    inside, outside, silu = slim(name, normalise=CIFAR), slim(name), slim(name, activation="silu")
    outside.load_state_dict({k: v for k, v in inside.state_dict().items() if not k.startswith("normalise.")})
    silu.load_state_dict(outside.state_dict())
    mean, std = (torch.tensor(s).reshape(1, 3, 1, 1) for s in CIFAR)
    normalised, expected = (X - mean) / std, inside.eval()(X)
    torch.testing.assert_close(outside.eval()(normalised), expected)
    assert not torch.allclose(silu.eval()(normalised), expected)
    assert not any(isinstance(m, nn.ReLU) for m in silu.modules())
    last = inside.to(memory_format=torch.channels_last)(X.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected, rtol=1e-4, atol=1e-5)


def test_a_wide_resnet_starts_from_kaiming_fan_out() -> None:
    model = create_model("wrn10-2", classes=10)
    deviation = float(model.block3[0].conv2.weight.detach().std())
    assert deviation == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)
    assert not model.head.bias.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "preact19"}, "did you mean 'preact1"),
        ({"name": "preact18", "classes": 1}, "classes must be at least 2"),
        ({"name": "preact18", "activation": "relo"}, "did you mean 'relu'"),
        ({"name": "preact18", "width": 0}, "at least 1"),
        ({"name": "preact18", "normalise": ((0.5,) * 2, (0.5,) * 2)}, "each of 3 channels"),
        ({"name": "preact18", "normalise": ((0.5,) * 3, (0.0,) * 3)}, "std > 0"),
    ],
)
def test_a_network_with_invalid_options_is_refused(options: dict, words: str) -> None:
    with pytest.raises(RattleError, match=words):
        create_model(**{"classes": 10} | options)


class TwoLinear(nn.Module):
    """Its last linear layer by definition is not the one that gives the logits."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.answer = nn.Linear(12, 3)
        self.side = nn.Linear(12, 5)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.flatten(1)
        self.side(h)
        out = self.answer(h)
        return out if self.scale == 1 else self.scale * out


def test_the_head_is_the_layer_whose_output_is_the_logits() -> None:
    model, x = TwoLinear(), torch.rand(2, 3, 2, 2)
    assert find_head(model, example=x) is model.answer
    assert find_head(model, "side") is model.side
    assert model.training
    assert not model.answer._forward_hooks


def test_a_head_that_does_not_exist_is_refused() -> None:
    x = torch.rand(2, 3, 2, 2)
    with pytest.raises(RattleError, match="straight out of a linear layer"):
        find_head(TwoLinear(scale=2.0), example=x)
    with pytest.raises(RattleError, match=r"named 'fc'; .*--head NAME .*: answer, side"):
        find_head(TwoLinear(), "fc")
    with pytest.raises(RattleError, match=r"no nn\.Linear"):
        find_head(nn.Flatten())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), "4 outputs, but the data have 3"),
        (nn.Sequential(nn.Flatten(), nn.Linear(13, 3)), r"does not take images of shape \[3, 2, 2\]"),
        (nn.Identity(), "got shape"),
    ],
)
def test_a_model_of_another_width_than_the_classes_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(RattleError, match=words):
        check_width(model, torch.rand(4, 3, 2, 2), 3)


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text("from torch import nn\n" + textwrap.dedent(text))
    return path


def test_a_file_s_class_with_other_keywords_builds_too_and_imports_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "BIAS = False", "neighbour_of_mine.py")
    path = write(
        tmp_path,
        """
        from neighbour_of_mine import BIAS
        class Net(nn.Linear):
            def __init__(self, num_classes=3, in_channels=1, width=8):
                super().__init__(in_channels * width, num_classes, bias=BIAS)
        """,
    )
    model = create_model(f"{path}:Net", classes=6, channels=2, width=4)
    assert (model.in_features, model.out_features, model.bias) == (8, 6, None)


def test_a_module_s_function_builds_the_user_s_model(here: Path) -> None:
    write(here, "def build(classes): return nn.Linear(2, classes)", "my_own_networks.py")
    for spec in ("my_own_networks:build", "./my_own_networks.py:build"):
        assert create_model(spec, classes=6).out_features == 6
    with pytest.raises(RattleError, match="'width'"):
        create_model("my_own_networks:build", classes=3, width=4)


def test_normalisation_goes_in_front_of_a_user_s_model(tmp_path: Path) -> None:
    path = write(tmp_path, "def build(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))")
    model = create_model(f"{path}:build", classes=3, normalise=CIFAR)
    x = torch.rand(2, 3, 2, 2)
    mean, std = (torch.tensor(s).reshape(1, 3, 1, 1) for s in CIFAR)
    torch.testing.assert_close(model(x), model[1]((x - mean) / std))
    assert find_head(model, example=x) is model[1][1]


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        ("", "absent.py:build", "no file .*absent.py"),
        ("", "no_such_package_here.net:build", "raised ModuleNotFoundError: No module named 'no_such_package_here'"),
        ("def built(): ...", "mine.py:build", "did you mean 'built'"),
        ("build = 3", "mine.py:build", "must be a function or a class, got int"),
        ("def build(): return 3", "mine.py:build", r"must return a torch.nn.Module, got int"),
        ("def build(): return 1 / 0", "mine.py:build", r"mine.py:2 raised ZeroDivisionError: division"),
        ("import no_such_thing", "mine.py:build", r"mine.py:2 raised ModuleNotFoundError"),
        ("def build(: pass", "mine.py:build", r"mine.py:2: "),
        ("def build(depth): ...", "mine.py:build", "needs 'depth'"),
    ],
)
def test_a_mistake_in_the_user_s_model_is_an_error_that_names_the_line(
    here: Path, text: str, spec: str, words: str
) -> None:
    write(here, text)
    with pytest.raises(RattleError, match=words):
        create_model(f"./{spec}" if spec.endswith(".py:build") else spec, classes=3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("size", [7, 8])
def test_a_subsampled_convolution_equals_a_strided_one(size: int) -> None:
    narrow, x = conv1x1(4, 6, 2), torch.rand(3, 4, size, size)
    torch.testing.assert_close(narrow(x), nn.functional.conv2d(x, narrow.weight, stride=2), rtol=0, atol=1e-15)
    assert type(conv1x1(16, 6, 2)) is nn.Conv2d


def backward_in_a_child(model: str, channels: int, **env: str) -> int:
    """The return code of a process that differentiates a model by its weights at channels-last images, three times."""
    code = f"""
        import torch
        from torch.nn import Conv2d
        from rattle.models import create_model
        model = {model}.to(memory_format=torch.channels_last)
        x = torch.rand(4, {channels}, 64, 64).to(memory_format=torch.channels_last)
        for _ in range(3):
            model(x).sum().backward()
    """
    settings = {**os.environ, "MALLOC_CHECK_": "3", "OMP_NUM_THREADS": "1", **env}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=settings, capture_output=True).returncode


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize("width", [4, 8, 12])
def test_a_narrow_network_survives_its_backward_pass(width: int, isa: str) -> None:
    model = f"create_model('preact18', classes=10, width={width})"
    assert backward_in_a_child(model, 3, ONEDNN_MAX_CPU_ISA=isa) == 0


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "survives"),
    [
        ((8, 16, 1, 2), False),
        ((15, 16, 1, 2), False),
        ((16, 16, 1, 2), True),
        ((8, 16, 1, 1), True),
        ((8, 16, 3, 2), True),
    ],
)
def test_the_rule_on_channels_last_is_what_torch_survives(layer: tuple[int, ...], survives: bool) -> None:
    assert trains_channels_last(nn.Conv2d(*layer)) == survives
    if survives or torch.backends.cpu.get_cpu_capability() == "AVX512":  # AVX2 survives eight channels and more
        done = backward_in_a_child(f"Conv2d{(*layer, 0, 1, 1, False)}", layer[0])
        assert (done == 0) == survives, "torch is mended: trains_channels_last and SubsampledConv1x1 can go"


def test_timm_is_named_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RattleError, match="rattle-robust\\[timm\\]"):
        create_model("timm:resnet18", classes=3)
