"""Reading a published model: whatever is there, nothing runs and one sentence says what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch.optim.swa_utils import AveragedModel

from rattle import __version__
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.runs import checkpoint
from rattle.runs.load import load, load_model, open_checkpoint, run_of
from rattle.runs.published import pack
from support.tiny_runs import save_run, small_cnn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return publish(save_run(tmp_path / "run"), tmp_path / "published")


def publish(checkpoint: Path, out: Path) -> Path:
    saved = open_checkpoint(checkpoint)
    weights, config = pack(saved, load_model(saved))
    out.mkdir()
    (out / "model.safetensors").write_bytes(weights)
    (out / "config.json").write_text(json.dumps(config))
    return out


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_published_folder_opens_as_a_checkpoint(folder: Path) -> None:
    saved = open_checkpoint(folder)
    assert (saved.shape, len(saved.classes), saved.path) == ((1, 8, 8), 10, folder / "model.safetensors")
    assert torch.equal(load(folder / "model.safetensors").head.weight, small_cnn().head.weight)
    assert run_of(saved.path) is None


def test_the_files_of_the_reader_are_out_of_its_reach(folder: Path) -> None:
    edit(folder, lambda config: config["recipe"]["data"].update(name="/etc/secret.npz", root="/home"))
    data = open_checkpoint(folder).recipe.data
    assert (data.name, data.root) == ("secret.npz", None)


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "code in a file": (lambda c: c["recipe"].update(model="evil.py:build"), "is code"),
    "code in a module": (lambda c: c["recipe"].update(model="os:system"), "is code"),
    "code behind timm": (lambda c: c["recipe"].update(model="timm:evil:build"), "is code"),
    "a very deep network": (lambda c: c["recipe"].update(model="wrn100000-10"), "is no model's name"),
    "a very wide network": (lambda c: c["recipe"].update(width=10**9), "width must be .*<= 1,000,000"),
    "another network": (lambda c: c["recipe"].update(model="preact18"), "the weights are not those of the network"),
    "another width": (lambda c: c["recipe"].update(width=5), "the weights are not those of the network"),
    "fewer classes": (lambda c: c.update(classes=["a", "b"]), "head"),
    "classes that are numbers": (lambda c: c.update(classes=[1, 2]), "must be a list of names"),
    "a shape of text": (lambda c: c.update(shape="1x8x8"), "must be channels, height and width"),
    "a huge shape": (lambda c: c.update(shape=[10**9, 8, 8]), "must be channels, height and width"),
    "a recipe that is a list": (lambda c: c.update(recipe=[]), "is no model's name"),
    "an unknown setting": (lambda c: c["recipe"].update(colour="red"), f"published by rattle {__version__}, this is"),
    "a later format": (lambda c: c.update(format=99), "this version reads up to 1: upgrade rattle"),
    "another library": (lambda c: c.update(library="transformers"), "was not written by `rattle push`"),
    "another checksum": (lambda c: c.update(sha256="0" * 64), "is damaged: the checksum of model.safetensors"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_cannot_be_right_is_refused(name: str, folder: Path) -> None:
    change, expected = CONFIGS[name]
    edit(folder, change)
    with pytest.raises(RattleError, match=expected) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"model_type": "vit"}', " " * 2_000_000])
def test_a_config_of_something_else_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(RattleError, match=r"its config.json was not written by `rattle push`"):
        load(folder)


def test_weights_that_are_damaged_or_not_safetensors_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save(small_cnn().state_dict(), path)
    edit(folder, lambda config: config.update(sha256=hashlib.sha256(path.read_bytes()).hexdigest()))
    with pytest.raises(RattleError, match=r"model.safetensors cannot be read"):
        load(folder)
    path.write_bytes(save({"a.b": torch.zeros(1)}))
    with pytest.raises(RattleError, match="is damaged: the checksum"):
        load(folder)


def test_averaged_weights_are_packed_and_statistics_come_along(tmp_path: Path) -> None:
    """A run with normalisation and an average: what is published is what `load` gives."""
    recipe = replace(get_recipe("digits-linf-cnn-trades"), width=4, normalise=True)
    model = create_model("cnn", classes=10, channels=1, width=4, normalise=([0.3], [0.5]))
    average = AveragedModel(model)
    average.update_parameters(model)
    with torch.no_grad():
        average.module.head.bias += 1
    parts = {"recipe": recipe, "classes": tuple("0123456789"), "shape": (1, 8, 8), "progress": {"epoch": 3}}
    checkpoint.write_checkpoint(tmp_path / "c.safetensors", **parts, model=model, average=average)
    out, x = publish(tmp_path / "c.safetensors", tmp_path / "out"), torch.rand(3, 1, 8, 8)
    assert torch.equal(load(out)(x), average.module.eval()(x))
    assert open_checkpoint(out).progress == {"epoch": 3}
