"""Lists, help and refusals of names and paths come without torch; completion is tyro's."""

import json
import re
import subprocess
import sys

import pytest

from rattle.attacks.registry import ATTACKS
from rattle.cli.main import COMMANDS, main

Said = dict[str, tuple[int, str, list[str]]]
# Runs commands one after the other in one process; prints the exit code of each and what was imported by then.
RUN = """
import contextlib, io, json, sys
from rattle.cli.main import main
found = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code or 0
    heavy = sorted({"torch", "scipy", "sklearn", "matplotlib", "plotly", "pandas"} & {*sys.modules})
    found.append([code, said.getvalue(), heavy])
print(json.dumps(found))
"""
ANSWERS = {
    "--help": " harden ",
    "--version": "rattle ",
    "recipes": "A recipe is named",
    "recipes --all": "digits-linf-cnn-trades-2nd",
    "data --help": "fashion-mnist",
    "--tyro-print-completion bash": "complete",
}
MISTAKES = {
    "trian": "did you mean 'train'?",
    "train digits-linf-cnn-tradse": "did you mean 'digits-linf-cnn-trades'?",
    "train digits-linf-cnnn-trades": "did you mean 'cnn'?",
    "train nowhere.yaml": "nowhere.yaml",
    "train runs/nowhere": "runs/nowhere",
    "train --epochs 3": "--epochs",
    "train custom --data.name digit --model cnn": "did you mean 'digits'?",
    "train custom --data.name digits --model cnnn": "did you mean 'cnn'?",
    "train custom --data.name digits --model cnn --method trade": "did you mean 'trades'?",
    "sweep digits-linf-cnn-tradse": "did you mean 'digits-linf-cnn-trades'?",
    "evaluate nowhere": "nowhere",
    "evaluate zoo:any --attacks pdg20": "did you mean 'pgd20'?",
    "evaluate --model cnnn": "did you mean 'cnn'?",
    "transfer --from nowhere --to runs/a": "nowhere",
    "compare nowhere runs/a": "nowhere",
    "paper 9": "9",
    "recipes nonesuch": "nonesuch",
    "recipes imagenet --yaml": "imagenet",
    "data get cifar11": "did you mean 'cifar10'?",
    "data show digit": "did you mean 'digits'?",
    "data fetch digits": "get",
}
MISTAKES |= {
    f"{command} nowhere": "nowhere" for command in ("export", "fidelity", "gap", "landscape", "report", "table")
}
HELP = {f"{command} --help": f"usage: rattle {command}" for command in COMMANDS}


@pytest.fixture(scope="module")
def said() -> Said:
    """By command: its exit code, what it printed, and the heavy libraries that were imported by then."""
    commands = [*ANSWERS, *HELP, *MISTAKES]
    words = json.dumps([command.split() for command in commands])
    output = subprocess.check_output([sys.executable, "-c", RUN, words], timeout=300, text=True)
    return dict(zip(commands, json.loads(output), strict=True))


@pytest.mark.process
@pytest.mark.parametrize(("command", "words"), [*ANSWERS.items(), *HELP.items()])
def test_an_answer_needs_no_torch(command: str, words: str, said: Said) -> None:
    code, text, heavy = said[command]
    assert (code, heavy) == (0, [])
    assert words in text


@pytest.mark.process
@pytest.mark.parametrize(("command", "words"), MISTAKES.items())
def test_a_mistyped_name_or_path_is_refused_without_torch(command: str, words: str, said: Said) -> None:
    code, text, heavy = said[command]
    assert (code, heavy) == (2, [])
    assert words in text
    assert "Traceback" not in text


@pytest.mark.process
def test_help_fits_a_screen_and_each_command_begins_with_two_examples_that_it_knows(said: Said) -> None:
    lines = said["--help"][1].splitlines()
    assert len(lines) <= 24
    assert [name for name in COMMANDS if not any(f" {name} " in line for line in lines)] == []
    for name, command in COMMANDS.items():
        text = said[f"{name} --help"][1]
        assert text.startswith(f"examples:\n  rattle {command.examples[0]}\n  rattle {command.examples[1]}\n")
        own = [word for line in command.examples for word in line.split() if re.fullmatch(r"--[a-z-]+", word)]
        assert [word for word in own if word not in text] == []


def test_help_writes_a_radius_as_people_do(said: Said) -> None:
    assert "images are in [0, 1] (default: 8/255)" in " ".join(said["harden --help"][1].split())


@pytest.mark.process
@pytest.mark.parametrize("command", ["evaluate", "transfer"])
def test_help_lists_every_attack(command: str, said: Said) -> None:
    text = said[f"{command} --help"][1].replace("\u2502", " ")
    listed = {*text.replace(",", " ").replace(";", " ").split()}
    assert listed >= {*ATTACKS.built_in, "pgd20", "cw20"}


@pytest.mark.process
def test_completion_knows_commands_and_options(said: Said) -> None:
    script = said["--tyro-print-completion bash"][1]
    assert all(word in script for word in (*COMMANDS, "--attacks", "--save-adversarial"))


def test_help_of_a_recipe_has_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits-linf-cnn-trades-2nd", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("--objective.taylor.eta", "1/lambda", "--attack.threat.epsilon", "--resume"))
