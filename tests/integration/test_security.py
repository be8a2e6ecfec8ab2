"""Nothing that is opened runs, unpacks without bound, or leads out of its folder.

Archives of datasets are held to the same in test_data_archives.py and test_data_own.py, weights of others in
test_foreign.py, names of a sweep's folders in test_sweep.py.
"""

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rattle import cli
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache
from rattle.evaluation.verify import load_images, save_images
from rattle.models.weight_file import open_weights
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read
from rattle.runs.io import MOST_UNPACKED
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.threat import Threat
from support.training import tiny


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


def test_a_pickle_in_the_place_of_a_checkpoint_is_refused_and_does_not_run(tmp_path: Path) -> None:
    run, mark = Run(tmp_path / "run"), tmp_path / "ran"
    run.checkpoint("last").parent.mkdir(parents=True)
    for content in (pickle.dumps(Malicious(mark)), None):
        if content is None:
            torch.save({"model": Malicious(mark)}, run.checkpoint("last"))
        else:
            run.checkpoint("last").write_bytes(content)
        for opened in (lambda: read(run.checkpoint("last")), lambda: load(run.folder)):
            with pytest.raises(RattleError, match="is not a checkpoint, or is damaged"):
                opened()
    assert not mark.exists()


def test_a_pickle_in_saved_images_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "images.npz", tmp_path / "ran"
    evil = np.array([Malicious(mark)], dtype=object)
    np.savez(path, index=evil, x_adv=evil, y=evil)
    with pytest.raises(RattleError, match="is not a file of adversarial images"):
        load_images(path)
    assert not mark.exists()


def test_saved_images_that_would_unpack_without_bound_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("index.npy", "x_adv.npy", "y.npy"):
            archive.writestr(name, bytes(MOST_UNPACKED * 2**20 // 2))
    with pytest.raises(RattleError, match=r"would unpack to [\d,]+ bytes"):
        load_images(path)


def test_weights_that_would_unpack_without_bound_are_refused_unread(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2**20)}, tmp_path / "honest.pt")
    with (
        zipfile.ZipFile(tmp_path / "honest.pt") as honest,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for member in honest.namelist():
            bomb.writestr(member, honest.read(member))
    assert open_weights(tmp_path / "honest.pt")["weight"].shape == (2**20,)
    with pytest.raises(RattleError, match=r"would unpack to [\d,]+ bytes: torch.save does not compress"):
        open_weights(tmp_path / "bomb.pt")


def test_a_header_that_promises_more_than_a_checkpoint_holds_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(RattleError, match="is not a checkpoint, or is damaged"):
        read(path)
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RattleError, match="is not a checkpoint, or is damaged"):
        read(path)


@pytest.mark.parametrize(
    "name", ["../../outside", "/outside", "..", ".", "", "a/../../outside", "nul\0", "a\nb", "-rf"]
)
def test_a_recipe_s_name_cannot_lead_the_run_out_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    recipe = replace(tiny("trades", epochs=1, batch_size=192), name=name)
    (inside / "evil.yaml").write_text(recipe.to_yaml())
    assert Recipe.from_yaml((inside / "evil.yaml").read_text()).name == name
    assert cli.main(["train", "evil.yaml"]) == 0
    assert sorted(p.name for p in tmp_path.rglob("*") if p.parent in (tmp_path, tmp_path / "a", inside)) == [
        "a",
        "b",
        "evil.yaml",
        "runs",
    ]
    [run] = (inside / "runs").iterdir()
    assert (run / "recipe.yaml").is_file()


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/b"])
def test_an_attack_s_name_cannot_lead_verdicts_out_of_their_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "results").mkdir()
    with pytest.raises(RattleError, match="is no name for an attack"):
        ResultCache(tmp_path / "results", name, "mark")
    assert [p.name for p in tmp_path.rglob("*")] == ["results"]


def test_saved_images_come_back(tmp_path: Path) -> None:
    index, x_adv, y = (
        torch.tensor([3, 5]),
        np.random.default_rng(0).random((2, 1, 8, 8), np.float32),
        torch.tensor([1, 2]),
    )
    save_images(tmp_path / "images.npz", index, x_adv, y, Threat())
    found = load_images(tmp_path / "images.npz")
    assert torch.equal(found.index, index)
    assert np.array_equal(found.x_adv.numpy(), x_adv)
    assert torch.equal(found.y, y)
    assert found.threat == Threat()
