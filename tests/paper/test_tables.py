"""Every published cell: tables.py against paper_tables.txt, a transcription of the paper's tables row by row."""

from pathlib import Path

import pytest

from rattle.errors import RattleError
from rattle.paper import tables
from rattle.paper.rows import Row

FIXTURE = Path(__file__).parent / "paper_tables.txt"


def printed(row: Row) -> list[str]:
    """The cells as the paper prints them, Table 2's stars put back."""
    stars = {"pgd40": "*", "pgd10": "**"}
    return [cell.printed + stars.get(cell.published_under, "") for cell in row.cells]


def in_print(number: int) -> list[list[str]]:
    """Our rows in the paper's layout: Tables 1, 3, 4 and 5 set several of them side by side."""
    rows = tables.table(number).rows
    beside = {1: 2, 3: 3, 4: 3, 5: 2}.get(number, 1)
    height = len(rows) // beside
    lines = []
    for i in range(height):
        group = [rows[i + k * height] for k in range(beside)]
        line = []
        for k, row in enumerate(group):
            label = [row.method] if k == 0 or number == 1 else []
            line += [*label, *([row.architecture] if number == 2 else []), *printed(row)]
        lines.append([str(number), *line])
    return lines


@pytest.mark.parametrize("number", range(1, 9))
def test_every_published_cell_and_label_of_a_table_is_as_printed(number: int) -> None:
    lines = [line.split(" | ") for line in FIXTURE.read_text().splitlines()]
    assert in_print(number) == [line for line in lines if line[0] == str(number)]


def test_the_numbers_of_section_5_3_are_as_printed() -> None:
    cells = [text for row in tables.SWA_COMPARISON.rows for text in printed(row) if text != "-"]
    assert ["0", *cells] in [line.split(" | ") for line in FIXTURE.read_text().splitlines()]


def test_every_row_has_a_recipe_of_ours() -> None:
    rows = [row for t in tables.TABLES.values() for row in t.rows]
    assert all(row.recipe for row in rows)
    assert len({name for row in rows for name in (row.recipe, row.surrogate) if name}) == 52
    assert [row.method for row in rows if row.extra] == ["HAT(DDPM)"]


def test_a_row_knows_its_radii_its_surrogate_and_its_baseline() -> None:
    assert [cell.epsilon for cell in tables.table(1).rows[0].cells] == [None, 0.031, 0.031, 8 / 255]
    assert [cell.epsilon for cell in tables.table(3).rows[0].cells] == [None, 128 / 255, 128 / 255]
    for row in tables.table(4).rows:
        surrogate = f"{row.dataset}-linf-preact18-at"
        assert [cell.surrogate for cell in row.cells] == [None, surrogate, surrogate]
    first, second = tables.table(8).rows[:2]
    assert (first.baseline, second.baseline) == (None, "cifar10-linf-resnet18-at")


def test_contradictions_and_marks_are_noted() -> None:
    assert any("55.13" in note for note in tables.table(1).notes)
    assert any("HAT and HAT(DDPM)" in note and "AutoAttack" in note for note in tables.table(8).notes)
    marked = [tables.table(2).rows[6], tables.table(2).rows[4], *tables.table(8).rows[-2:]]
    cells = [row.cell("pgd20") for row in marked]
    assert {cell.attack for cell in cells} == {"pgd20"}  # what we run stands under its own heading
    assert [(cell.published_under, cell.value) for cell in cells] == [
        ("pgd40", 58.22), ("pgd10", 57.91), ("autoattack", 49.08), ("autoattack", 57.09),
    ]  # fmt: skip


def test_a_missing_number_is_none_and_an_unknown_table_is_refused() -> None:
    assert tables.table(2).rows[2].cell("pgd20").value is None
    with pytest.raises(RattleError, match="9"):
        tables.table(9)
