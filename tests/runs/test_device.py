"""Devices by name: one that is not there is refused in a sentence, by every command and in Python."""

from pathlib import Path

import pytest
import torch

import rattle
from rattle.cli import main as cli
from rattle.errors import RattleError
from rattle.runs.distributed import choose_device
from support.tiny_runs import save_run

ABSENT = "cuda:99"  # also where there is a GPU
ZOO = "zoo:digits-linf-cnn-plain"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_run(tmp_path_factory.mktemp("device") / "run"))


@pytest.mark.parametrize("name", [ABSENT, "gpu", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(RattleError, match=f"there is no device '{name}' here: ") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(RattleError, match="there is no device"):
        rattle.load(ZOO, device=name)


def test_a_device_may_be_given_as_torch_has_it() -> None:
    assert choose_device(torch.device("cpu")) == torch.device("cpu")
    assert next(rattle.load(ZOO, device="cpu").parameters()).device.type == "cpu"


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        ["train", "digits-linf-cnn-at"],
        ["evaluate", ZOO],
        ["transfer", "--from", ZOO, "--to", ZOO],
        ["fidelity", ZOO],
        ["landscape", "RUN"],
        ["gap", "RUN"],
        ["report", "RUN"],
        ["sweep", "digits-linf-cnn-at", "--seeds", "0"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_refuses_it_in_a_sentence(
    command: list[str], run: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = [run if word == "RUN" else word for word in command]
    assert cli.main([*args, "--device", ABSENT]) == 2
    said = "".join(capfd.readouterr())
    assert f"there is no device '{ABSENT}' here: " in said
    assert "Traceback" not in said
