"""The zoo: every model loads offline, is small, is packed into a wheel, and does what its record says."""

from __future__ import annotations

from pathlib import Path

import pytest

import rattle
from rattle.cli.main import main
from rattle.evaluation.evaluate import evaluate
from rattle.runs.zoo import FOLDER, entry, list_zoo
from support.command import Command
from support.tiny_runs import digits

PROMISED = {f"digits-linf-cnn-{method}" for method in ("at", "trades", "trades-2nd", "trades-awp-2nd", "plain")}


def accuracies(name: str) -> dict[str, float]:
    found = entry(name)
    return {"clean": found["clean"]["accuracy"]} | {a: each["accuracy"] for a, each in found["attacks"].items()}


def test_the_promised_models_are_there_and_small() -> None:
    assert {*PROMISED, "digits-l2-cnn-trades-2nd"} <= set(list_zoo())
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == set(list_zoo())
    assert all(path.stat().st_size < 200_000 for path in FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("name", list_zoo())
def test_a_model_does_what_its_record_says(name: str) -> None:
    """Clean and PGD-20, image by image; other processors round differently, so that an image or two may differ."""
    recorded, threat = entry(name), rattle.Threat(**entry(name)["config"]["recipe"]["attack"]["threat"])
    _, _, x, y = digits()
    result = evaluate(rattle.load(f"zoo:{name}"), x[:200], y[:200], "pgd20", threat=threat)
    records = (result.clean, recorded["clean"]), (result.attacks["pgd20"].flags, recorded["attacks"]["pgd20"])
    for found, kept in records:
        assert len(kept["flags"]) == recorded["n"] == len(y)
        assert kept["accuracy"] == kept["flags"].count("1") / len(y)
        assert sum(flag != (bit == "1") for flag, bit in zip(found, kept["flags"], strict=False)) <= 2


def test_the_records_are_those_of_robust_models_and_of_a_plain_one() -> None:
    for name in list_zoo():
        found = accuracies(name)
        assert found["clean"] > 0.9
        assert found["autoattack"] <= min(found["pgd20"], found["cw20"])
        assert (found["autoattack"] > 0.3) == (not name.endswith("-plain"))
        assert entry(name)["commands"][0].startswith("rattle train digits-")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(rattle.RattleError, match="did you mean 'digits-linf-cnn-trades-2nd'"):
        rattle.load("zoo:digits-linf-cnn-trades-2d")


def test_the_command_line_lists_evaluates_and_exports_them(here: Path, command: Command) -> None:
    (line,) = command("recipes", "--zoo", "l2").splitlines()
    assert line.startswith("zoo:digits-l2-cnn-trades-2nd  clean 9")
    assert main(["recipes", "--zoo", "imagenet"]) == 2
    assert main(["evaluate", "zoo:digits-linf-cnn-at", "--attacks", "fgsm", "--n", "20"]) == 0
    assert (here / "zoo_digits-linf-cnn-at" / "results" / "fgsm.json").is_file()
    for words in ([], [], ["--out", "a.safetensors"]):  # the second time replaces the first one's file
        assert main(["export", "zoo:digits-linf-cnn-at", *words]) == 0
    assert (here / "zoo_digits-linf-cnn-at" / "model.safetensors").is_file()
