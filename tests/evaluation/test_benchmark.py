"""The doors of `evaluate` and `benchmark`: whatever people hold goes in, and the result prints, converts and counts."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import rattle
from rattle.errors import RattleError
from support.tiny_runs import digits, linear, small_cnn

N = 24


def images() -> tuple[Tensor, Tensor]:
    _, _, x, y = digits()
    return x[:N], y[:N]


class Pictures(Dataset):
    """(PIL picture, label) pairs, as image folders give them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        x, y = images()
        return Image.fromarray(np.repeat(x[i].permute(1, 2, 0).numpy(), 3, axis=2)), int(y[i])


def doors() -> dict[str, tuple[Any, Any]]:
    x, y = images()
    floats = x.float() / 255
    return {
        "uint8 tensor": (x, y),
        "float tensor": (floats, y),
        "numpy uint8": (x.numpy(), y.numpy()),
        "numpy float64": (floats.double().numpy(), y.numpy()),
        "channels last": (x.permute(0, 2, 3, 1).numpy(), y.numpy()),
        "int32 labels": (x, y.to(torch.int32)),
        "Dataset": (TensorDataset(floats, y), None),
        "DataLoader": (DataLoader(TensorDataset(floats, y), batch_size=7), None),
    }


@pytest.mark.parametrize("door", doors())
def test_every_form_of_the_same_images_gives_the_same_flags(door: str) -> None:
    x, y = images()
    wanted = rattle.evaluate(linear(), x, y, "pgd5", epsilon=0.05).attacks["pgd5"].flags
    assert 0 < sum(wanted) < N
    assert rattle.evaluate(linear(), *doors()[door], "pgd5", norm="linf", epsilon=0.05).attacks["pgd5"].flags == wanted


@pytest.mark.parametrize("data", ["digits", "tuple", "Dataset", "DataLoader"])
def test_benchmark_takes_a_name_or_what_people_hold(data: str) -> None:
    given = {"digits": "digits", "tuple": images(), **{k: doors()[k][0] for k in ("Dataset", "DataLoader")}}[data]
    result = rattle.benchmark(small_cnn(), given, attacks=["fgsm", "pgd5"], epsilon=0.1, n=10)
    assert result.n == 10
    assert list(result.attacks) == ["fgsm", "pgd5"]
    assert result.attacks["fgsm"].settings["threat"] == {"norm": "linf", "epsilon": 0.1}


def test_a_dataset_of_pictures_is_read() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 10))
    assert rattle.benchmark(model, Pictures(), attacks="fgsm", n=9).n == 9


def test_the_result_prints_as_a_table_and_converts_to_records() -> None:
    result = rattle.benchmark(small_cnn(), images(), attacks="smoke-ensemble", epsilon=0.1)
    rows = result.records()
    parts = [f"smoke-ensemble: {part}" for part in ("apgd-ce", "apgd-t", "fab-t", "square")]
    assert [row["attack"] for row in rows] == ["clean", "smoke-ensemble", *parts]
    assert all(row["n"] == N and row["low"] <= row["accuracy"] <= row["high"] for row in rows)
    whole, *each = (row["seconds"] for row in rows[1:])
    assert all(seconds > 0 for seconds in each)
    assert sum(each) == pytest.approx(whole)
    lines = str(result).splitlines()
    assert lines[0].split("  ")[0] == "attack"
    assert re.search(rf"^clean +\d+\.\d +\[\d+\.\d, \d+\.\d\] +{N} +0\.0$", str(result), re.M)
    assert result.to_plain()["attacks"]["smoke-ensemble"]["parts"]["square"]["seconds"] == each[-1]


def test_batches_follow_the_model_to_its_device() -> None:
    x, y = images()
    result = rattle.evaluate(linear(), x, y, "fgsm", epsilon=0.05, device="cpu")
    assert result.n == N
    with pytest.raises(rattle.RattleError, match="there is no device 'meta' here"):  # so the model would have moved
        rattle.evaluate(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), x, y, "fgsm", device="meta")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, y: rattle.evaluate(linear(), x, None, "fgsm"), "images without labels cannot be evaluated"),
        (lambda x, y: rattle.evaluate(linear(), TensorDataset(x, y), y, "fgsm"), "has its own labels: give None for y"),
        (
            lambda x, y: rattle.evaluate(linear(), DataLoader(TensorDataset(x, y), shuffle=True), None, "fgsm"),
            "the DataLoader shuffles",
        ),
        (
            lambda x, y: rattle.evaluate(linear(), x, y, "fgsm", epsilon=0.1, threat=rattle.Threat()),
            "give the threat as threat= or as norm= and epsilon=, not both",
        ),
        (
            lambda x, y: rattle.evaluate(linear(), DataLoader(TensorDataset(x)), None, "fgsm"),
            "pairs of image and label",
        ),
        (lambda x, y: rattle.benchmark(linear(), (x, y, y)), "data as a tuple is (images, labels), got 3 entries"),
        (lambda x, y: rattle.benchmark(linear(), "digit"), "unknown dataset 'digit'; did you mean 'digits'?"),
        (lambda x, y: rattle.benchmark(linear(), (x, y), n=0), "n must be >= 1, got 0"),
        (lambda x, y: rattle.benchmark(linear(), (x, y), norm="l0"), "threat.norm must be one of linf, l2, l1"),
        (lambda x, y: rattle.benchmark(linear(), (2 * x.float(), y)), "images must lie in [0, 1]"),
        (lambda x, y: rattle.benchmark("preact18", (x, y)), "the model must be a torch.nn.Module, got str"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(RattleError, match=re.escape(sentence)):
        call(*images())
