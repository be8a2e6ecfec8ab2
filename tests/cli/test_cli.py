"""The command line: what it prints where, and one sentence and exit code 2 for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rattle import __version__
from rattle.cli.main import COMMANDS, main
from rattle.objectives.registry import GROUPS, METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.names import list_recipes
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import OneCycle
from rattle.weights import EMA

TINY = ["--width", "4", "--epochs", "1", "--data.train-size", "96", "--data.val-size", "20", "--batch-size", "48"]
RECIPE = "digits-linf-cnn-trades-2nd"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained from the command line."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", RECIPE, *TINY, "--objective.taylor.eta", "0.3", "--out", str(folder)]) == 0
    return folder


def mistake(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The sentence that a mistaken command prints."""
    capsys.readouterr()
    assert main(list(args)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rattle: ")
    assert said.err.count("\n") == 1
    return said.err


def misread(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What option parsing prints before it exits."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return " ".join((said.out + said.err).split())


def helped(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_train_writes_the_recipe_that_ran(run: Path) -> None:
    recipe = Recipe.from_yaml((run / "recipe.yaml").read_text())
    assert (recipe.width, recipe.epochs, recipe.objective.taylor.eta) == (4, 1, 0.3)
    assert recipe.attack == get_recipe(RECIPE).attack
    assert (run / "checkpoints" / "best.safetensors").is_file()


def test_evaluate_json_prints_one_object_that_equals_the_results_file(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(run), "--attacks", "pgd3", "--n", "40", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    result = json.loads(said.out)
    assert result == json.loads((run / "results" / "pgd3.json").read_text())
    assert result["n"] == len(result["clean_flags"]) == len(result["attacks"]["pgd3"]["flags"]) == 40
    assert result["recipe"] == RECIPE
    low, high = result["attacks"]["pgd3"]["robust_interval"]
    assert 0 <= low <= result["robust_accuracy"] <= high <= 1
    assert result["attacks"]["pgd3"]["settings"]["threat"] == {"norm": "linf", "epsilon": 0.2}


def test_evaluate_prints_a_table_and_writes_a_file_an_attack(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    checkpoint = run / "checkpoints" / "last.safetensors"
    words = ["--attacks", "fgsm", "cw2", "--n", "20", "--threat.epsilon", "8/255", "--out", str(tmp_path)]
    assert main(["evaluate", str(checkpoint), *words]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("fgsm", "cw2", "clean", RECIPE, str(tmp_path)))
    assert out.count("]") == 4  # the title and three figures: none is cut
    assert "…" not in out
    assert {p.name for p in tmp_path.iterdir()} == {"fgsm.json", "cw2.json"}
    assert json.loads((tmp_path / "cw2.json").read_text())["attacks"]["cw2"]["settings"]["threat"]["epsilon"] == 8 / 255


def test_kinds_are_chosen_by_name(tmp_path: Path) -> None:
    words = ["--schedule.kind", "OneCycle", "--schedule.peak", "0.3", "--average.kind=EMA", "--awp.kind", "none"]
    awp = RECIPE.replace("trades", "trades-awp")
    assert main(["train", awp, *TINY, *words, "--out", str(tmp_path / "run")]) == 0
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe.schedule == OneCycle(peak=0.3)
    assert recipe.average == EMA()
    assert recipe.awp is None


def test_a_run_is_refused_resumed_and_trained_again_from_its_yaml(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(run)]
    assert "holds a run already: --resume continues it" in mistake(capsys, "train", str(run / "recipe.yaml"), *out)
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["train", str(run), *out, "--resume"]) == 0
    assert (run / "metrics.jsonl").read_bytes() == before
    assert main(["train", str(run / "recipe.yaml"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "unknown command 'trian'; did you mean `rattle train`?"),
        (["xyzzy"], "unknown command 'xyzzy'; the commands are "),
        (["train", "digits-linf-cnn-trade"], "unknown recipe 'digits-linf-cnn-trade'; did you mean 'digits-linf-cnn-"),
        (["train", "nowhere.yaml"], "there is no recipe file nowhere.yaml"),
        (["train", "--epochs", "3"], "the recipe comes first: rattle train RECIPE --epochs ..."),
        (["train", RECIPE, "--data.name", "digit"], "unknown dataset 'digit'; did you mean 'digits'?"),
        (["train", RECIPE, "--model", "cnnn"], "unknown model 'cnnn'; did you mean 'cnn'?"),
        (["train", RECIPE, "--epochs", "0"], "epochs must be >= 1"),
        (["train", RECIPE, "--schedule.kind", "Sine"], "--schedule.kind must be one of Piecewise, Cosine, OneCycle"),
        (["train", RECIPE, "--schedule.kind"], "--schedule.kind must be one of Piecewise, Cosine, OneCycle, got ''"),
        (["train", RECIPE, "--resume", "--overwrite"], "--resume continues a run and --overwrite replaces it"),
        (["evaluate", "nowhere"], "there is no run or checkpoint nowhere"),
        (["recipes", "nonesuch"], "no recipe's name contains 'nonesuch'"),
        (["recipes", "imagenet", "--yaml"], "unknown recipe 'imagenet'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in mistake(capsys, *args)
    assert not list(tmp_path.iterdir())  # nothing half begun is left behind


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--attacks", "pdg20"], "unknown attack 'pdg20'; did you mean 'pgd20'?"),
        (["--n", "0"], "the number of images must be >= 1, got 0"),
        (["--batch-size", "0"], "batch_size must be >= 1"),
        (["--threat.epsilon", "-1"], "threat.epsilon must be >= 0, got -1"),
    ],
)
def test_evaluate_refuses_what_means_nothing(
    run: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in mistake(capsys, "evaluate", str(run), *options)


def test_evaluate_of_a_file_that_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n" * 40)
    assert "is not a checkpoint, or is damaged" in mistake(capsys, "evaluate", str(tmp_path / "photo.png"))
    assert "holds no checkpoint" in mistake(capsys, "evaluate", str(tmp_path))


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        (["train", RECIPE, "--objective.taylor.etta", "0.3"], "--objective.taylor.eta"),
        (["train", RECIPE, "--epoch", "3"], "--epochs"),
        (["evaluate", "runs/a", "--atacks", "pgd20"], "--attacks"),
    ],
)
def test_a_mistyped_option_names_the_nearest(args: list[str], nearest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearest in misread(capsys, *args)


def test_a_value_of_the_wrong_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--epochs" in misread(capsys, "train", RECIPE, "--epochs", "many")
    assert "--objective.taylor.mode" in misread(capsys, "train", RECIPE, "--objective.taylor.mode", "literal")
    assert "must be a number such as 0.03 or 8/255" in misread(capsys, "train", RECIPE, "--objective.taylor.eta", "8/x")


def test_a_setting_that_means_nothing_is_refused_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert "objective.taylor.eta must be >= 0, got -1.0" in misread(
        capsys, "train", RECIPE, "--objective.taylor.eta", "-1"
    )
    assert "noise.sigma must be >= 0, got -1.0" in misread(capsys, "train", RECIPE, "--noise.sigma", "-1")


def test_a_method_that_needs_three_classes_refuses_two_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = ["--data.name", str(tmp_path / "two.npz"), "--data.val-size", "8", "--batch-size", "16", "--width", "4"]
    said = mistake(capsys, "train", "digits-linf-cnn-s2o-trades", *data, "--out", str(tmp_path / "run"))
    assert "S2O needs 3 classes, got 2" in said
    assert not (tmp_path / "run").exists()


def test_recipes_lists_every_name_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list_recipes()
    assert main(["recipes", "digits-l2"]) == 0
    assert all(line.startswith("digits-l2-") for line in capsys.readouterr().out.splitlines())


def test_recipes_alone_has_a_line_and_the_paper_of_every_method_and_how_names_are_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    lines = {line.split()[0]: line for line in text.partition("A recipe is named")[0].splitlines() if line[:2] == "  "}
    assert all(f"{heading}\n  " in text for heading in GROUPS.values())
    own = METHODS.built_in
    assert len({METHODS.entry(name).summary for name in own} - {""}) == len(
        own
    )  # none left out, or another's by `replace`
    for name in own:
        method = METHODS.entry(name)
        assert lines[name] == f"  {name}".ljust(18) + f"{method.summary} ({method.paper})"  # all of it in one line
    for word in ("digits", "l2", "wrn34-10", "-awp", "-asam", "-2nd", "-released", "-fast", "--all"):
        assert word in text.partition("A recipe is named")[2]


def test_recipes_prints_one_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", RECIPE, "--yaml"]) == 0
    assert Recipe.from_yaml(capsys.readouterr().out) == get_recipe(RECIPE)


def test_help_names_every_verb_and_train_explains_the_papers_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {command} " in out for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rattle {__version__}\n"
    assert main(["train", "--help"]) == 0
    assert "rattle train RECIPE" in capsys.readouterr().out
    text = helped(capsys, "train", RECIPE, "--help")
    assert all(word in text for word in ("--objective.taylor.eta", "1/lambda", "--attack.threat.epsilon", "--resume"))


@pytest.mark.parametrize("command", ["demo", "evaluate", "recipes", "doctor"])
def test_every_verb_documents_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"usage: rattle {command}" in helped(capsys, command, "--help")


def test_doctor_attacks_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "works: PGD-20 moved 32 images by 0.0314" in out
    assert __version__ in out


@pytest.mark.slow
def test_demo_compares_two_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--epochs", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "TRADES + 1st + 2nd" in out
    assert {p.name for p in tmp_path.iterdir()} == {"trades", "trades-2nd", "report.html"}
    assert (tmp_path / "trades" / "results" / "pgd20.json").is_file()


@pytest.mark.process
def test_python_m_rattle_answers_and_help_imports_no_torch() -> None:
    answer = subprocess.run([sys.executable, "-m", "rattle", "trian"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2
    assert answer.stderr == "rattle: unknown command 'trian'; did you mean `rattle train`?\n"
    check = "import sys; from rattle.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0
    assert "usage: rattle COMMAND" in answer.stdout
