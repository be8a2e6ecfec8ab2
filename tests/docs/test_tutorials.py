"""Tutorials run from top to bottom, at the small size that each page states; every command is run or marked."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import matplotlib as mpl
import pytest

from _site.notebook import notebook
from _site.tutorials import IMAGES, blocks, fences, made_small, run_page
from rattle.attacks.registry import ATTACKS
from rattle.models.user import PLUGINS
from rattle.objectives.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs"
QUICK = [
    "start/install.md",
    "guides/harden.md",
    "guides/own-loop.md",
    "guides/plug-ins.md",
    "guides/random-models.md",
    "guides/imbalanced.md",
    "guides/corruptions.md",
    "guides/false-robustness.md",
    "faq.md",
]
SLOW = [
    "start/tour.md",
    "guides/measure.md",
    "guides/compare.md",
    "guides/scale.md",
]
ELSEWHERE = {  # pages whose commands other tests run
    "attacks/index.md": "cli/test_documented_commands.py",
    "methods/index.md": "cli/test_documented_commands.py",
    "guides/report.md": "cli/test_documented_commands.py",
    "guides/beyond-one-number.md": "cli/test_documented_commands.py",
    "guides/corruptions.md": "cli/test_documented_commands.py",
    "guides/false-robustness.md": "cli/test_documented_commands.py",
    "guides/data.md": "cli/test_documented_commands.py",
    "guides/publishing.md": "publish/test_docs.py",
    "guides/publishing-robustbench.md": "publish/test_docs.py",
    "guides/training.md": "cli/test_custom.py",
}
COMMAND = re.compile(r"^(\$ )?(rattle|torchrun|make|pip|python) ", re.MULTILINE)
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    "page", [*QUICK, *(pytest.param(page, marks=[pytest.mark.slow, pytest.mark.process]) for page in SLOW)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.path", __import__("sys").path.copy())
    monkeypatch.setenv(PLUGINS, "")
    for registry in (METHODS, ATTACKS):  # a page may register parts of its own
        monkeypatch.setattr(registry, "known", {**registry.known})
        monkeypatch.setattr(registry, "objects", {**registry.objects})
    backend = mpl.get_backend()
    text = (DOCS / page).read_text(encoding="utf-8")
    try:
        ran = list(run_page(made_small(text), tmp_path))
    finally:
        mpl.use(backend)
    assert len(ran) == sum(block.runs for block in blocks(text)) > 0
    drawn = {name for name in IMAGES.findall(text) if name.startswith("tutorial-")}
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn), "its pictures are made by its run"
    assert all(printed.strip() for block, printed in ran if block.match[3]), (
        "a block whose output is shown prints nothing"
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_run_or_says_what_it_needs(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    commands = [(language, code) for language, code in fences(text) if COMMAND.search(code) and language != "text"]
    unmarked = [(language, code) for language, code in commands if not code.startswith("# needs ")]
    shown = [(language, code) for language, code in unmarked if language != "bash" and not code.startswith("$ ")]
    if page not in (*QUICK, *SLOW):
        assert page in ELSEWHERE or not [code for language, code in unmarked if language == "bash"]
    assert not shown, "begin the block with `# needs ...`, or call it bash and let a test run it"


def test_the_tests_that_run_other_pages_name_them() -> None:
    for page, test in ELSEWHERE.items():
        text = (Path(__file__).parents[1] / test).read_text(encoding="utf-8")
        assert page in text or Path(page).name in text


def test_what_a_page_shows_was_filled_in() -> None:
    for page in (*QUICK, *SLOW):
        shown = [block for block in blocks((DOCS / page).read_text(encoding="utf-8")) if block.match[3]]
        assert all(block.match[4].strip() for block in shown), page


def test_a_page_that_cannot_be_made_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no '--epochs 12'"):
        made_small("<!-- small: --epochs 12 -> --epochs 1 -->\nrattle train a")
    assert "rattle train a --epochs 1\n" in made_small(
        "<!-- small: --epochs 12 -> --epochs 1 -->\nrattle train a --epochs 12\n"
    )


def test_a_command_that_fails_or_that_nothing_can_run_ends_the_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no test runs"):
        list(run_page("```bash\ncurl elsewhere\n```\n", tmp_path))
    with pytest.raises(RuntimeError, match="exit code 2"):
        list(run_page("```bash\nrattle evaluate runs/none --attacks fgsm\n```\n", tmp_path))


def test_the_notebook_has_the_code_and_the_outputs_of_its_page() -> None:
    text = (DOCS / "guides" / "harden.md").read_text(encoding="utf-8")
    made = notebook(text, DOCS / "images")
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    ran = [block for block in blocks(text) if block.runs]
    assert ["".join(cell["source"]) for cell in code] == [block.code.rstrip("\n") for block in ran]
    printed = [output["text"] for cell in code for output in cell["outputs"] if "text" in output]
    assert printed == [block.match[4] for block in ran if block.match[4]]
    drawn = [output["data"]["image/png"] for cell in code for output in cell["outputs"] if "data" in output]
    pictures = [(DOCS / "images" / name).read_bytes() for name in IMAGES.findall(text)]
    assert list(map(base64.b64decode, drawn)) == pictures != []
    words = "".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert "](" not in words
    assert "<!--" not in words
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
