"""`rattle compare`, `table` and `report` of models that were not trained here, beside runs."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import rattle
from rattle.cli.main import main
from rattle.recipes.catalog import get_recipe
from rattle.report.run_data import load_runs
from rattle.stats import student
from support.command import Command
from support.tiny_runs import RECIPE, digits, linear, save_files, save_run

ATTACKS = ["--attacks", "fgsm", "pgd3", "--threat.epsilon", "0.1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """w.pt-results, of somebody else's network and weights, and runs/a, both evaluated on the same 60 images."""
    folder = tmp_path_factory.mktemp("compare")
    save_files(folder)
    data = ["--data", str(folder / "test.npz")]
    model = ["--model", f"{folder / 'net.py'}:Net", "--weights", str(folder / "w.pt")]
    assert main(["evaluate", *model, *data, *ATTACKS]) == 0
    assert main(["evaluate", str(save_run(folder / "runs" / "a")), *data, *ATTACKS]) == 0
    return folder


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


@pytest.mark.usefixtures("inside")
def test_compare_prints_accuracies_differences_and_a_sentence(command: Command) -> None:
    out = command("compare", "w.pt-results", "runs/a")
    assert re.search(r"n +w\.pt +TRADES +difference +p, Holm", out)
    accuracy, change = r"[\d.]+ \[[\d.]+, [\d.]+\]", r"[+-]?[\d.]+ \[-?[\d.]+, -?[\d.]+\]"
    lines = [line.strip() for line in out.replace("\u2212", "-").splitlines()]
    for title in ("Clean", "FGSM", "PGD-3"):
        row = next(line for line in lines if line.startswith(title))
        assert re.fullmatch(rf"{title} +60 +{accuracy} +{accuracy} +{change} +(< )?[\d.]+", row)
    assert re.search(r"under PGD-3 .*\(.*n = 60, p [=<] [\d.]+\)\.", out)
    assert "Holm's adjustment (tests shown: 3)" in out


@pytest.mark.usefixtures("inside")
def test_compare_json_is_one_object_with_the_flags_means(command: Command) -> None:
    out = command("compare", "runs/a", "w.pt-results", "--json", "--baseline", "./w.pt-results/")
    found = json.loads(out)
    assert [(m["label"], m["trained_here"]) for m in found["models"]] == [("w.pt", False), ("TRADES", True)]
    tests = {test["attack"]: test for test in found["tests"]}
    assert list(tests) == ["clean", "fgsm", "pgd3"]
    stored = json.loads(Path("w.pt-results/pgd3.json").read_text())
    assert tests["pgd3"]["first"] == "w.pt"
    assert tests["pgd3"]["first_accuracy"] == stored["robust_accuracy"]
    assert tests["pgd3"]["first_interval"] == stored["robust_interval"]
    low, high = tests["pgd3"]["difference_interval"]
    assert low < tests["pgd3"]["difference"] < high


def test_what_python_evaluated_is_compared_with_what_the_command_did(inside: Path, command: Command) -> None:
    """Floats, channels last, against the bytes of a file: the images are the same."""
    _, _, x, y = digits()
    images = (x[:60] / 255).permute(0, 2, 3, 1).numpy()
    settings = {"norm": "linf", "epsilon": 0.1, "metadata": {"name": "mine"}}
    rattle.evaluate(linear(), images, y[:60].numpy(), ["fgsm", "pgd3"], out=inside / "python", **settings)
    rattle.benchmark(linear(), "digits", attacks="fgsm", epsilon=0.1, n=60, out=inside / "benchmark")
    found = json.loads(command("compare", "w.pt-results", "python", "benchmark", "--json"))
    assert [model["label"] for model in found["models"]] == ["w.pt", "mine", "benchmark"]
    assert found["not_compared"] == []
    assert {test["difference"] for test in found["tests"]} == {0}


def test_runs_that_differ_in_their_seed_are_one_method_paired_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    at = replace(get_recipe("digits-linf-cnn-at"), width=4, data=RECIPE.data)
    folders = []
    for name, recipe in (("trades", RECIPE), ("at", at)):
        for seed in (0, 1):
            shift = 0 if name == "trades" else 2
            run = save_run(tmp_path / f"{name}{seed}", seed=seed + shift, recipe=replace(recipe, seed=seed))
            assert main(["evaluate", str(run), "--attacks", "fgsm", "--threat.epsilon", "0.1", "--n", "60"]) == 0
            folders.append(run.name)
    found = json.loads(command("compare", *folders, "--json"))["tests"]
    assert [(test["first"], test["second"], test["attack"]) for test in found] == [
        ("TRADES", "AT", "clean"),
        ("TRADES", "AT", "fgsm"),
    ]
    for test in found:
        name = "clean_accuracy" if test["attack"] == "clean" else "robust_accuracy"
        by_run = [json.loads(Path(folder, "results", "fgsm.json").read_text())[name] for folder in folders]
        assert [*test["first_accuracies"], *test["second_accuracies"]] == pytest.approx(by_run)
        gaps = [by_run[2] - by_run[0], by_run[3] - by_run[1]]
        assert test["difference"] == pytest.approx(sum(gaps) / 2)
        assert test["p"] >= student(gaps)
    assert re.search(r"FGSM +60 +[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ +[+-][\d.]+ \[", command("compare", *folders))
    networks = json.loads(command("compare", *folders[:2], "--json"))["tests"]  # one method: its two networks
    assert "first_interval" in networks[0]


