"""What somebody planted in a run does not reach the terminal, a spreadsheet, LaTeX, or files outside the run."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.cli.console import Console, print_table
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.report.writers import csv_table, escape_csv, latex_table, markdown_table
from rattle.runs.io import append_line, write_atomically
from rattle.runs.lock import is_locked, locked, truncate
from rattle.runs.paths import Run, printable
from support.run_folders import whole
from support.tiny_runs import RECIPE, save_run

TITLE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ename"  # a window's title, a cleared screen, C1, text from right to left


def obeyed(text: str) -> bool:
    """Whether text holds what a terminal would obey."""
    return printable(text) != text


def test_a_name_in_a_table_a_log_and_an_error_is_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Console().log(TITLE)
    print_table([TITLE, "b"], [[TITLE, "1\n2"]], title=TITLE)
    assert main(["evaluate", TITLE]) == 2
    assert main([TITLE]) == 2
    said = capsys.readouterr()
    assert not obeyed(said.out + said.err)
    assert said.out.count("\\x1b]0;owned\\x07") == 3
    assert "1\\n2" in said.out


@pytest.mark.parametrize("words", [["table"], ["compare"], ["report", "--no-compute", "--out", "p.html"]])
def test_no_command_that_reads_runs_prints_what_a_terminal_obeys(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, right in (("a", 0.2), ("b", 0.9)):
        run = Run(whole(here / folder, right=right, name=TITLE + folder, data={"name": TITLE}))
        last = {"epoch": 4, TITLE: 1.0, "val_robust": 0.5}
        run.metrics.write_text(run.metrics.read_text() + json.dumps(last) + "\n" + TITLE)
        result = json.loads((run.results / "pgd20.json").read_text())
        result["attacks"] = {
            "pgd20": result["attacks"]["pgd20"] | {"parts": {TITLE: result["attacks"]["pgd20"]["flags"]}}
        }
        (run.results / "pgd20.json").write_text(json.dumps(result | {"warnings": [TITLE]}))
    main([words[0], "a", "b", *words[1:]])
    said = capsys.readouterr()
    assert said.out + said.err
    assert not obeyed(said.out + said.err)


def test_a_run_with_such_a_name_is_evaluated_and_shown_escaped(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(here / "run", recipe=replace(RECIPE, name=TITLE))
    assert main(["evaluate", "run", "--attacks", "fgsm", "--n", "5"]) == 0
    said = capsys.readouterr()
    assert "\\x1b]0;owned" in said.out
    assert not obeyed(said.out + said.err)


@pytest.mark.parametrize("cell", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", " =cmd|' /C calc'!A0"])
def test_no_cell_is_a_formula(cell: str) -> None:
    for text in (csv_table([cell, "n"], [["x", "1"]]), csv_table(["a", "b"], [["x", cell]])):
        assert not any(part.strip('" ')[:1] in "=+@\t\r" for line in text.splitlines() for part in line.split(","))
    assert escape_csv("-0.25") == "-0.25"
    assert escape_csv("1e-05") == "1e-05"


def test_cells_stay_inside_their_row() -> None:
    latex = latex_table(["a"], [["\\input{/etc/passwd}\n\n\\\\ \x1b[2J%"]], left=1, comments=["one\ntwo\r\\input{x}"])
    assert "\\input{/" not in latex
    assert len(latex.splitlines()) == 8
    assert not obeyed(latex + markdown_table(["a"], [["x\x1b\ny | z"]], left=1))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside"
    file.write_text("precious")
    return file


def test_a_planted_link_is_not_written_through(tmp_path: Path, outside: Path) -> None:
    run = Run(save_run(tmp_path / "run"))
    (run.folder / ".recipe.yaml.part").symlink_to(outside)
    write_atomically(run.recipe, run.recipe.read_bytes())
    assert not run.recipe.is_symlink()
    for path in (run.lock, run.metrics):
        path.symlink_to(outside)
    with pytest.raises(OSError), locked(run.lock):
        pass
    assert not is_locked(run.lock)
    for write in (lambda: append_line(run.metrics, {}), lambda: truncate(run.metrics, 0)):
        with pytest.raises(RattleError, match="is a link, which is not followed"):
            write()
    assert outside.read_text() == "precious"


@pytest.mark.parametrize("name", ["results", "checkpoints", "events", "lock", "metrics.jsonl"])
def test_training_and_evaluation_stop_at_a_link_that_leads_out(
    name: str, here: Path, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = Run(save_run(here / "run")), here / "elsewhere"
    folder.mkdir()
    path = run.folder / name
    if name == "checkpoints":
        path.rename(folder / "checkpoints")
        folder = folder / "checkpoints"
    path.symlink_to(outside if "." in name or name == "lock" else folder)
    before = sorted(folder.rglob("*"))
    command = (
        ["evaluate", "run", "--attacks", "fgsm", "--n", "5"] if name == "results" else ["train", "run", "--resume"]
    )
    assert main(command) == 2
    assert "link" in capsys.readouterr().err
    assert outside.read_text() == "precious"
    assert sorted(folder.rglob("*")) == before


def test_replacing_a_run_removes_its_links_and_not_what_they_lead_to(here: Path) -> None:
    run, kept = Run(save_run(here / "run")), here / "elsewhere" / "kept"
    kept.parent.mkdir()
    kept.write_text("precious")
    run.results.symlink_to(kept.parent)
    few = ["--batch-size", "192", "--attack.steps", "1", "--val-attack.steps", "1", "--data.train-size", "192"]
    assert main(["train", "run", *few, "--out", "run", "--overwrite"]) == 0
    assert kept.read_text() == "precious"
    assert not run.results.exists()


def test_nothing_is_writable_by_everybody_without_a_umask(here: Path) -> None:
    before = os.umask(0)
    try:
        few = ["--batch-size", "192", "--attack.steps", "1", "--val-attack.steps", "1", "--data.train-size", "192"]
        assert main(["train", "digits-linf-cnn-trades", "--width", "4", "--epochs", "1", *few, "--out", "run"]) == 0
        assert main(["evaluate", "run", "--attacks", "fgsm", "--n", "5"]) == 0
        os.umask(0)
        write_atomically(here / "library", b"")
        append_line(here / "lines", {})
    finally:
        os.umask(before)
    written = list(here.rglob("*"))
    assert len(written) > 10
    assert not [path for path in written if path.stat().st_mode & stat.S_IWOTH]
