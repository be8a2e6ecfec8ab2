"""Help reads as help: arguments have names, attacks are listed whole, and nothing in it is for readers of the code."""

from __future__ import annotations

import pytest

from rattle.attacks.registry import ATTACKS
from rattle.cli.evaluate import Options
from rattle.cli.main import COMMANDS, main
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.runs.io import new_file

WORDS = [[name] for name in COMMANDS if name not in ("train", "sweep", "data")]
WORDS += [["train", f"digits-linf-cnn-{name}"] for name in ("at", "trades-awp-2nd-fast")]
WORDS += [["data", "get"], ["data", "show"]]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_help_has_no_code_in_it_and_names_what_it_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *words)
    assert ">>>" not in text
    _, _, positional = text.partition("positional arguments")
    for line in positional.partition("options")[0].splitlines()[1:]:
        assert "STR" not in line


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("evaluate", "[OPTIONS] [RUN]"),
        ("report", "[OPTIONS] RUN ..."),
        ("watch", "[-h] RUN "),
        ("recipes", "[-h] [TEXT]"),
        ("completion", "{bash,zsh,fish}"),
    ],
)
def test_usage_calls_arguments_by_what_they_are(
    command: str, usage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert usage in help_of(capsys, command).splitlines()[0]


@pytest.mark.parametrize("command", ["evaluate", "transfer"])
def test_every_attack_is_listed(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    about = help_of(capsys, command).partition("\u256d")[0]
    listed = about.partition("The attacks are ")[2].partition(";")[0].replace(",", " ").split()
    assert {*listed} == {*ATTACKS.built_in, "pgd20", "cw20"}
    assert max(map(len, about.splitlines())) <= 80


def test_a_file_that_is_there_is_replaced_on_request_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / "bench.png"
    assert new_file(str(path), False) == path
    path.write_text("mine")
    with pytest.raises(RattleError, match=r"bench\.png is there already: --overwrite replaces it"):
        new_file(str(path), False)
    assert new_file(str(path), True) == path


@pytest.mark.parametrize("words", [["evaluate"], ["paper"], ["train", "digits-linf-cnn-trades"]], ids=" ".join)
def test_an_empty_default_and_none_are_left_out(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *words)
    assert "None" not in text
    assert "(default: '')" not in text
    assert "(default: )" not in text
    assert "(default: 0)" in text  # of --seed


def test_help_leaves_the_settings_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    before = Options.__doc__, dict(Options.__annotations__)
    help_of(capsys, "evaluate")
    assert (Options.__doc__, Options.__annotations__) == before
    assert parse(Options, ["run", "--n", "None"], "evaluate").n is None  # undoes an option before it
