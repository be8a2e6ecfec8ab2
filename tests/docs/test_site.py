"""The site: cards hold what the registries hold, what is public is documented, nothing comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rattle
from _site.attack_cards import attack_card
from _site.method_cards import method_card, method_index
from _site.offline import fetched
from _site.public import on_api_pages, own_docstring, undocumented
from _site.settings import comments, parameter_comments, shown
from _site.tex import tex, typeset, with_formulas
from rattle.attacks.registry import ATTACKS, list_attacks
from rattle.objectives.registry import METHODS

ROOT = Path(__file__).parents[2]
OURS = sorted(METHODS.built_in)


@pytest.mark.parametrize("name", OURS)
def test_a_method_has_a_card_with_its_paper_settings_and_formula(name: str) -> None:
    card, entry = method_card(name), METHODS.entry(name)
    assert card.startswith(f"# `{name}`")
    assert entry.paper in card
    assert entry.summary in card
    assert "Beside the authors' code" not in card
    for row in re.findall(r"^\| `(objective\.[\w.-]+)` \| ([^|]*) \| ([^|]*)", card, re.MULTILINE):
        value = METHODS[name].objective
        for part in row[0].split(".")[1:]:
            value = getattr(value, part.replace("-", "_"), None)
        assert row[1] == shown(value) or "teacher" in row[0], row
        assert row[2].strip(), f"{row[0]} of {name} is not explained"


@pytest.mark.parametrize("name", [n for n in list_attacks() if n in ATTACKS.built_in or n[-1].isdigit()])
def test_an_attack_has_a_card_with_its_settings(name: str) -> None:
    card = attack_card(name)
    assert card.startswith(f"# `{name}`")
    assert "| norms | l_inf" in card
    attack = rattle.get_attack(name, rattle.Threat())
    for setting, value in re.findall(rf"^\| `{re.escape(name)}\.([\w-]+)` \| ([^|]*) \|", card, re.MULTILINE):
        assert value == shown(getattr(attack, setting.replace("-", "_")))
    assert not re.findall(r"^\| `[^`]+` \| [^|]* \|  \|$", card, re.MULTILINE), "a setting that is not explained"


def test_the_cost_of_a_card_is_the_measured_one() -> None:
    assert "| a step's cost over TRADES | 1.00; `trades-awp` 1.22" in method_card("trades")
    assert "| a step's cost over TRADES | not measured |" in method_card("sota")


def test_the_page_of_methods_links_every_card_and_keeps_what_is_about_all() -> None:
    page = method_index()
    assert all(f"({name}.md)" in page for name in OURS)
    assert "## teachers" in page
    assert "## mart" not in page
    assert "| PGD on CE, gaussian start | gamma 0.005, after 10 epochs | yes |" in page


def test_comments_behind_settings_and_parameters_are_read() -> None:
    lines = [
        "class A:",
        "    x: float = 1  # how *far*",
        "    y: tuple = (",
        "        1,",
        "    )  # two",
        "    z: int = 0",
    ]
    assert comments(lines) == {"x": r"how \*far\*", "y": "two"}
    assert parameter_comments(["def f(", "    x: int,  # how far", "    *,", "    y=1,", ") -> None:"]) == {
        "x": "how far"
    }
    assert [shown(v) for v in (8 / 255, 5 / 6, 0.1, True, (), None, 9)] == [
        "8/255",
        "5/6",
        "0.1",
        "yes",
        "none",
        "none",
        "9",
    ]


def test_formulas_of_docstrings_become_tex() -> None:
    assert tex("beta/4 KL(p(x) || p(x'))") == r"\tfrac{\beta}{4} \operatorname{KL}(p(x) \,\Vert\, p(x'))"
    assert tex("l ||p(x) - p(x')||^2") == r"l \lVert p(x) - p(x') \rVert ^2"
    assert tex("CE(f(x^), y) + max_{k != y} p_k") == r"\operatorname{CE}(f(\hat{x}), y) + \max_{k \ne  y} p_{k}"
    assert typeset("CE(f(x), y) + Taylor terms; x is seen.").endswith("\\text{Taylor terms}\\]\n\nx is seen.")
    assert typeset("Random search, no formula.") == "Random search, no formula."
    assert with_formulas("r = x' - x. A sentence = prose.") == r"\(r = x' - x\). A sentence = prose."
    assert all("\\[" in method_card(name) for name in OURS if name != "sota")


def test_every_public_name_is_documented_and_on_one_api_page() -> None:
    assert undocumented() == []
    assert sorted(on_api_pages()) == rattle.__all__


def test_a_dataclass_without_a_docstring_is_found() -> None:
    @dataclass
    class Bare:
        x: int = 0

    assert own_docstring(Bare) == ""


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://elsewhere.example/a.js"></script>',
        '<script src="//elsewhere.example/a.js"></script>',
        '<link rel="stylesheet" href="https://elsewhere.example/a.css">',
        '<link href="https://elsewhere.example" rel="preconnect">',
        '<img alt="" src="http://elsewhere.example/a.png">',
        "<style>@import url(https://elsewhere.example/a.css)</style>",
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f'<a href="https://elsewhere.example">a link is fine</a>{text}')
    assert len(fetched(tmp_path)) == 1


def test_pictures_and_styles_of_the_docs_load_nothing() -> None:
    assert fetched(ROOT / "docs") == []


@pytest.mark.process
@pytest.mark.slow
def test_the_site_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert fetched(tmp_path / "site") == []
    assert "objective.weight" in (tmp_path / "site" / "methods" / "mart.html").read_text()
    index = (tmp_path / "site" / "search" / "search_index.js").read_text()
    assert "Masked gradients" in index
    written = (tmp_path / "site" / "files" / "examples" / "own_loop.py.txt").read_text()
    assert written == (ROOT / "examples" / "own_loop.py").read_text()
