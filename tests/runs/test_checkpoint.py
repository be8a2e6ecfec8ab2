"""Checkpoints come back bit for bit, and a file that is none gets one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as serialise
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.runs import checkpoint
from rattle.runs.checkpoint import read_checkpoint, restore_optimizer, write_checkpoint
from rattle.runs.io import write_atomically
from rattle.weights import EMA

RECIPE = get_recipe("digits-linf-cnn-trades-2nd")
PROGRESS = {"epoch": 3, "sums": {"clean": 0.1 + 0.2}, "best": 1 / 3}


def trained() -> tuple[nn.Module, torch.optim.SGD, nn.Module]:
    model = create_model("cnn", classes=10, channels=1, width=2)
    optimizer, average = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), EMA().averaged(model)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.rand(8, 1, 8, 8)), torch.arange(8)).backward()
        optimizer.step()
        average.update_parameters(model)
    return model, optimizer, average


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, optimizer, average = trained()
    path = tmp_path / "last.safetensors"
    about = {"recipe": RECIPE, "classes": tuple("0123456789"), "shape": (1, 8, 8), "progress": PROGRESS}
    write_checkpoint(path, **about, model=model, average=average, optimizer=optimizer)
    return path


def test_everything_comes_back_bit_for_bit(saved: Path) -> None:
    torch.manual_seed(0)
    model, optimizer, average = trained()  # the same again
    found = read_checkpoint(saved)
    assert found.recipe == RECIPE
    assert found.classes == tuple("0123456789")
    assert found.shape == (1, 8, 8)
    assert found.progress == PROGRESS
    for name, part in (("model", model), ("average", average)):
        wanted = part.state_dict()
        assert found.part(name).keys() == wanted.keys()
        assert all(torch.equal(v, wanted[k]) and v.dtype == wanted[k].dtype for k, v in found.part(name).items())
    fresh = create_model("cnn", classes=10, channels=1, width=2)
    fresh.load_state_dict(found.part("model"))
    again = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    restore_optimizer(again, fresh, found.part("optimizer"))
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(optimizer.state[p]["momentum_buffer"], again.state[q]["momentum_buffer"])


def refused(path: Path) -> str:
    with pytest.raises(RattleError) as caught:
        read_checkpoint(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("place", [0, 7, 8, 300, -1, -2000])
def test_a_truncated_file_and_a_single_altered_byte_are_noticed(saved: Path, place: int) -> None:
    content = bytearray(saved.read_bytes())
    saved.write_bytes(content[:place])
    assert "is not a checkpoint, or is damaged" in refused(saved)
    content[place] ^= 0x10
    saved.write_bytes(content)
    assert "damaged" in refused(saved)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "1"}])
def test_other_programs_weights_are_told_apart(tmp_path: Path, metadata: dict | None) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata)
    assert "holds weights, but is not a RATTLE checkpoint" in refused(path)


def test_a_newer_format_asks_for_an_upgrade(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_checkpoint(saved)
    monkeypatch.setattr(checkpoint, "FORMAT", 4)
    model = create_model("cnn", classes=10, channels=1, width=2)
    write_checkpoint(saved, recipe=RECIPE, classes=found.classes, shape=found.shape, progress={}, model=model)
    monkeypatch.undo()
    assert "has checkpoint format 4; this version reads up to 3: upgrade rattle" in refused(saved)


def test_a_missing_file_and_a_folder_are_no_checkpoints(tmp_path: Path) -> None:
    assert refused(tmp_path / "nothing") == f"there is no checkpoint {tmp_path / 'nothing'}"
    assert "there is no checkpoint" in refused(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RattleError, match=r"cannot write .*c.json: File exists"):
        write_atomically(tmp_path / "file" / "c.json", b"1")


def test_a_file_has_the_entries_that_safetensors_itself_writes(saved: Path) -> None:
    def entries(content: bytes) -> dict[str, object]:
        size = int.from_bytes(content[:8], "little")
        assert size % 8 == 0
        return json.loads(content[8 : 8 + size])

    content = saved.read_bytes()
    with safe_open(saved, framework="pt") as file:
        again = serialise({key: file.get_tensor(key) for key in file.keys()}, file.metadata())  # noqa: SIM118
    assert entries(content) == entries(again)
    assert content[8 + int.from_bytes(content[:8], "little") :] == again[8 + int.from_bytes(again[:8], "little") :]


def test_a_checkpoint_of_format_2_opens_and_its_damage_is_noticed(saved: Path) -> None:
    now = read_checkpoint(saved)
    with safe_open(saved, framework="pt") as file:
        texts = dict(file.metadata()) | {"format": "2"}
    del texts["digest"]
    texts["digest"] = checkpoint.digest(now.tensors, texts)
    save_file(now.tensors, saved, texts)
    found = read_checkpoint(saved)
    assert all(torch.equal(value, now.tensors[key]) for key, value in found.tensors.items())
    content = bytearray(saved.read_bytes())
    content[-1] ^= 0x10
    saved.write_bytes(content)
    assert "its checksum does not match its content" in refused(saved)


SAVE = """
import resource, sys
import json
import subprocess
import sys
from pathlib import Path
import torch
from rattle.recipes.catalog import get_recipe
from rattle.runs.checkpoint import save
model = torch.nn.Sequential(*(torch.nn.Conv2d(128, 128, 5) for _ in range(40))).to(memory_format=torch.channels_last)
about = {"recipe": get_recipe("digits-linf-cnn-trades"), "classes": (), "shape": (1, 8, 8), "progress": {}}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save(Path(sys.argv[1]), **about, model=model)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), Path(sys.argv[1]).stat().st_size)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units")
def test_no_second_copy_of_the_weights_is_made_to_save_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SAVE, tmp_path / "c"], capture_output=True, text=True, check=True)
    grown, size = (int(word) for word in done.stdout.split())
    assert size > 60e6
    assert grown < 0.3 * size
