"""Models of timm by name: its own arguments, its normalisation, and no download where weights come from elsewhere."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rattle.errors import RattleError
from rattle.models import create_model, find_head
from rattle.models.head import check_width
from rattle.models.layers import Normalise
from rattle.models.timm import parse_spec
from rattle.runs import checkpoint
from rattle.runs.load import load
from support.tiny_runs import RECIPE

CALLS: list[dict[str, Any]] = []


class Net(nn.Sequential):
    """A model as timm makes them: with a config."""

    def __init__(self, num_classes: int, in_chans: int, **settings: Any) -> None:
        CALLS.append(settings)
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_chans, num_classes))
        self.pretrained_cfg = {"mean": (0.2, 0.4, 0.6), "std": (0.1, 0.2, 0.3), "input_size": (3, 224, 224)}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    module = SimpleNamespace(is_model="net".__eq__, list_models=lambda: ["net"], create_model=lambda _, **k: Net(**k))
    monkeypatch.setitem(sys.modules, "timm", module)


def test_arguments_after_commas_are_yaml() -> None:
    spec = "timm:a.b,pretrained,img_size=32,drop=0.1,pool=avg,cfg={file: w.pt, custom_load: false},depths=[2, 2]"
    expected = {"pretrained": True, "img_size": 32, "drop": 0.1, "pool": "avg"}
    expected |= {"cfg": {"file": "w.pt", "custom_load": False}, "depths": [2, 2]}
    assert parse_spec(spec) == ("a.b", expected)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("word", ["num_classes=3", "in_chans=1", "3=4", "", "a=[", "img size=3"])
def test_an_argument_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(RattleError, match=r"is no argument for a model of timm|is no value for a"):
        create_model(f"timm:net,{word}", classes=3)


@pytest.mark.usefixtures("stand_in")
def test_a_pretrained_model_normalises_as_its_config_says() -> None:
    model = create_model("timm:net,pretrained,drop=0.1", classes=3)
    assert CALLS == [{"pretrained": True, "drop": 0.1}]
    assert isinstance(model[0], Normalise)
    assert model[0].mean.flatten().tolist() == pytest.approx([0.2, 0.4, 0.6])
    grey = create_model("timm:net,pretrained", classes=3, channels=1, normalise=((0.9,), (0.9,)))
    assert grey[0].std.flatten().tolist() == pytest.approx([0.2])
    plain = create_model("timm:net", classes=3, channels=2)
    assert isinstance(plain, Net)
    assert (plain[-1].in_features, plain[-1].out_features) == (2, 3)
    with pytest.raises(RattleError, match="did you mean 'net'"):
        create_model("timm:nets", classes=3)
    assert create_model("timm:net", classes=3, normalise=((0.5,) * 3, (0.5,) * 3))[0].mean[0] == 0.5


@pytest.mark.usefixtures("stand_in")
def test_a_run_of_a_pretrained_model_is_loaded_without_fetching_it_again(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model="timm:net,pretrained", width=None)
    model = create_model(recipe.model, classes=3, channels=1)
    path = tmp_path / "last.safetensors"
    checkpoint.write_checkpoint(path, recipe=recipe, classes=("a", "b", "c"), shape=(1, 8, 8), progress={}, model=model)
    CALLS.clear()
    loaded = load(path)
    assert CALLS == [{}]
    x = torch.rand(2, 1, 8, 8)
    assert loaded(x).equal(model(x))


@pytest.mark.usefixtures("stand_in")
def test_what_timm_raises_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **settings: Any) -> nn.Module:
        raise OSError("no network\nat all")

    monkeypatch.setattr(sys.modules["timm"], "create_model", fail)
    with pytest.raises(RattleError, match=r"timm:net,pretrained.*no network"):
        create_model("timm:net,pretrained", classes=3)


@pytest.mark.filterwarnings("ignore")
def test_a_real_pretrained_model_comes_from_a_file_with_its_config(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    source = timm.create_model("resnet10t", num_classes=1000).eval()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    overlay = f"pretrained_cfg_overlay={{file: {tmp_path / 'w.pt'}}}"
    model = create_model(f"timm:resnet10t,pretrained,{overlay}", classes=1000).eval()
    x = torch.rand(2, 3, 64, 64)
    assert model(x).equal(source(model[0](x)))
    assert model[0].mean.flatten().tolist() == pytest.approx(list(source.pretrained_cfg["mean"]))
    assert create_model(f"timm:resnet10t,pretrained,{overlay}", classes=5)(x).shape == (2, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "head"), [("vit_tiny_patch16_224,img_size=32", "head"), ("convnext_atto", "head.fc")])
def test_the_heads_of_real_models_are_found(name: str, head: str) -> None:
    pytest.importorskip("timm")
    model, x = create_model(f"timm:{name}", classes=5), torch.rand(2, 3, 32, 32)
    assert find_head(model) is find_head(model, example=x) is model.get_submodule(head)


@pytest.mark.filterwarnings("ignore")
def test_the_head_of_a_hugging_face_classifier_is_found_in_its_output_object() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)
    model, x = transformers.ViTForImageClassification(config), torch.rand(2, 3, 16, 16)
    assert find_head(model) is find_head(model, example=x) is model.classifier
    check_width(model, x, 5)