@pytest.mark.usefixtures("inside")
def test_a_table_has_a_row_for_each_model(command: Command) -> None:
    rows = [line.split("|")[1].strip() for line in command("table", "w.pt-results", "runs/a").splitlines()[2:4]]
    assert rows == ["w.pt", "TRADES"]
    twice = command("table", "w.pt-results", "w.pt-results").splitlines()[2:4]
    assert all("| 1 |" in line for line in twice)  # a model named twice is not two seeds


def test_a_page_leaves_out_what_a_model_from_elsewhere_has_not(inside: Path, command: Command) -> None:
    command("report", "w.pt-results", "runs/a", "--no-compute", "--out", "both.html")
    both = (inside / "both.html").read_text()
    assert "w.pt beside TRADES" in both
    assert f"not trained here, {inside / 'net.py'}:Net" in both
    missing = re.findall(r'<p class="missing">(.*?)</p>', both)
    assert missing
    assert not [sentence for sentence in missing if "w.pt" in sentence]
    command("report", "w.pt-results", "--out", "alone.html")  # computing passes it over
    alone = (inside / "alone.html").read_text()
    assert set(re.findall(r'<section id="(.*?)">', alone)) == {"results", "comparison", "beyond", "trade-off"}
    assert re.findall(r'<a href="#(.*?)">', alone) == ["results", "comparison", "beyond", "trade-off"]
    assert '<p class="missing">' not in alone


def test_a_model_is_called_by_its_name_its_weights_or_its_folder(inside: Path) -> None:
    model, (_, _, x, y) = linear(), digits()
    for folder, metadata in (
        ("named", {"name": "ours", "checkpoint": "x.pt"}),
        ("weights", {"checkpoint": "zoo/x.pt"}),
        ("of-a-run", {"checkpoint": "runs/b/checkpoints/best.safetensors"}),
        ("bare", {}),
    ):
        rattle.evaluate(model, x[:5], y[:5], "fgsm", out=inside / folder, metadata=metadata)
    names = [run.label for run in load_runs([inside / name for name in ("named", "weights", "of-a-run", "bare")])]
    assert names == ["ours", "x.pt", "b", "bare"]


def test_results_of_two_models_in_one_folder_are_pointed_out(inside: Path) -> None:
    model, (_, _, x, y) = linear(), digits()
    for attack in ("fgsm", "pgd2"):
        rattle.evaluate(model, x[:5], y[:5], attack, out=inside / "mixed", metadata={"checkpoint": f"{attack}.pt"})
    (run,) = load_runs([inside / "mixed"])
    assert run.notes == ["its results are of several models: fgsm.pt, pgd2.pt"]


def test_what_cannot_be_compared_is_one_sentence(
    inside: Path, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    model, (_, _, x, y) = linear(), digits()
    rattle.evaluate(model, x[:9], y[:9], "pgd3", epsilon=0.2, out=inside / "few")
    rattle.evaluate(model, x[60:120], y[60:120], "pgd3", epsilon=0.1, out=inside / "others")
    rattle.evaluate(model, x[:60], y[:60], "pgd3", epsilon=0.2, out=inside / "stronger")
    (inside / "empty").mkdir(exist_ok=True)
    for words, sentence in (
        (["w.pt-results", "w.pt"], "w.pt is a file, not a folder of a run or of results"),
        (["w.pt-results", "empty"], "empty holds neither a run nor results: it has no recipe.yaml and no results"),
        (["w.pt-results"], "name two different folders or more"),
        (["w.pt-results", "./w.pt-results"], "name two different folders or more"),
        (["w.pt-results", "others"], "w.pt and others (Clean, PGD-3): they share none of their 60 and 60 images"),
    ):
        assert sentence in command.refused("compare", *words)
    out = command("compare", "w.pt-results", "stronger")
    sentence = "not compared: w.pt and stronger (PGD-3): they differ in threat.epsilon (0.1; 0.2) and step_size"
    assert sentence in out
    assert main(["table", "w.pt-results", "stronger"]) == 0
    assert sentence in capsys.readouterr().err


def test_a_damaged_result_is_named_and_the_others_are_compared(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("w.pt-results", "damaged", dirs_exist_ok=True)
    (inside / "damaged" / "fgsm.json").write_text("{")
    capsys.readouterr()
    assert main(["compare", "damaged", "runs/a", "--json"]) == 0
    found = capsys.readouterr()
    assert found.err == "warning: w.pt: fgsm.json is damaged and was left out\n"
    assert [test["attack"] for test in json.loads(found.out)["tests"]] == ["clean", "pgd3"]
