"""Opening never executes: code that a run or checkpoint names as its model runs by the user's word alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import rattle
from rattle.analysis.prepare import compute_landscapes, prepare
from rattle.analysis.taylor_error import measure_checkpoint
from rattle.cli.main import main
from rattle.cli.report import Options, write_report
from rattle.errors import RattleError
from rattle.evaluation.target import target_from_checkpoint
from rattle.publish.folder import write_folder
from rattle.runs import checkpoint
from rattle.runs.paths import Run
from support.command import Command
from support.tiny_runs import RECIPE, save_run, small_cnn

CANARY = '''"""A network."""
from pathlib import Path
Path("executed").touch()
from rattle import create_model

def build(classes, channels, width):
    return create_model("cnn", classes=classes, channels=channels, width=width)
'''
NAMES = ("nets/evil.py:build", "package.module:build", "evil:build", "timm:resnet18,checkpoint_path=nets/evil.py")
FEW = ["--n", "10", "--attacks", "fgsm"]
DOORS = {
    "evaluate": ["evaluate", "run", *FEW],
    "evaluate a checkpoint": ["evaluate", "run/checkpoints/best.safetensors", *FEW],
    "evaluate a lone checkpoint": ["evaluate", "lone.safetensors", *FEW],
    "export": ["export", "run"],
    "transfer from": ["transfer", "--from", "run", "--to", "honest", *FEW],
    "transfer to": ["transfer", "--from", "honest", "--to", "run", *FEW],
    "landscape": ["landscape", "run"],
    "landscape beside": ["landscape", "honest", "run"],
    "fidelity": ["fidelity", "run", "--n", "5"],
    "gap": ["gap", "run", "--n", "5"],
    "train": ["train", "run", "--out", "new"],
    "resume": ["train", "run", "--resume"],
    "train a file": ["train", "run/recipe.yaml", "--out", "new"],
    "sweep": ["sweep", "run", "--seeds", "0", "--out", "swept"],
    "a teacher": ["train", "digits-linf-cnn-hat", "--objective.teacher.weights", "run", "--out", "new"],
    "push": ["push", "run", "me/x", "--to", "pushed"],
}
CALLS: dict[str, Callable[[], object]] = {
    "load": lambda: rattle.load("run"),
    "load a lone checkpoint": lambda: rattle.load("lone.safetensors"),
    "target": lambda: target_from_checkpoint("run"),
    "fit": lambda: rattle.fit("run", "new"),
    "fit on": lambda: rattle.fit("run", "run", resume=True),
    "landscapes": lambda: compute_landscapes(["run"]),
    "fidelity": lambda: measure_checkpoint("run"),
    "folder": lambda: write_folder("run", "out", "me/x"),
}


def plant(folder: Path, model: str) -> None:
    """A run that names code, the same checkpoint alone, the code, and an honest run beside it."""
    for name in ("nets/evil.py", "package/module.py", "package/__init__.py", "evil.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CANARY)
    recipe = replace(RECIPE, model=model)
    save_run(folder / "run", recipe=recipe)
    save_run(folder / "honest")
    (folder / "lone.safetensors").write_bytes((folder / "run/checkpoints/best.safetensors").read_bytes())


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, NAMES[0])
    return tmp_path


@pytest.mark.parametrize("door", DOORS)
def test_no_command_runs_what_it_opens(door: str, planted: Path, command: Command) -> None:
    before = sorted(planted.rglob("*"))
    said = command.refused(*DOORS[door])
    assert "nets/evil.py" in said
    assert door == "push" or "--trust-code" in said
    assert sorted(planted.rglob("*")) == before


@pytest.mark.parametrize("call", CALLS)
def test_no_function_runs_what_it_opens(call: str, planted: Path) -> None:
    with pytest.raises(RattleError, match=r"nets/evil\.py"):
        CALLS[call]()
    assert not (planted / "executed").exists()


def test_what_reads_no_weights_runs_nothing(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(planted / "run")
    assert main(["evaluate", "honest", *FEW]) == 0
    run.results.mkdir()
    (run.results / "fgsm.json").write_bytes((planted / "honest/results/fgsm.json").read_bytes())
    assert main(["report", "run", "--out", "page.html"]) == 0  # what it cannot compute is said, the rest is shown
    assert "not computed for run" in capsys.readouterr().err
    for words in (["table", "run", "honest"], ["compare", "run", "honest"]):
        assert main(words) == 0
    assert prepare(["run"]) == []
    assert write_report(Options(runs=("run",), out="again.html")).exists()
    assert not (planted / "executed").exists()


@pytest.mark.parametrize("name", [*NAMES[1:], "os:abort", "http.server:test", "package.module:no.such", "evil.py"])
def test_every_form_of_code_is_held_to_the_rule(name: str, here: Path) -> None:
    plant(here, name)
    for opened in (lambda: rattle.load("run"), lambda: rattle.fit("run", "new")):
        with pytest.raises(RattleError, match=r"^run.* names code to run as its model: .*--trust-code"):
            opened()
    assert not (here / "executed").exists()


def test_the_user_s_word_runs_it(planted: Path) -> None:
    for opened in (
        lambda: main(["evaluate", "run", *FEW, "--trust-code"]) == 0,
        lambda: main(["evaluate", "run", *FEW, "--model", NAMES[0]]) == 0,
        lambda: rattle.load("run", trust_code=True),
    ):
        assert opened()
        (planted / "executed").unlink()


FEWER = ["--epochs", "1", "--batch-size", "192", "--attack.steps", "1", "--val-attack.steps", "1"]


def test_a_model_named_on_the_command_line_trains_and_resumes(planted: Path) -> None:
    assert main(["train", "run", "--model", NAMES[0], *FEWER, "--out", "own"]) == 0
    assert main(["train", "own", "--resume"]) == 2
    assert main(["train", "own", "--resume", "--trust-code"]) == 0
    assert main(["train", "own", "--resume", "--model", NAMES[0]]) == 0


def test_a_teacher_s_code_runs_by_the_user_s_word_or_where_the_recipe_names_it(planted: Path) -> None:
    hat = ["train", "digits-linf-cnn-hat", *FEWER, "--width", "4"]
    given = ["--objective.teacher.weights", "run", "--out"]
    assert main([*hat, *given, "trusted", "--trust-code"]) == 0
    assert main(["train", "trusted", "--resume"]) == 2
    assert main(["train", "trusted", "--resume", "--trust-code"]) == 0
    assert main([*hat, "--model", NAMES[0], *given, "same"]) == 0
    assert main([*hat, "--model", NAMES[0], "--out", "first"]) == 0  # its teacher is trained first, of the same network


def test_a_checkpoint_without_code_needs_no_word(tmp_path: Path) -> None:
    checkpoint.write_checkpoint(
        tmp_path / "a.safetensors",
        recipe=RECIPE,
        classes=tuple("0123456789"),
        shape=(1, 8, 8),
        progress={},
        model=small_cnn(),
    )
    assert rattle.load(tmp_path / "a.safetensors")
