"""A dataset of one's own, registered at run time."""

from pathlib import Path

import pytest
import torch

from rattle.cli.main import main
from rattle.data import Data, Dataset, Images, get, list_datasets, register_source
from rattle.data.files import find_folder
from rattle.data.sources import SOURCES
from rattle.errors import RattleError


def stripes(root: Path) -> Dataset:
    """As many images as the number in the file stripes.txt says, of two classes."""
    path = find_folder("stripes", root, ("stripes.txt",))
    y = torch.arange(int(path.read_text())) % 2
    images = Images((100 * y).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 4, 4), y)
    return Dataset(name="stripes", train=images, test=images, classes=("dark", "bright"))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOURCES, "known", dict(SOURCES.entries))  # as before after the test
    register_source("stripes", stripes)


def test_a_registered_source_is_listed_and_loaded_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stripes.txt").write_text("20")
    assert list_datasets()[-1] == "stripes"
    data = Data(name="stripes", root=str(tmp_path), train_size=8, val_size=4).load()
    assert (len(data.train), len(data.test), data.classes) == (8, 20, ("dark", "bright"))
    sheet = tmp_path / "sheet.png"
    assert main(["data", "show", "stripes", "--root", str(tmp_path), "--out", str(sheet)]) == 0


def test_a_source_without_urls_has_nothing_to_download(tmp_path: Path) -> None:
    assert get("stripes", tmp_path) == []
    with pytest.raises(RattleError, match=r"found no stripes\.txt in \S+, \S+; name the folder that holds it"):
        Data(name="stripes", root=str(tmp_path)).load()


def test_a_built_in_name_is_not_replaced() -> None:
    with pytest.raises(RattleError, match="digits"):
        register_source("digits", stripes)
    images = Images(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]))
    register_source("stripes", lambda root: Dataset(name="s", train=images, test=images, classes=("a", "b")))
    assert len(Data(name="stripes", val_size=0).load().train) == 2
