"""What a table of the paper is made of: cells, rows and tables, and how a row is written down.

Numbers are kept as printed, so that 51.80 and 53.0 keep the precision they were published with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from rattle.errors import RattleError

EIGHT = 8 / 255  # the l_inf radius of training and of AutoAttack (Section 5; caption of Table 2)
ROUNDED = 0.031  # the l_inf radius of PGD-20 and CW-20 (caption of Table 2)
L2_RADIUS = 128 / 255  # the l_2 radius of training (Section 5)

Unit = Literal["%", "distance", "s", "MB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One published number."""

    column: str  # the column it stands in: clean, pgd20, cw20, autoattack, adbd, rays, seconds, megabytes
    attack: str  # what was run; differs from `column` only where the paper marks it; "cost" for Table 6
    printed: str  # the digits as published, "-" where the paper has none
    epsilon: float | None = None  # radius of the attack; None where nothing is attacked
    unit: Unit = "%"
    surrogate: str | None = None  # recipe of the model the attack was made on, for transfer (Table 4)
    note: str = ""

    @property
    def value(self) -> float | None:
        return None if self.printed == "-" else float(self.printed)

    @property
    def decimals(self) -> int:
        return len(self.printed.partition(".")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one dataset and network, with its published cells."""

    method: str  # the paper's label
    recipe: str | None  # ours; None for results that the paper quotes from elsewhere
    architecture: str
    dataset: str
    norm: Literal["linf", "l2"]
    cells: tuple[Cell, ...]
    citation: str = ""  # whose method the row (or its 0th-order baseline) is
    overrides: tuple[tuple[str, float | str], ...] = ()  # settings that differ from the recipe's
    note: str = ""

    @property
    def baseline(self) -> str | None:
        """The recipe without Taylor terms that this row is to be compared with; None for baselines themselves."""
        stem = (self.recipe or "").removesuffix("-1st").removesuffix("-2nd")
        return None if stem in ("", self.recipe) else stem

    def cell(self, column: str) -> Cell:
        for cell in self.cells:
            if cell.column == column:
                return cell
        raise RattleError(
            f"{self.method} has no column {column!r}; it has {', '.join(cell.column for cell in self.cells)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the paper; `number` 0 is the comparison in the text of Section 5.3."""

    number: int
    title: str  # in our words
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(cell.column for cell in self.rows[0].cells)

    @property
    def recipes(self) -> tuple[str, ...]:
        """Every recipe that the table needs, surrogates included, each once and in order of appearance."""
        found = chain.from_iterable((row.recipe, *(cell.surrogate for cell in row.cells)) for row in self.rows)
        return tuple(dict.fromkeys(name for name in found if name))


# How the columns are run under each norm: (attack, epsilon, unit).
COLUMNS: dict[str, dict[str, tuple[str, float | None, Unit]]] = {
    "linf": {
        "clean": ("clean", None, "%"),
        "pgd20": ("pgd20", ROUNDED, "%"),
        "cw20": ("cw20", ROUNDED, "%"),
        "autoattack": ("autoattack", EIGHT, "%"),
        "adbd": ("rays", None, "distance"),
        "rays": ("rays", ROUNDED, "%"),
        "seconds": ("cost", None, "s"),
        "megabytes": ("cost", None, "MB"),
    },
    "l2": {
        "clean": ("clean", None, "%"),
        "pgd20": ("pgd20", L2_RADIUS, "%"),
        "autoattack": ("autoattack", L2_RADIUS, "%"),
    },
}
MARKS = {"**": "pgd10", "*": "pgd40"}  # Table 2's footnote: a star for PGD-40, two for PGD-10
WHITE_BOX = ("clean", "pgd20", "cw20", "autoattack")


def read_cell(column: str, text: str, norm: Literal["linf", "l2"], surrogate: str | None = None) -> Cell:
    printed, mark = text.rstrip("*"), text[len(text.rstrip("*")) :]
    attack, epsilon, unit = COLUMNS[norm][column]
    return Cell(
        column=column,
        attack=MARKS.get(mark, attack),
        printed=printed,
        epsilon=epsilon,
        unit=unit,
        surrogate=surrogate if attack != "clean" else None,
        note=f"published under {MARKS[mark].upper().replace('PGD', 'PGD-')}, not PGD-20" if mark else "",
    )


ARCHITECTURES = {
    "preact18": "PreAct ResNet-18",
    "wrn34-10": "WRN-34-10",
    "vgg16": "VGG16",
    "mobilenetv2": "MobileNetV2",
    "resnet18": "ResNet-18",
}


def ours(
    method: str,
    recipe: str,
    numbers: str,
    *,
    columns: Iterable[str] = WHITE_BOX,
    citation: str = "",
    eta: float | None = None,
    transfer: bool = False,
    note: str = "",
) -> Row:
    """A row that a recipe reproduces; dataset, norm and network are read off the recipe's name."""
    dataset, norm_name, rest = recipe.split("-", 2)
    norm: Literal["linf", "l2"] = "l2" if norm_name == "l2" else "linf"
    model = next(name for name in ARCHITECTURES if rest.startswith(name))
    surrogate = f"{dataset}-{norm}-{model}-at" if transfer else None
    return Row(
        method=method,
        recipe=recipe,
        architecture=ARCHITECTURES[model],
        dataset=dataset,
        norm=norm,
        cells=tuple(read_cell(c, text, norm, surrogate) for c, text in zip(columns, numbers.split(), strict=True)),
        citation=citation,
        overrides=() if eta is None else (("objective.taylor.eta", eta),),
        note=note,
    )


def quoted(citation: str, architecture: str, numbers: str, *, dataset: str, method: str = "", note: str = "") -> Row:
    """A row that the paper takes from another work; no recipe of ours stands behind it."""
    return Row(
        method=method or citation,
        recipe=None,
        architecture=architecture,
        dataset=dataset,
        norm="linf",
        cells=tuple(read_cell(c, text, "linf") for c, text in zip(WHITE_BOX, numbers.split(), strict=True)),
        citation=citation,
        note=note,
    )


def orders(
    base: str, label: str, citation: str, *numbers: str, columns: Iterable[str] = WHITE_BOX, transfer: bool = False
) -> list[Row]:
    """A 0th-order baseline and the paper's method on it: two lines of numbers give 0th and 2nd, three add the 1st."""
    suffixes = {2: ("", "-2nd"), 3: ("", "-1st", "-2nd")}[len(numbers)]
    labels = {"": f"{label} (0th)", "-1st": "+ Ours (1st)", "-2nd": "+ Ours (1st+2nd)"}
    columns = tuple(columns)
    return [
        ours(labels[s], base + s, line, columns=columns, citation=citation, transfer=transfer)
        for s, line in zip(suffixes, numbers, strict=True)
    ]
