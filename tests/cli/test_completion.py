"""Completion, in a real bash: commands, options, names and run folders."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rattle.cli.main import main
from support import run_folders as made

BASH = shutil.which("bash")


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    capsys.readouterr()
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ev"], ["evaluate"]),
        (
            ["train", "digits-linf-cnn-at-"],
            ["digits-linf-cnn-at-1st", "digits-linf-cnn-at-2nd", "digits-linf-cnn-at-awp"],
        ),
        (["train", "X", "--objective.taylor.e"], ["--objective.taylor.eta"]),
        (["sweep", "X", "--seed"], ["--seeds", "--seed"]),
        (["evaluate", "runs/a"], [r"runs/a\ b", "runs/a"]),
        (["evaluate", "X", "--attacks", "pgd20", "autoattack-p"], ["autoattack-plus"]),
        (["train", "X", "--model", "mob"], ["mobilenetv2"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, words: list[str], expected: list[str]) -> None:
    for name in ("a", "a b", "other"):
        made.recipe(tmp_path / "runs" / name)
    typed = " ".join(f"'{word}'" for word in ("rattle", *words))
    code = (
        f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _rattle; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    answer = subprocess.run([BASH or "", "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert answer.stderr == ""
    found = answer.stdout.splitlines()
    assert {*expected} <= {*found}
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_the_scripts_are_well_formed_and_register_themselves(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"bash -n {script} && source {script} && complete -p rattle"
    answer = subprocess.run([BASH or "", "-c", code], capture_output=True, text=True, timeout=60)
    assert (answer.stderr, answer.stdout) == ("", "complete -o default -F _rattle rattle\n")
    assert main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    assert zsh.startswith("#compdef rattle\n")
    assert zsh.endswith(script.read_text())
    assert main(["completion", "fish"]) == 0
    fish = capsys.readouterr().out
    assert "-n '__fish_seen_subcommand_from evaluate' -l attacks -x -a 'pgd20 cw20 fgsm" in fish
    assert all(line.startswith(("complete -c rattle -n ", "# ")) for line in fish.splitlines())
