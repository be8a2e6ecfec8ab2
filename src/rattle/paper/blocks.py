"""A table as blocks of text: what ran here, by data and network, and what the paper published, each under its own name.

A row number links the blocks: it is the row's place in the published block.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rattle.objectives.registry import METHODS
from rattle.paper import tables
from rattle.paper.cells import CellResult, ComparedRow
from rattle.paper.protocols import Protocol
from rattle.paper.rows import ARCHITECTURES, DATASETS, Cell, Row, parts_of
from rattle.paper.scales import Scale
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import epsilon_text
from rattle.report.naming import p_value, title_of
from rattle.runs.io import Plain
from rattle.stats import LEVEL

CHOSEN_ON: dict[Protocol, str] = {"honest": "validation", "paper": "test images"}
PLACES = {"%": 2, "distance": 4}  # decimals in the paper
TITLES = {"adbd": "ADBD", "rays": "RayS"}
NETWORKS = {**ARCHITECTURES, "cnn": "small CNN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Columns of labels on the left, columns of numbers on the right, under a caption that says whose they are."""

    caption: str
    head: list[str]
    rows: list[list[str]]  # the first label is empty but in the line that begins a group
    left: int  # columns of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """A table as text."""

    title: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    plain: Plain  # all numbers, for JSON


def data_of(recipe: Recipe) -> str:
    """The data that a recipe trains on, as the field writes it; a file or folder as it was given."""
    return DATASETS.get(recipe.data.name, recipe.data.name)


def network_of(recipe: Recipe) -> str:
    """The network that a recipe trains; a width that is not the published one is part of its name."""
    return NETWORKS.get(recipe.model, recipe.model) + (f" (width {recipe.width})" if recipe.width else "")


def method_text(recipe: Recipe, row: Row) -> str:
    """The method that a recipe trains, with eta where the row sets it, and its name where another has its loss."""
    eta, name = dict(row.overrides).get("objective.taylor.eta"), parts_of(row.recipe)[3] if row.recipe else ""
    own = METHODS.get(name)
    first = next((other for other, method in METHODS.items() if own and method.objective == own.objective), name)
    name = "" if name == first else f" ({name})"  # pang is TRADES in other settings
    extra = ", extra images" if recipe.data.extra else ""
    return recipe.method.replace(" + ", "+") + name + (f", eta {eta}" if eta else "") + extra


def setting_of(recipe: Recipe) -> str:
    threat = recipe.attack.threat
    norm = {"linf": "l_inf"}.get(threat.norm, "l_2")
    return f"{data_of(recipe)}, {network_of(recipe)}, trained for {norm} {epsilon_text(threat.epsilon)}"


def heading(cell: Cell, scale: Scale | None = None) -> str:
    """The title of a column: what the paper ran, or at a scale what we do."""
    title = TITLES.get(cell.column) or title_of(scale.name_of(cell.column) if scale else cell.column)
    return f"{title} (transfer)" if cell.surrogate else title


def decimals(cell: Cell, ours: CellResult) -> int:
    """As the paper prints it; fewer where few images decide."""
    return 1 if cell.unit == "%" and ours.images < 1000 else PLACES[cell.unit]


def shown(cell: Cell, ours: CellResult) -> str:
    """Ours in a cell; a run that diverged never shows a number."""
    if ours.state:
        return ours.state
    places = decimals(cell, ours)
    spread = "" if math.isnan(ours.std) else f" ± {ours.std:.{places}f}"
    return f"{ours.mean:.{places}f}{spread}"


def shown_interval(cell: Cell, ours: CellResult) -> str:
    places = decimals(cell, ours)
    return f"[{ours.interval.low:.{places}f}, {ours.interval.high:.{places}f}]" if ours.interval else "-"


def shown_difference(cell: Cell, ours: CellResult) -> str:
    if ours.difference is None:
        return "-"
    unit = 100 if cell.unit == "%" else 1
    star = "*" if ours.p_adjusted is not None and ours.p_adjusted < 1 - LEVEL else ""
    p = f"p {p_value(ours.difference.p)}".replace(" < ", "<")
    return f"{unit * ours.difference.mean:+.{decimals(cell, ours)}f}{star} ({p})"


def shown_published(cell: Cell, change: float | None) -> str:
    """A published number, with its difference to the paper's baseline; or with its attack, if not the heading's."""
    if cell.published_under:
        return f"{cell.printed} ({title_of(cell.published_under)})"
    return cell.printed if change is None else f"{cell.printed} ({change:+.{PLACES[cell.unit]}f})"


def lines_of(line: ComparedRow) -> Iterator[list[str]]:
    """What and cells of the lines of a run; a line below the first that would say nothing is left out."""
    cells = line.row.cells
    for protocol, ours in line.ours.items():
        yield [CHOSEN_ON[protocol], *(shown(cell, ours[cell.column]) for cell in cells)]
        for what, write in (("95 %", shown_interval), ("difference", shown_difference)):
            texts = [write(cell, ours[cell.column]) for cell in cells]
            if set(texts) != {"-"}:
                yield [what, *texts]
    ours = next(iter(line.ours.values()))  # both protocols have the same images and seeds
    yield ["n x seeds", *(f"{ours[cell.column].images:,} x {len(ours[cell.column].seeds)}" for cell in cells)]


def own_blocks(lines: Sequence[ComparedRow], scale: Scale) -> list[Block]:
    """Ours, a block for each data and network that ran, every run once: one may stand for several rows of the paper."""
    numbers: dict[str, list[str]] = {}  # key of a run -> the paper's rows
    settings: dict[str, list[list[str]]] = {}  # setting -> lines
    for number, line in enumerate(lines, start=1):
        if line.recipe:
            numbers.setdefault(line.key, []).append(str(number))
    for line in lines:
        if line.recipe and line.key in numbers:
            names = [", ".join(numbers.pop(line.key)), method_text(line.recipe, line.row)]
            for texts in lines_of(line):
                settings.setdefault(setting_of(line.recipe), []).append(names + texts)
                names = ["", ""]
    head = ["Row", "Method", "Chosen on", *(heading(cell, scale) for cell in lines[0].row.cells)]
    return [Block(caption=f"ours: {setting}", head=head, rows=rows, left=3) for setting, rows in settings.items()]


def published_block(number: int, lines: Sequence[ComparedRow]) -> Block:
    """The paper's rows, a line each, with the paper's data and networks."""
    rows = []
    for i, line in enumerate(lines, start=1):
        row = line.row
        names = [str(i), DATASETS[row.dataset], row.architecture, row.method + ("" if line.key else ", quoted")]
        rows.append(names + [shown_published(cell, line.published_difference(cell.column)) for cell in row.cells])
    head = ["Row", "Data", "Network", "Method", *map(heading, lines[0].row.cells)]
    return Block(caption=f"published (paper): {tables.table(number).title}", head=head, rows=rows, left=4)
