"""The command line: what it prints where, and one sentence and exit code 2 for every mistake."""

import json
from pathlib import Path

import numpy as np
import pytest

from rattle import __version__
from rattle.cli.main import main
from rattle.objectives.registry import METHOD_GROUPS, METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.names import list_recipes
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import OneCycle
from rattle.weights import EMA
from support.command import Command

TINY = ["--width", "4", "--epochs", "1", "--data.train-size", "96", "--data.val-size", "20", "--batch-size", "48"]
RECIPE = "digits-linf-cnn-trades-2nd"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained from the command line."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", RECIPE, *TINY, "--objective.taylor.eta", "0.3", "--out", str(folder)]) == 0
    return folder


def test_train_writes_the_recipe_that_ran(run: Path) -> None:
    recipe = Recipe.from_yaml((run / "recipe.yaml").read_text())
    assert (recipe.width, recipe.epochs, recipe.objective.taylor.eta) == (4, 1, 0.3)
    assert recipe.attack == get_recipe(RECIPE).attack
    assert (run / "checkpoints" / "best.safetensors").is_file()


def test_evaluate_json_prints_one_object_that_equals_the_results_file(run: Path, command: Command) -> None:
    result = json.loads(command("evaluate", str(run), "--attacks", "pgd3", "--n", "40", "--json"))
    assert result == json.loads((run / "results" / "pgd3.json").read_text())
    assert result["n"] == len(result["clean_flags"]) == len(result["attacks"]["pgd3"]["flags"]) == 40
    assert result["recipe"] == RECIPE
    low, high = result["attacks"]["pgd3"]["robust_interval"]
    assert 0 <= low <= result["robust_accuracy"] <= high <= 1
    assert result["attacks"]["pgd3"]["settings"]["threat"] == {"norm": "linf", "epsilon": 0.2}


def test_evaluate_prints_a_table_and_writes_a_file_an_attack(run: Path, tmp_path: Path, command: Command) -> None:
    checkpoint = run / "checkpoints" / "last.safetensors"
    words = ["--attacks", "fgsm", "cw2", "--n", "20", "--threat.epsilon", "8/255", "--out", str(tmp_path)]
    out = command("evaluate", str(checkpoint), *words)
    assert all(word in out for word in ("fgsm", "cw2", "clean", RECIPE, str(tmp_path)))
    assert {p.name for p in tmp_path.iterdir()} == {"fgsm.json", "cw2.json"}
    assert json.loads((tmp_path / "cw2.json").read_text())["attacks"]["cw2"]["settings"]["threat"]["epsilon"] == 8 / 255


def test_kinds_are_chosen_by_name(tmp_path: Path) -> None:
    words = ["--schedule.kind", "OneCycle", "--schedule.peak", "0.3", "--average.kind=EMA", "--awp.kind", "none"]
    awp = RECIPE.replace("trades", "trades-awp")
    assert main(["train", awp, *TINY, *words, "--out", str(tmp_path / "run")]) == 0
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    assert (recipe.schedule, recipe.average, recipe.awp) == (OneCycle(peak=0.3), EMA(), None)


def test_a_run_is_refused_and_trained_again_from_its_yaml(run: Path, tmp_path: Path, command: Command) -> None:
    assert "--resume" in command.refused("train", str(run / "recipe.yaml"), "--out", str(run))
    assert main(["train", str(run / "recipe.yaml"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--data.name digit", "did you mean 'digits'?"),
        ("--model cnnn", "did you mean 'cnn'?"),
        ("--epochs 0", "epochs must be >= 1"),
        ("--schedule.kind Sine", "one of Piecewise, Cosine, OneCycle"),
        ("--schedule.kind", "--schedule.kind"),
        ("--resume --overwrite", "--overwrite"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_leaves_nothing_behind(
    options: str, words: str, command: Command, here: Path
) -> None:
    assert words in command.refused("train", RECIPE, *options.split())
    assert not list(here.iterdir())


@pytest.mark.parametrize("options", ["--n 0", "--batch-size 0", "--threat.epsilon -1", "--first", "--jobs 0"])
def test_evaluate_refuses_what_means_nothing(run: Path, options: str, command: Command, tmp_path: Path) -> None:
    command.refused("evaluate", str(run), *options.split(), "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_evaluate_of_a_file_that_is_no_checkpoint(tmp_path: Path, command: Command) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n" * 40)
    assert "photo.png" in command.refused("evaluate", str(tmp_path / "photo.png"))
    assert "no checkpoint" in command.refused("evaluate", str(tmp_path))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--objective.taylor.etta 0.3", "--objective.taylor.eta"),
        ("--epoch 3", "--epochs"),
        ("--epochs many", "--epochs"),
        ("--objective.taylor.mode literal", "objective.taylor.mode"),
        ("--objective.taylor.eta 8/x", "8/255"),
        ("--objective.taylor.eta -1", "objective.taylor.eta must be >= 0"),
        ("--noise.sigma -1", "noise.sigma must be >= 0"),
    ],
)
def test_an_option_that_cannot_be_read_names_the_nearest_or_what_it_takes(
    args: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", RECIPE, *args.split()])
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert words in " ".join((said.out + said.err).split())


def test_a_method_that_needs_three_classes_refuses_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = ["--data.name", str(tmp_path / "two.npz"), "--data.val-size", "8", "--batch-size", "16", "--width", "4"]
    assert main(["train", "digits-linf-cnn-s2o-trades", *data, "--out", str(tmp_path / "run")]) == 2
    assert "S2O needs 3 classes, got 2" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_recipes_lists_every_name_with_a_line(command: Command) -> None:
    assert [line.split()[0] for line in command("recipes", "--all").splitlines()] == list_recipes()
    assert all(line.startswith("digits-l2-") for line in command("recipes", "digits-l2").splitlines())


def test_recipes_alone_has_a_line_of_every_method_and_how_names_are_built(command: Command) -> None:
    text = command("recipes")
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"{heading}\n  " in text for heading in METHOD_GROUPS.values())
    for name in METHODS.built_in:
        entry = METHODS.entry(name)
        assert f"  {name}".ljust(18) + f"{entry.summary} ({entry.paper})\n" in text  # all of it in one line
    for word in ("digits", "l2", "wrn34-10", "-awp", "-asam", "-2nd", "-released", "-fast", "--all"):
        assert word in text.partition("A recipe is named")[2]


def test_recipes_prints_one_as_a_line_or_as_yaml(command: Command) -> None:
    assert "TRADES + 1st + 2nd (Zhang et al. 2019)" in command("recipes", RECIPE)
    assert Recipe.from_yaml(command("recipes", RECIPE, "--yaml")) == get_recipe(RECIPE)


def test_doctor_attacks_a_network(command: Command) -> None:
    out = command("doctor")
    assert "PGD-20 moved 32 images by 0.0314" in out
    assert __version__ in out


@pytest.mark.slow
def test_demo_compares_two_methods(tmp_path: Path, command: Command) -> None:
    assert "TRADES + 1st + 2nd" in command("demo", "--epochs", "1", "--out", str(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} == {"trades", "trades-2nd", "report.html"}
    assert (tmp_path / "trades" / "results" / "pgd20.json").is_file()
