"""The README: its Python runs, its table is the study's, its links lead somewhere, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rattle.objectives.registry import METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(PYTHON,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
STUDY = (ROOT / "reproduction" / "results" / "trade-off.md").read_text(encoding="utf-8")
SHORTER = {
    "harden(model, train, ": "harden(model, (train[0][:200], train[1][:200]), ",
    "epsilon=0.15, test=(x, y)": "epsilon=0.15, epochs=1, clean_drop=100, test=(x[:20], y[:20])",
    'x[:100], y[:100], "autoattack"': 'x[:3], y[:3], "apgd-ce"',
}


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    assert len(README) <= 5000
    assert len(PYTHON.splitlines()) <= 12
    assert f"{len(METHODS.built_in)} training methods" in README
    for command in ("make demo", "make test"):
        assert re.search(rf"^{command} ", README, re.MULTILINE)


def test_the_start_page_has_the_same_python_and_output() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert PYTHON in page
    assert README.partition("```text\n")[2].partition("```")[0] in page


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code = PYTHON
    for long, short in SHORTER.items():
        assert long in code
        code = code.replace(long, short)
    exec(code, {})
    printed = capsys.readouterr().out
    shown = README.partition("```text\n")[2].partition("```")[0]
    firsts = [[line.split()[0] for line in text.splitlines()[:4]] for text in (printed, shown)]
    assert firsts[0] == firsts[1] == ["before,", "clean", "pgd20", "n"]
    assert re.search(r"^AutoAttack: [\d.]+% of 3 images$", printed, re.MULTILINE)


@pytest.mark.slow
def test_the_readme_shows_about_what_its_python_prints(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PYTHON, {})
    printed = capsys.readouterr().out
    assert re.search(r"^clean +98\.4 ", printed, re.MULTILINE)
    robust = [float(re.search(r"AutoAttack: ([\d.]+)%", text)[1]) for text in (printed, README)]
    assert abs(robust[0] - robust[1]) <= 10, "other numbers of threads and other CPUs give other networks"


def test_the_table_and_its_reading_are_the_study() -> None:
    rows = re.findall(r"^\| (TRADES[^|]*) \| (\d) \| (.*) \|$", README, re.MULTILINE)
    assert len(rows) == 6
    for name, inv_lambda, numbers in rows:
        assert f"| {name} | {inv_lambda} | 3 | {numbers} |" in STUDY
    reading = " ".join(README.split())
    for attack, written in (("pgd20", "PGD-20"), ("cw20", "CW-20"), ("autoattack", "AutoAttack")):
        pattern = rf"\| TRADES \+ 1st \+ 2nd \| {attack} \| clean [^|]*\| \d+ \| ([^|]*) \|"
        (difference,) = re.findall(pattern, STUDY.replace("\\", ""))
        assert f"{difference} points under {written}" in reading or f"{difference} under {written}" in reading


def test_every_file_that_the_readme_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if not link.startswith("https://")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []
