"""A table as blocks of text: what ran here, by data and network, and what the paper published, each under its own name.

A row number links the blocks: it is the row's place in the published block.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rattle.objectives.registry import METHODS
from rattle.paper import tables
from rattle.paper.cells import ResultsByProtocol
from rattle.paper.plan import Plan
from rattle.paper.protocols import Ours, Protocol
from rattle.paper.rows import ARCHITECTURES, PAPER_DATASETS, Cell, Row, parts_of
from rattle.paper.scales import Scale
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import epsilon_text
from rattle.report.naming import p_value, title_of
from rattle.runs.io import Plain
from rattle.stats import LEVEL

CHOSEN_ON: dict[Protocol, str] = {"honest": "validation", "paper": "test images"}
PLACES = {"%": 2, "distance": 4}  # decimals in the paper
UNITS = {"%": 100, "distance": 1}  # of a share
PAPER_TITLES = {"adbd": "ADBD", "rays": "RayS"}
NETWORK_TITLES = {**ARCHITECTURES, "cnn": "small CNN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """Columns of labels on the left, columns of numbers on the right, under a caption that says whose they are."""

    caption: str
    head: list[str]
    rows: list[list[str]]  # the first label is empty but in the line that begins a group
    left: int  # columns of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """A table as text."""

    title: str
    blocks: tuple[TableBlock, ...]
    notes: tuple[str, ...]
    plain: Plain  # all numbers, for JSON


def data_of(recipe: Recipe) -> str:
    """The data that a recipe trains on, as the field writes it; a file or folder as it was given."""
    return PAPER_DATASETS.get(recipe.data.name, recipe.data.name)


def network_of(recipe: Recipe) -> str:
    """The network that a recipe trains; a width that is not the published one is part of its name."""
    return NETWORK_TITLES.get(recipe.model, recipe.model) + (f" (width {recipe.width})" if recipe.width else "")


def method_text(recipe: Recipe, row: Row) -> str:
    """The method that a recipe trains, with eta where the row sets it, and its name where another has its loss."""
    eta, name = dict(row.overrides).get("objective.taylor.eta"), parts_of(row.recipe)[3] if row.recipe else ""
    own = METHODS.get(name)
    first = next((other for other, method in METHODS.items() if own and method.objective == own.objective), name)
    name = "" if name == first else f" ({name})"  # pang is TRADES in other settings
    extra = ", extra images" if recipe.data.extra else ""
    return recipe.method.replace(" + ", "+") + name + (f", eta {eta}" if eta else "") + extra


def taylor_setting(recipe: Recipe) -> str:
    threat = recipe.attack.threat
    norm = {"linf": "l_inf"}.get(threat.norm, "l_2")
    return f"{data_of(recipe)}, {network_of(recipe)}, trained for {norm} {epsilon_text(threat.epsilon)}"


def heading(cell: Cell, scale: Scale | None = None) -> str:
    """The title of a column: what the paper ran, or at a scale what we do."""
    title = PAPER_TITLES.get(cell.column) or title_of(scale.name_of(cell.column) if scale else cell.column)
    return f"{title} (transfer)" if cell.surrogate else title


def texts_of(cell: Cell, ours: Ours) -> tuple[str, str, str]:
    """Ours in a cell, its interval, and its difference to the baseline; a run that diverged never shows a number.

    Decimals are the paper's; fewer where few images decide.
    """
    if isinstance(ours, str):
        return ours, "-", "-"
    sample, change = ours.sample, ours.difference
    unit = UNITS[cell.unit]
    form = ".1f" if cell.unit == "%" and sample.n < 1000 else f".{PLACES[cell.unit]}f"
    found, interval = sample.summary, sample.interval
    value = f"{unit * found.mean:{form}}" + (f" ± {unit * found.deviation:{form}}" if found.n > 1 else "")
    limits = f"[{unit * interval.low:{form}}, {unit * interval.high:{form}}]" if math.isfinite(interval.low) else "-"
    if change is None:
        return value, limits, "-"
    star = "*" if ours.p_adjusted is not None and ours.p_adjusted < 1 - LEVEL else ""
    p = f"p {p_value(change.p)}".replace(" < ", "<")
    return value, limits, f"{unit * change.mean:+{form}}{star} ({p})"


def shown_published(cell: Cell, change: float | None) -> str:
    """A published number, with its difference to the paper's baseline; or with its attack, if not the heading's."""
    if cell.published_under:
        return f"{cell.printed} ({title_of(cell.published_under)})"
    return cell.printed if change is None else f"{cell.printed} ({change:+.{PLACES[cell.unit]}f})"


def lines_of(row: Row, ours: Mapping[Protocol, Mapping[str, Ours]]) -> Iterator[list[str]]:
    """What and cells of the lines of a run; a line that would say nothing is left out."""
    cells = row.cells
    for protocol, found in ours.items():
        columns = [texts_of(cell, found[cell.column]) for cell in cells]
        for what, texts in zip((CHOSEN_ON[protocol], "95 %", "difference"), zip(*columns, strict=True), strict=True):
            if set(texts) != {"-"}:
                yield [what, *texts]
    sizes = []
    for each in next(iter(ours.values())).values():  # both protocols have the same images and seeds
        sizes.append("0 x 0" if isinstance(each, str) else f"{each.sample.n:,} x {len(each.sample.seeds)}")
    yield ["n x seeds", *sizes]


def own_blocks(plan: Plan, results: ResultsByProtocol) -> list[TableBlock]:
    """Ours, a block for each data and network that ran, every run once: one may stand for several rows of the paper."""
    numbers: dict[str, list[str]] = {}  # key of a run -> the paper's rows
    settings: dict[str, list[list[str]]] = {}  # setting -> lines
    for number, entry in enumerate(plan.entries, start=1):
        numbers.setdefault(entry.key, []).append(str(number))
    for entry in plan.entries:
        if entry.recipe and entry.key in numbers:
            names = [", ".join(numbers.pop(entry.key)), method_text(entry.recipe, entry.row)]
            for texts in lines_of(entry.row, {protocol: by_key[entry.key] for protocol, by_key in results.items()}):
                settings.setdefault(taylor_setting(entry.recipe), []).append(names + texts)
                names = ["", ""]
    head = ["Row", "Method", "Chosen on", *(heading(cell, plan.scale) for cell in plan.entries[0].row.cells)]
    return [TableBlock(caption=f"ours: {setting}", head=head, rows=rows, left=3) for setting, rows in settings.items()]


def published_block(plan: Plan) -> TableBlock:
    """The paper's rows, a line each, with the paper's data and networks."""
    rows = []
    for number, entry in enumerate(plan.entries, start=1):
        row = entry.row
        names = [
            str(number),
            PAPER_DATASETS[row.dataset],
            row.architecture,
            row.method + ("" if entry.key else ", quoted"),
        ]
        rows.append(names + [shown_published(cell, plan.published_difference(entry, cell)) for cell in row.cells])
    head = ["Row", "Data", "Network", "Method", *map(heading, plan.entries[0].row.cells)]
    return TableBlock(caption=f"published (paper): {tables.table(plan.number).title}", head=head, rows=rows, left=4)
