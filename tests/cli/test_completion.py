"""Completion, in real shells: commands, options, names and run folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rattle.cli.main import main
from support import run_folders as made

# What each shell is given to print the completions of a line: SCRIPT is ours, LINE is what was typed.
BASH = """source SCRIPT; COMP_WORDS=(LINE); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _rattle
printf '%s\\n' "${COMPREPLY[@]}" """
FISH = "source SCRIPT; complete -C 'LINE' | cut -f1"
# A real zsh in a terminal: Tab is pressed, and what completion adds is printed between two null bytes.
ZSH = r"""zmodload zsh/zpty || exit 3
zpty z zsh -f -i
zpty -w z "source SCRIPT"
zpty -w z 'mark () { print -r -- $'"'\0'"' }; compprefuncs=(mark); comppostfuncs=(mark exit)'
zpty -w z 'compadd () { local -a hits; [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }'
zpty -w z 'builtin compadd -A hits "$@"; (( $#hits )) && print -rl -- $hits }'
zpty -w z 'bindkey "^I" complete-word; zstyle ":completion:*" insert-tab false; print -n $'"'\0'"''
zpty -r -m z line $'*\0'
zpty -w -n z "LINE"$'\t'
zpty -r -m z line $'*\0*\0' && print -r -- "${${line#*$'\0'}%$'\0'*}"
"""
SHELLS = {"bash": BASH, "fish": FISH, "zsh": ZSH}
CASES = {
    "ev": ["evaluate"],
    "train digits-linf-cnn-at-": ["digits-linf-cnn-at-1st", "digits-linf-cnn-at-2nd", "digits-linf-cnn-at-awp"],
    "train X --objective.taylor.e": ["--objective.taylor.eta"],
    "sweep X --seed": ["--seeds", "--seed"],
    "evaluate runs/a": ["runs/a b", "runs/a"],
    "evaluate X --attacks autoattack-p": ["autoattack-plus"],
    "evaluate X --attacks pgd20 autoattack-p": ["autoattack-plus"],
    "train X --model mob": ["mobilenetv2"],
    "report train --o": ["--out"],
    "train custom --meth": ["--method"],
    "data g": ["get"],
    "completion z": ["zsh"],
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    return request.param


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    capsys.readouterr()
    assert main(["completion", shell]) == 0
    path = folder / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def run(shell: str, code: str, folder: Path) -> list[str]:
    """The lines that a shell without anybody's settings prints."""
    home = {**os.environ, "HOME": str(folder), "TERM": "dumb"}
    plain = {"bash": ["--norc"], "fish": ["--no-config"], "zsh": ["-f"]}[shell]
    answer = subprocess.run([shell, *plain, "-c", code], capture_output=True, cwd=folder, env=home, timeout=60)
    assert answer.stderr == b"", answer.stderr
    return answer.stdout.decode().replace("\r", "").split("\n")


@pytest.mark.parametrize("line", CASES)
def test_a_shell_completes(shell: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "a b", "other"):
        made.recipe(tmp_path / "runs" / name)
    script = script_of(shell, tmp_path, capsys)
    code = SHELLS[shell].replace("SCRIPT", str(script)).replace("LINE", f"rattle {line}")
    found = [word.replace("\\ ", " ") for word in run(shell, code, tmp_path) if word]
    assert {*CASES[line]} <= {*found}
    assert all(word.startswith(line.split()[-1]) for word in found)


def test_a_shell_reads_the_script_without_a_word(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(shell, tmp_path, capsys)
    said = {"bash": "complete -p rattle", "zsh": "print $_comps[rattle]", "fish": "complete -c rattle | grep -c watch"}
    expected = {"bash": "complete -o default -F _rattle rattle", "zsh": "_bash_complete -o default -F _rattle"}
    found = run(shell, f"source {script} && {said[shell]}", tmp_path)
    assert found[0] == expected[shell] if shell in expected else int(found[0]) > 3


def test_every_script_is_made_of_the_same_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the shells are not there too."""
    bash, zsh, fish = (script_of(shell, tmp_path, capsys).read_text() for shell in ("bash", "zsh", "fish"))
    assert zsh.startswith("#compdef rattle\n")
    assert zsh.endswith(bash)
    assert "-n '__rattle_is evaluate' -l attacks -x -a 'pgd20 cw20 fgsm" in fish
    assert "evaluate) words=" in bash
