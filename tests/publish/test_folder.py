"""What `rattle push --to FOLDER` writes, which is what is uploaded; neither the network nor huggingface_hub is used."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load

import rattle
from rattle.cli.main import main
from rattle.data.registry import Data
from support import run_folders
from support.command import Command
from support.tiny_runs import RECIPE, save_run, small_cnn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with results of 200 images, and metrics for the page."""
    folder = save_run(tmp_path_factory.mktemp("runs") / "a")
    run_folders.epochs(folder)
    clean = [1] * 190 + [0] * 10
    run_folders.result(folder, "autoattack", [1] * 100 + [0] * 100, clean)
    return run_folders.result(folder, "pgd20", [1] * 120 + [0] * 80, clean)


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "model"
    assert main(["push", str(run), "me/digits", "--to", str(out), "--license", "mit"]) == 0
    return out


def test_a_published_folder_loads_bit_for_bit_and_is_evaluated_tabulated_and_published_again(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    ours, weights = dict(small_cnn().state_dict()), (folder / "model.safetensors").read_bytes()
    for found in (rattle.load(folder).state_dict(), load(weights)):
        torch.testing.assert_close(dict(found), ours, rtol=0, atol=0)
    words = ["--attacks", "fgsm", "--n", "20", "--out", str(tmp_path / "results")]
    assert main(["evaluate", str(folder), *words]) == 0
    assert "| 95.00 | 60.00 | 50.00 |" in command("table", str(folder))
    assert main(["push", str(folder), "me/again", "--to", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "again" / "results" / "pgd20.json").is_file()


def test_the_card_has_front_matter_results_and_recipe_and_the_page_is_of_this_run_alone(
    run: Path, folder: Path
) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "me/digits" in page
    assert str(run) not in page
    assert "/tmp/" not in page[page.rindex("</script>") :]
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, front, text = card.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter["license"] == "mit"
    (results,) = matter["model-index"][0]["results"]
    assert [(m["name"], m["value"], m["args"]["n"]) for m in results["metrics"]] == [
        ("clean accuracy", 0.95, 200),
        ("robust accuracy, PGD-20", 0.6, 200),
        ("robust accuracy, AutoAttack", 0.5, 200),
    ]
    assert r"| PGD-20 | 60.0 \[53.1, 66.5] | 200 | digits | PGD; norm linf, epsilon 0.2 |" in text
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert rattle.Recipe.from_yaml(recipe) == RECIPE


def test_paths_of_the_machine_are_not_published(tmp_path: Path) -> None:
    data = Data(name=str(tmp_path / "secret" / "mine.npz"), root=str(tmp_path), extra=str(tmp_path / "more.npz"))
    recipe = replace(RECIPE, data=data, init=str(tmp_path / "w.pt"))
    run = save_run(tmp_path / "a", recipe=recipe)
    run_folders.result(run, "pgd20", [1, 0], [1, 1])
    stored = run / "results" / "pgd20.json"
    plain = {"checkpoint": str(run / "checkpoints" / "best.safetensors"), "data": data.name}
    stored.write_text(json.dumps(json.loads(stored.read_text()) | plain))
    out = tmp_path / "out"
    assert main(["push", str(run), "me/x", "--to", str(out), "--no-page"]) == 0
    assert not [file for file in out.rglob("*") if file.is_file() and str(tmp_path).encode() in file.read_bytes()]
    assert "trained on `mine.npz` and extra images, `more.npz`, by" in (out / "README.md").read_text(encoding="utf-8")
    rattle.load(out)


def test_results_of_another_checkpoint_are_left_out_and_older_ones_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folders.result(save_run(tmp_path / "a"), "pgd20", [1, 0], [1, 1])
    run_folders.result(run, "cw20", [1, 0], [1, 1])
    stored = run / "results" / "pgd20.json"
    other = {"checkpoint": "runs/a/checkpoints/last.safetensors"}
    stored.write_text(json.dumps(json.loads(stored.read_text()) | other))
    os.utime(run / "results" / "cw20.json", (0, 0))
    assert main(["push", str(run), "me/x", "--to", str(tmp_path / "out"), "--no-page"]) == 0
    warnings = capsys.readouterr().err
    assert "results/pgd20.json was measured on last.safetensors" in warnings
    assert "results/cw20.json is older than best.safetensors" in warnings
    assert "| PGD-20 |" not in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_mistakes_are_one_sentence(run: Path, tmp_path: Path, command: Command) -> None:
    own = save_run(tmp_path / "own", recipe=replace(RECIPE, model="net.py:build"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for words, expected in (
        ((str(run), "digits"), "OWNER/NAME"),
        ((str(run), "me/x", "--to", str(tmp_path / "full")), "not empty"),
        ((str(tmp_path / "no"), "me/x", "--to", str(tmp_path / "new")), str(tmp_path / "no")),
        ((str(own), "me/x", "--to", str(tmp_path / "new")), "net.py:build"),
    ):
        assert expected in command.refused("push", *words)
    assert not (tmp_path / "new").exists()


def test_without_the_package_push_and_load_say_what_to_install(run: Path, monkeypatch, command: Command) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import of it fails, as where it is not installed
    for words in (["push", str(run), "me/x"], ["evaluate", "hf:me/x"]):
        assert "needs the package huggingface_hub: pip install 'rattle-robust[hub]'" in command.refused(*words)
