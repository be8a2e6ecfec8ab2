"""What evaluate accepts: names and objects, tensors and arrays; anything else is one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rattle.attacks import PGD, AutoAttack
from rattle.attacks.base import AttackExtras
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.inputs import as_attacks, image_checksums
from rattle.threat import Threat
from support.tiny_runs import digits, linear

THREAT = Threat(epsilon=0.1)
ATTACK = PGD(threat=THREAT, steps=3, step_size=0.05)


def images(n: int = 30) -> tuple[Tensor, Tensor]:
    _, _, x, y = digits()
    return x[:n], y[:n]


@pytest.mark.parametrize(
    ("attacks", "names"),
    [
        ("fgsm", ["fgsm"]),
        (["fgsm", "pgd3"], ["fgsm", "pgd3"]),
        (("fgsm",), ["fgsm"]),
        (ATTACK, ["pgd"]),
        ([ATTACK, "fgsm", PGD(threat=THREAT, steps=1), PGD(threat=THREAT, steps=2)], ["pgd", "fgsm", "pgd-2", "pgd-3"]),
        ({"mine": ATTACK, "theirs": "fgsm"}, ["mine", "theirs"]),
        ([], []),
    ],
)
def test_attacks_are_given_by_name_as_objects_or_both(attacks: object, names: list[str]) -> None:
    x, y = images(5)
    result = evaluate(linear(), x, y, attacks, threat=THREAT)
    assert list(result.attacks) == names
    assert all(attack.settings["threat"]["epsilon"] == 0.1 for attack in result.attacks.values())


def test_a_name_and_its_object_give_the_same_flags() -> None:
    x, y = images()
    named = as_attacks("pgd20", THREAT)["pgd20"]
    flags = [evaluate(linear(), x, y, each, threat=THREAT).worst_case for each in ("pgd20", named, {"a": named})]
    assert flags[0] == flags[1] == flags[2]
    assert 0 < sum(flags[0]) < len(x)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("label", [np.int32, np.int64, np.uint8])
def test_numpy_arrays_give_the_flags_of_tensors(dtype: type, label: type) -> None:
    x, y = images()
    array = x.numpy() if dtype == np.uint8 else (x.numpy().astype(np.float32) / np.float32(255)).astype(dtype)
    array.flags.writeable = False
    found = evaluate(linear(), array, y.numpy().astype(label), ATTACK)
    assert found.worst_case == evaluate(linear(), x, y, ATTACK).worst_case


def test_int32_labels_are_accepted() -> None:
    x, y = images()
    assert evaluate(linear(), x, y.int(), ATTACK).worst_case == evaluate(linear(), x, y, ATTACK).worst_case


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"attacks": 3}, r"an attack is a name such as 'pgd20' or an object such as PGD\(steps=20\), got int"),
        ({"attacks": [None]}, "got NoneType"),
        ({"attacks": PGD}, "got the class PGD"),
        ({"attacks": lambda model, x, y: x}, "got function"),
        ({"attacks": "pdg20"}, "unknown attack 'pdg20'; did you mean 'pgd20'"),
        ({"attacks": {"../a": ATTACK}}, "'../a' is no name for an attack"),
        ({"attacks": ATTACK, "threat": Threat(epsilon=0.2)}, "PGD has a threat of its own"),
        ({"x": [[0.5]]}, "the images .* list"),
        ({"y": [0, 1]}, "the labels .* list"),
        ({"x": np.array(["a"] * 30)}, "images and labels must be arrays of numbers, got <U1"),
        ({"x": images()[0][:, 0]}, r"uint8 images must have shape \[n, C, H, W\], got \[30, 8, 8\]"),
        ({"x": images()[0].long()}, r"images must be floating point in \[0, 1\], got torch.int64"),
        ({"y": images()[1].float()}, "labels must be whole numbers, got torch.float32"),
        ({"y": images()[1][:, None]}, r"got \[30, 1, 8, 8\] and \[30, 1\]"),
        ({"y": images()[1][:7]}, "30 images but 7 labels"),
        ({"model": "runs/a"}, "the model must be a torch.nn.Module, got str"),
        ({"mask": [True]}, "30 images but a mask of 1"),
        ({"batch_size": 0}, "batch_size must be >= 1"),
        ({"save_adversarial": True}, "save_adversarial needs a folder to write to: give it as out"),
    ],
)
def test_a_wrong_input_is_one_sentence(given: dict, sentence: str) -> None:
    x, y = images()
    call = {"model": linear(), "x": x, "y": y, "attacks": "fgsm", **given}
    with pytest.raises(RattleError, match=sentence) as caught:
        evaluate(call.pop("model"), call.pop("x"), call.pop("y"), call.pop("attacks"), **call)
    assert "\n" not in str(caught.value)


def test_the_result_files_are_there_when_evaluate_returns(tmp_path: Path) -> None:
    x, y = images()
    out = tmp_path / "new" / "results"
    metadata = {"checkpoint": "best.safetensors", "data": "digits", "seed": 3}
    result = evaluate(
        linear(), x, y, ["fgsm", ATTACK], threat=THREAT, out=str(out), metadata=metadata, seed=3, save_adversarial=True
    )
    files = {"fgsm.json", "pgd.json", "fgsm-adversarial.npz", "pgd-adversarial.npz"}
    assert {path.name for path in out.iterdir()} == files
    stored = json.loads((out / "pgd.json").read_text())
    assert stored.items() >= metadata.items()
    assert list(stored["attacks"]) == ["pgd"]
    assert stored["attacks"]["pgd"]["flags"] == [int(flag) for flag in result.attacks["pgd"].flags]
    assert stored["clean_flags"] == [int(flag) for flag in result.clean]


def test_an_attack_s_settings_that_are_no_json_are_stored_as_text(tmp_path: Path) -> None:
    class Odd(AttackExtras):
        threat = THREAT

        def metadata(self) -> dict:
            return {"kind": "Odd", "direction": torch.ones(2)}

        def __call__(self, model: object, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
            return x

    x, y = images(4)
    evaluate(linear(), x, y, Odd(), out=tmp_path)
    assert "tensor" in json.loads((tmp_path / "odd.json").read_text())["attacks"]["odd"]["settings"]["direction"]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = images(4)
    evaluate(linear(), x, y, AutoAttack(threat=THREAT, version="rand"))
    assert not list(tmp_path.iterdir())


def test_the_checksum_of_an_image_is_that_of_its_bytes_in_any_form() -> None:
    x, y = torch.randint(256, (5, 3, 4, 6), dtype=torch.uint8), torch.arange(5)
    known = image_checksums(x, y)
    for same in (x / 255, (x / 255).double(), x.to(memory_format=torch.channels_last), x * (1 / 255)):
        assert image_checksums(same, y.int()) == known
    assert image_checksums(x[2:4], y[2:4]) == known[2:4]
    changed = x.clone()
    changed[0, 0, 0, 0] += 1
    for other in ((changed, y), (x, y + 1), (x.transpose(2, 3), y)):
        assert image_checksums(*other)[0] != known[0]


def test_an_image_that_comes_again_has_a_checksum_of_its_own() -> None:
    x, y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 1])
    first, again, other = image_checksums(x, y)
    assert again == f"{first}+1"
    assert other not in (first, again)
