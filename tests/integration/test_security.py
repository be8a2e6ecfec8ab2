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

from rattle.cli import main as cli
from rattle.data.files import LARGEST_READ
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache
from rattle.evaluation.verify import load_images
from rattle.models.weight_file import open_weights
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.load import load
from rattle.runs.paths import Run
from support.training import tiny


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


def test_a_pickle_in_the_place_of_a_checkpoint_is_refused_and_does_not_run(tmp_path: Path) -> None:
    run, mark = Run(tmp_path / "run"), tmp_path / "ran"
    run.checkpoint("last").parent.mkdir(parents=True)
    for dump in (pickle.dump, torch.save):
        with run.checkpoint("last").open("wb") as file:
            dump({"model": Malicious(mark)}, file)
        for opened in (lambda: read_checkpoint(run.checkpoint("last")), lambda: load(run.folder)):
            with pytest.raises(RattleError, match="is not a checkpoint, or is damaged"):
                opened()
    assert not mark.exists()


def test_a_pickle_in_saved_images_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "images.npz", tmp_path / "ran"
    evil = np.array([Malicious(mark)], dtype=object)
    np.savez(path, index=evil, x_adv=evil, y=evil)
    with pytest.raises(RattleError, match="truncated or damaged"):
        load_images(path)
    assert not mark.exists()


def test_saved_images_that_would_unpack_without_bound_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("index.npy", "x_adv.npy"):
            archive.writestr(name, bytes(LARGEST_READ + 1))
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
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    for size, content in ((2**62, b"{}"), (len(header), header)):
        path.write_bytes(size.to_bytes(8, "little") + content)
        with pytest.raises(RattleError, match="is not a checkpoint, or is damaged"):
            read_checkpoint(path)


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
def test_an_attack_s_name_cannot_lead_results_out_of_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RattleError, match="is no name for an attack"):
        ResultCache(tmp_path, name, "mark")
    assert not list(tmp_path.iterdir())
