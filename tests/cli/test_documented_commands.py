"""Commands of the pages on reports, attacks and methods run as they stand, on a network of somebody else's and runs."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import rattle
from rattle.attacks import PGD
from rattle.cli.main import main
from rattle.objectives.registry import METHODS
from support.tiny_runs import linear, save_run

DOCS = Path(__file__).parents[2] / "docs"
NET = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def commands(page: str) -> list[str]:
    found = []
    for block in blocks(page, "bash"):
        if not block.startswith("# needs "):
            found += [line for line in block.splitlines() if line.startswith("rattle ")]
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    torch.save(linear().state_dict(), tmp_path / "theirs.pt")
    for name, seed in (("a", 0), ("b", 1), ("robust", 0), ("taylor", 1)):
        save_run(tmp_path / "runs" / name, seed=seed)
    monkeypatch.chdir(tmp_path)
    (generated,) = (block for block in blocks("guides/data.md", "python") if "generated.npz" in block)
    exec(generated)
    return tmp_path


PAGES = [
    ("guides/report.md", 5),
    ("guides/beyond-one-number.md", 2),
    ("guides/corruptions.md", 1),
    ("guides/false-robustness.md", 1),
    ("attacks/index.md", 2),
    ("methods/index.md", 5),
    ("guides/data.md", 1),
]


@pytest.mark.parametrize(("page", "least"), PAGES)
@pytest.mark.usefixtures("place")
def test_the_commands_of_a_page_run_in_order(page: str, least: int) -> None:
    found = commands(page)
    assert len(found) >= least
    for command in found:
        words = shlex.split(command, comments=True)[1:]
        attacking = words[0] in ("evaluate", "transfer")
        assert main([*words, *(["--n", "9"] if attacking and "--n" not in words else [])]) == 0, command


def test_the_python_line_of_the_attacks_page_makes_the_attack() -> None:
    (line,) = re.findall(r"^attack = .*$", (DOCS / "attacks/index.md").read_text(encoding="utf-8"), re.MULTILINE)
    names: dict = {"rattle": rattle}
    exec(line, names)
    assert names["attack"] == PGD(threat=rattle.Threat(), steps=40, step_size=0.01, restarts=5)


def test_the_python_lines_of_the_methods_page_leave_a_gradient() -> None:
    block, *_ = blocks("methods/index.md", "python")
    names: dict = {}
    exec(block, names)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in names["model"].parameters())


def test_the_python_lines_of_the_page_on_scale_print_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "guides/scale.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(block, {})
    assert re.search(r"^pgd20 .* 100 ", capsys.readouterr().out, re.MULTILINE)


def test_the_methods_page_has_notes_for_every_method() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "methods/index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for heading in headings for name in heading.split(", ")} >= METHODS.built_in
