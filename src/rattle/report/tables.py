"""Tables of accuracies: for the terminal with intervals, and of runs over seeds as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rattle.errors import RattleError
from rattle.report.writers import Bold, csv_table, latex_table, markdown_table
from rattle.stats import Sample, differ, summarise, wilson

if TYPE_CHECKING:
    from rattle.evaluation.results import Evaluation


Format = Literal["markdown", "latex", "csv"]

ORDER = ("pgd20", "cw20", "autoattack", "aa")  # the usual columns; others stand between CW and AutoAttack

NOTE = (
    "Accuracy in %, mean ± standard deviation over seeds where there are several. "
    "Bold: highest of its column, and significantly so (p < 0.05) against every other row."
)

TITLES = {"clean": "Clean", "autoattack": "AutoAttack", "aa": "AutoAttack", "fgsm": "FGSM"}


def title_of(attack: str) -> str:
    """How an attack is written in a heading.

    >>> title_of("pgd20"), title_of("clean"), title_of("my-attack")
    ('PGD-20', 'Clean', 'my-attack')
    """
    for family in ("pgd", "cw", "apgd", "fab", "square"):
        steps = attack.removeprefix(family)
        if steps != attack and steps.isdigit():
            return f"{family.upper()}-{steps}"
    return TITLES.get(attack, attack)


def percent(flags: Sequence[bool]) -> str:
    """An accuracy and its Wilson 95 % interval, in percent.

    >>> percent([True] * 8 + [False] * 2)
    '80.0 [49.0, 94.3]'
    """
    interval = wilson(sum(flags), len(flags))
    return f"{100 * sum(flags) / len(flags):.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def accuracy_row(name: str, result: Evaluation) -> list[str]:
    """A name, the clean accuracy and that under each attack."""
    return [name, percent(result.clean), *(percent(verdict.flags) for verdict in result.verdicts.values())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method's accuracy in one column: mean and deviation over n seeds, None where nothing was measured."""

    mean: float | None
    deviation: float  # NaN with one seed
    n: int
    best: bool  # highest of its column, and significantly so against every other row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods by columns."""

    columns: tuple[str, ...]  # "clean" and the attacks
    rows: Mapping[str, tuple[Cell, ...]]


def compare(samples: Mapping[str, Mapping[str, Sample]]) -> Comparison:
    """{method: {column: what was measured}} as cells; columns come in the order they are first met, clean first."""
    columns = list(dict.fromkeys(column for found in samples.values() for column in found))
    columns.sort(key=lambda column: column != "clean")
    if not columns:
        raise RattleError("none of these runs has been evaluated; `rattle evaluate RUN` does it")
    leaders = {
        column: leader({m: found[column] for m, found in samples.items() if column in found}) for column in columns
    }
    return Comparison(
        columns=tuple(columns),
        rows={
            method: tuple(cell(found.get(column), leaders[column] == method) for column in columns)
            for method, found in samples.items()
        },
    )


def leader(samples: Mapping[str, Sample]) -> str | None:
    """The method with the highest mean, when it differs significantly from each of the others."""
    if len(samples) < 2:
        return None
    best = max(samples, key=lambda method: samples[method].mean)
    others = (sample for method, sample in samples.items() if method != best)
    return best if all(differ(samples[best], other) for other in others) else None


def cell(sample: Sample | None, best: bool) -> Cell:
    if sample is None:
        return Cell(mean=None, deviation=math.nan, n=0, best=False)
    summary = summarise(sample.accuracies)
    return Cell(mean=summary.mean, deviation=summary.deviation, n=summary.n, best=best)


def write_table(comparison: Comparison, form: Format) -> str:
    """The table as text to paste, in one of three formats."""
    if form == "csv":
        return csv_text(comparison)
    missing = {"markdown": "-", "latex": "--"}[form]
    columns = ["Method", "Seeds", *map(title_of, comparison.columns)]
    rows = [
        [method, str(seed_count(row)), *(cell_text(cell, missing) for cell in row)]
        for method, row in comparison.rows.items()
    ]
    if form == "latex":
        return latex_table(columns, rows, left=1, comments=[NOTE.replace("±", "+-")])
    return f"{markdown_table(columns, rows, left=1)}\n{NOTE}\n"


def cell_text(cell: Cell, missing: str) -> str:
    """Percent, with the deviation over seeds when there are several; bold when it is significantly the best."""
    if cell.mean is None:
        return missing
    spread = f" ± {100 * cell.deviation:.2f}" if cell.n > 1 else ""
    text = f"{100 * cell.mean:.2f}{spread}"
    return Bold(text) if cell.best else text


def seed_count(row: Sequence[Cell]) -> int:
    return max(cell.n for cell in row)


def csv_text(comparison: Comparison) -> str:
    """Fractions of 1; three columns for each attack: mean, deviation, and whether it is significantly best."""
    columns = [f"{column}_{part}" for column in comparison.columns for part in ("mean", "deviation", "best")]
    rows = []
    for method, row in comparison.rows.items():
        numbers = [(fraction(c.mean), fraction(c.deviation), "" if c.mean is None else str(int(c.best))) for c in row]
        rows.append([method, str(seed_count(row)), *(text for triple in numbers for text in triple)])
    return csv_table(["method", "seeds", *columns], rows)


def fraction(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6f}"
