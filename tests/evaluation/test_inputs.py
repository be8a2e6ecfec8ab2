"""What `evaluate` and `benchmark` accept: names and objects, tensors, arrays and datasets; else one sentence."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rattle
from rattle.attacks import PGD, AutoAttack
from rattle.attacks.base import AttackExtras
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.inputs import image_checksums
from rattle.threat import Threat
from support.tiny_runs import digits, linear, small_cnn

N, THREAT = 24, Threat(epsilon=0.05)
ATTACK = PGD(threat=THREAT, steps=3, step_size=0.05)
X, Y = (part[:N] for part in digits()[2:])
FLOATS = X.float() / 255
PAIRS = TensorDataset(FLOATS, Y)


@pytest.mark.parametrize(
    ("attacks", "names"),
    [
        ("fgsm", ["fgsm"]),
        (["fgsm", "pgd3"], ["fgsm", "pgd3"]),
        (ATTACK, ["pgd"]),
        ([ATTACK, "fgsm", PGD(threat=THREAT, steps=1), PGD(threat=THREAT, steps=2)], ["pgd", "fgsm", "pgd-2", "pgd-3"]),
        ({"mine": ATTACK, "theirs": "fgsm"}, ["mine", "theirs"]),
        ([], []),
    ],
)
def test_attacks_are_given_by_name_as_objects_or_both(attacks: object, names: list[str]) -> None:
    result = evaluate(linear(), X[:5], Y[:5], attacks, threat=THREAT)
    assert list(result.attacks) == names
    assert all(attack.settings["threat"]["epsilon"] == 0.05 for attack in result.attacks.values())


READ_ONLY = FLOATS.double().numpy()
READ_ONLY.flags.writeable = False
FORMS: dict[str, tuple[Any, Any]] = {
    "uint8 tensor": (X, Y),
    "float tensor": (FLOATS, Y),
    "numpy uint8": (X.numpy(), Y.numpy().astype(np.uint8)),
    "numpy float32": (FLOATS.numpy(), Y.numpy().astype(np.int32)),
    "numpy float64": (READ_ONLY, Y.numpy()),
    "channels last": (X.permute(0, 2, 3, 1).numpy(), Y.numpy()),
    "int32 labels": (X, Y.to(torch.int32)),
    "Dataset": (PAIRS, None),
    "DataLoader": (DataLoader(PAIRS, batch_size=7), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_images_and_attack_gives_the_same_flags(form: str) -> None:
    wanted = evaluate(linear(), X, Y, "pgd5", epsilon=0.05).worst_case
    assert 0 < sum(wanted) < N
    for attack in ("pgd5", rattle.get_attack("pgd5", THREAT)):
        assert evaluate(linear(), *FORMS[form], attack, norm="linf", epsilon=0.05).worst_case == wanted


HELD = {"digits": "digits", "tuple": (X, Y), "Dataset": PAIRS, "DataLoader": FORMS["DataLoader"][0]}


@pytest.mark.parametrize("data", HELD)
def test_benchmark_takes_a_name_or_what_people_hold(data: str) -> None:
    result = rattle.benchmark(small_cnn(), HELD[data], attacks=["fgsm", "pgd5"], epsilon=0.1, n=10)
    assert (result.n, list(result.attacks)) == (10, ["fgsm", "pgd5"])
    assert result.attacks["fgsm"].settings["threat"] == {"norm": "linf", "epsilon": 0.1}


def test_a_dataset_of_pictures_is_read() -> None:
    colour = [(Image.fromarray(X[i, 0].numpy()).convert("RGB"), int(Y[i])) for i in range(N)]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 10))
    assert rattle.benchmark(model, colour, attacks="fgsm", n=9).n == 9


SHUFFLED, ALONE = DataLoader(PAIRS, shuffle=True), DataLoader(TensorDataset(FLOATS))


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield FLOATS[0], 0


class EndlessLoader(DataLoader):
    """Its __len__ says where an epoch ends; its iterator does not."""

    def __init__(self) -> None:
        super().__init__(PAIRS, batch_size=8)

    def __iter__(self) -> Iterator[list[Tensor]]:
        while True:
            yield from DataLoader(PAIRS, batch_size=8)


def test_an_endless_loader_ends_where_its_length_says() -> None:
    assert evaluate(linear(), EndlessLoader(), None, "fgsm").n == N
    assert rattle.benchmark(linear(), Endless(), attacks="fgsm", n=5).n == 5


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"attacks": 3}, "got int"),
        ({"attacks": PGD}, "got the class PGD"),
        ({"attacks": "pdg20"}, "did you mean 'pgd20'"),
        ({"attacks": {"../a": ATTACK}}, "'../a' is no name for an attack"),
        ({"attacks": ATTACK, "threat": Threat(epsilon=0.2)}, "PGD has its own threat"),
        ({"epsilon": 0.1, "threat": Threat()}, "not both"),
        ({"y": [0, 1]}, "the labels .* list"),
        ({"y": None}, "images without labels"),
        ({"x": PAIRS}, "give None for y"),
        ({"x": SHUFFLED, "y": None}, "the DataLoader shuffles"),
        ({"x": ALONE, "y": None}, "no pair of images and labels"),
        ({"x": Endless(), "y": None}, "may never end"),
        ({"x": DataLoader(PAIRS, batch_size=None), "y": None}, "must give batches"),
        ({"x": DataLoader([(FLOATS[0], "cat"), (FLOATS[1], "dog")]), "y": None}, "labels that are whole numbers"),
        ({"x": DataLoader([(FLOATS[0], 0), (FLOATS[1, :, :4], 1)], batch_size=2), "y": None}, "images of one shape"),
        ({"x": X[:, 0]}, r"uint8 images must have shape \[n, C, H, W\], got \[24, 8, 8\]"),
        ({"x": X.long()}, r"images must be floating point in \[0, 1\], got torch.int64"),
        ({"x": 2 * FLOATS}, r"images must lie in \[0, 1\]"),
        ({"x": X[:0], "y": Y[:0]}, "there are no images"),
        ({"y": Y.float()}, "labels must be whole numbers, got torch.float32"),
        ({"y": Y[:7]}, "24 images but 7 labels"),
        ({"y": Y + 5}, "labels run from 5 to 14, but the model has 10 outputs"),
        ({"model": "runs/a"}, "the model must be a torch.nn.Module, got str"),
        ({"mask": [True]}, "24 images but a mask of 1"),
        ({"index": [3]}, "24 images but an index of 1"),
        ({"batch_size": 0}, "batch_size must be >= 1"),
        ({"within": 50}, "within must be > 0 and < 50"),
        ({"model": copy.deepcopy(linear()).to("meta"), "jobs": 2}, "on the CPU, not meta"),
        ({"model": copy.deepcopy(linear()).to("meta")}, "meta device"),
        ({"device": "meta"}, "there is no device 'meta' here"),
        ({"save_adversarial": True}, "save_adversarial needs a folder"),
    ],
)
def test_a_wrong_input_is_one_sentence(given: dict, sentence: str) -> None:
    call = {"model": linear(), "x": FLOATS, "y": Y, "attacks": "fgsm", **given}
    with pytest.raises(RattleError, match=sentence) as caught:
        evaluate(**call)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": (X, Y, Y)}, "got 3 entries"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"n": 0}, "must be >= 1, got 0"),
    ],
)
def test_benchmark_refuses_a_wrong_argument(given: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=sentence):
        rattle.benchmark(**{"model": linear(), "data": (X, Y), **given})


def test_the_result_prints_as_a_table_and_converts_to_records() -> None:
    result = rattle.benchmark(small_cnn(), (X, Y), attacks="smoke-ensemble", epsilon=0.1)
    rows = result.records()
    parts = [f"smoke-ensemble: {part}" for part in ("apgd-ce", "apgd-t", "fab-t", "square")]
    assert [row["attack"] for row in rows] == ["clean", "smoke-ensemble", *parts]
    assert all(row["n"] == N and row["low"] <= row["accuracy"] <= row["high"] for row in rows)
    whole, *each = (row["seconds"] for row in rows[1:])
    assert all(seconds > 0 for seconds in each)
    assert sum(each) == pytest.approx(whole)
    assert str(result).startswith("attack ")
    assert re.search(rf"^clean +\d+\.\d +\[\d+\.\d, \d+\.\d\] +{N} +0\.0$", str(result), re.M)
    assert result.to_plain()["attacks"]["smoke-ensemble"]["parts"]["square"]["seconds"] == each[-1]


def test_the_result_files_are_there_when_evaluate_returns(tmp_path: Path) -> None:
    class Odd(AttackExtras):
        threat = THREAT

        def metadata(self) -> dict:
            return {"kind": "Odd", "direction": torch.ones(2)}  # no JSON: stored as text

        def __call__(self, model: object, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
            return x

    out, metadata = tmp_path / "new" / "results", {"checkpoint": "best.safetensors", "data": "digits", "seed": 3}
    result = evaluate(linear(), X, Y, [Odd(), ATTACK], out=str(out), metadata=metadata, seed=3, save_adversarial=True)
    assert {path.stem for path in out.iterdir()} == {"odd", "pgd", "odd-adversarial", "pgd-adversarial"}
    stored = json.loads((out / "pgd.json").read_text())
    assert stored.items() >= metadata.items()
    assert list(stored["attacks"]) == ["pgd"]
    assert stored["attacks"]["pgd"]["flags"] == list(map(int, result.attacks["pgd"].flags))
    assert stored["clean_flags"] == list(map(int, result.clean))
    assert "tensor" in json.loads((out / "odd.json").read_text())["attacks"]["odd"]["settings"]["direction"]


def test_without_a_folder_nothing_is_written(here: Path) -> None:
    evaluate(linear(), X[:4], Y[:4], AutoAttack(threat=THREAT, version="rand"))
    assert not list(here.iterdir())


def test_a_checksum_is_that_of_an_image_s_bytes_in_any_form_and_no_two_are_equal() -> None:
    x, y = torch.randint(256, (5, 3, 4, 6), dtype=torch.uint8), torch.arange(5)
    known = image_checksums(x, y)
    for same in (x / 255, (x / 255).double(), x.to(memory_format=torch.channels_last), x * (1 / 255)):
        assert image_checksums(same, y.int()) == known
    assert image_checksums(x[2:4], y[2:4]) == known[2:4]
    changed = x.clone()
    changed[0, 0, 0, 0] += 1
    for other in ((changed, y), (x, y + 1), (x.transpose(2, 3), y)):
        assert image_checksums(*other)[0] != known[0]
    first, again = image_checksums(x[[0, 0]], y[[0, 0]])
    assert (first, again) == (known[0], f"{known[0]}+1")
