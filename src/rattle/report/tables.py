"""Accuracies with their intervals, and tables of methods over seeds."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rattle.errors import RattleError
from rattle.evaluation.results import Evaluation
from rattle.evaluation.samples import Sample
from rattle.report.naming import title_of
from rattle.report.significance import Samples, compare_pairs
from rattle.report.writers import Bold, csv_table, latex_table, markdown_table
from rattle.stats import Interval, Summary, mean_interval, summarise

Format = Literal["markdown", "latex", "csv"]

ORDER = {"clean": 0, "pgd20": 1, "cw20": 2, "autoattack": 4, "best-known": 5}  # of the usual columns; others: 3
NOTE = (
    "Accuracy in %, mean ± std over seeds where there are several. "
    "Bold: highest of its column, and significantly so against every other row "
    "(p < 0.05 after Holm's adjustment for all pairs of rows in all columns)."
)


BOUND = (
    "Best known: of AutoAttack's images those that no attack here broke, where another broke more than AutoAttack did."
)


def sorted_attacks(names: Iterable[str]) -> list[str]:
    """Clean and the usual attacks first and AutoAttack last, the others between them by name; each once."""
    return sorted(set(names), key=lambda name: (ORDER.get(name, 3), name))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of n images in %, or a mean of their rates, with its 95 % interval."""

    value: float
    low: float
    high: float


def accuracy(flags: Sequence[float], error: float = 0.0) -> Accuracy:
    """The share of images whose flag is set, or the mean of their rates; error: by the draws of a random model."""
    interval = mean_interval(flags, error)
    return Accuracy(100 * sum(flags) / len(flags), 100 * interval.low, 100 * interval.high)


def percent(flags: Sequence[float], error: float = 0.0) -> str:
    """An accuracy and its interval as text.

    >>> percent([True] * 8 + [False] * 2)
    '80.0 [49.0, 94.3]'
    """
    found = accuracy(flags, error)
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def accuracy_row(name: str, result: Evaluation) -> list[str]:
    """A name, the clean accuracy and that under each attack."""
    attacks = (percent(attack.flags, attack.error) for attack in result.attacks.values())
    return [name, percent(result.clean, result.error), *attacks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A share of 1 that stands beside an accuracy: of one seed with its 95 % interval, else the mean over seeds."""

    mean: float
    deviation: float  # NaN with one seed
    interval: Interval | None  # None with several seeds

    def __str__(self) -> str:
        more = self.interval.percent() if self.interval else f"± {100 * self.deviation:.1f}"
        return f"{100 * self.mean:.1f} {more}"


def figure_of(values: Sequence[float], intervals: Sequence[Interval]) -> Figure | None:
    """Over seeds; None without any."""
    if not values:
        return None
    summary = summarise(values)
    alone = intervals[0] if len(values) == 1 else None
    return Figure(mean=summary.mean, deviation=summary.deviation, interval=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method's accuracy in one column: mean and std over n seeds."""

    mean: float
    deviation: float  # NaN with one seed
    n: int
    images: int  # test images, of each seed
    best: bool  # highest of its column, and significantly so against every other row
    worst: Figure | None = None  # the worst class of each seed; None where classes have few images
    calibration: Figure | None = None  # expected calibration error; None where confidences are not known
    draws: int = 0  # of a random model: fresh ones an image
    error: float = 0.0  # standard error of the mean by these


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods by columns."""

    columns: Sequence[str]  # "clean" and the attacks
    rows: Mapping[str, Mapping[str, Cell]]  # method -> column -> what was measured
    refused: Sequence[str]  # sentences: which rows are not comparable, and why

    @property
    def images(self) -> int | None:
        """How many test images every cell was measured on; None if they differ."""
        numbers = {cell.images for row in self.rows.values() for cell in row.values()}
        return numbers.pop() if len(numbers) == 1 else None


def compare(samples: Samples) -> Comparison:
    """{method: {column: what was measured}} as cells."""
    columns = sorted_attacks(column for by_column in samples.values() for column in by_column)
    if not columns:
        raise RattleError("none of these runs has been evaluated; `rattle evaluate RUN` does it")
    found: dict[str, dict[str, Summary]] = {}  # column -> method
    pairs, family = [], 0
    for column in columns:
        found[column] = {method: summarise(by[column].accuracies) for method, by in samples.items() if column in by}
        best = max(found[column], key=lambda method: found[column][method].mean)
        pairs += [(best, other, column) for other in found[column] if other != best]
        family += math.comb(len(found[column]), 2)
    tests, refused = compare_pairs(samples, pairs, family)  # of n methods n - 1 tests a column decide what is bold
    beaten = Counter((test.attack, test.better[0]) for test in tests if test.better)
    rows: dict[str, dict[str, Cell]] = {method: {} for method in samples}
    for column, summaries in found.items():
        for method, summary in summaries.items():
            sample = samples[method][column]
            best = 0 < len(summaries) - 1 == beaten[column, method]
            rows[method][column] = Cell(
                **asdict(summary),
                images=sample.n,
                best=best,
                worst=worst_of(sample),
                calibration=calibration_of(sample),
                draws=sample.draws,
                error=sample.error,
            )
    return Comparison(columns=columns, rows=rows, refused=refused)


def worst_of(sample: Sample) -> Figure | None:
    found = sample.worst_classes
    return figure_of([worst.accuracy for worst in found], [worst.interval for worst in found])


def calibration_of(sample: Sample) -> Figure | None:
    found = sample.calibrations
    return figure_of([known.error for known in found], [known.interval for known in found])


def write_table(comparison: Comparison, form: Format) -> str:
    """The table as text to paste, in one of three formats."""
    if form == "csv":
        return csv_text(comparison)
    columns = ["Method", "Seeds", *map(title_of, comparison.columns)]
    each = comparison.images is None  # then every cell says its own
    rows = []
    for method, row in comparison.rows.items():
        cells = [cell_text(row.get(column), with_n=each) for column in comparison.columns]
        rows.append([method, seeds_of(row), *cells])
    n = "n: test images; tests use those that both rows have." if each else f"n = {comparison.images:,} test images."
    notes = [
        NOTE,
        n,
        *([BOUND] if "best-known" in comparison.columns else []),
        *over_draws(comparison),
        *beside(comparison),
    ]
    if form == "latex":
        return latex_table(columns, rows, left=1, comments=[note.replace("±", "+-") for note in notes])
    return f"{markdown_table(columns, rows, left=1)}\n{' '.join(notes)}\n"


def over_draws(comparison: Comparison) -> list[str]:
    """A sentence about each row of a random model: its draws, and what they leave uncertain."""
    found = []
    for method, row in comparison.rows.items():
        cells = [cell for cell in row.values() if cell.draws]
        if cells:
            most = max(cell.error for cell in cells)
            draws = max(cell.draws for cell in cells)
            found.append(f"{method}: expected accuracy over {draws} fresh draws (standard error {100 * most:.2f}).")
    return found


def beside(comparison: Comparison) -> list[str]:
    """Sentences about each row's worst class and calibration error, where they are known."""
    found: dict[str, list[str]] = {"Worst class": [], "Expected calibration error": []}
    for method, row in comparison.rows.items():
        for title, key in zip(found, ("worst", "calibration"), strict=True):
            figures = [(title_of(column), getattr(cell, key)) for column, cell in row.items()]
            if texts := [f"{column} {figure}" for column, figure in figures if figure]:
                found[title].append(f"{method}: {', '.join(texts)}")
    return [f"{title}, %: {'; '.join(rows)}." for title, rows in found.items() if rows]


def seeds_of(row: Mapping[str, Cell]) -> str:
    return str(max((cell.n for cell in row.values()), default=0))


def cell_text(cell: Cell | None, *, with_n: bool) -> str:
    """Percent, with the std over seeds when there are several; bold when it is significantly the best.

    with_n: also the number of images.
    """
    if cell is None:
        return "-"
    deviation = f" ± {100 * cell.deviation:.2f}" if cell.n > 1 else ""
    text = f"{100 * cell.mean:.2f}{deviation}" + (f" (n {cell.images:,})" if with_n else "")
    return Bold(text) if cell.best else text


def csv_text(comparison: Comparison) -> str:
    """Fractions of 1; for each attack: mean, std, number of images, and whether it is significantly best."""
    parts = ("mean", "deviation", "n", "best")
    columns = [f"{column}_{part}" for column in comparison.columns for part in parts]
    rows = []
    for method, row in comparison.rows.items():
        texts = [method, seeds_of(row)]
        for column in comparison.columns:
            if cell := row.get(column):
                deviation = f"{cell.deviation:.6f}" if cell.n > 1 else ""
                texts += [f"{cell.mean:.6f}", deviation, str(cell.images), str(int(cell.best))]
            else:
                texts += [""] * len(parts)
        rows.append(texts)
    return csv_table(["method", "seeds", *columns], rows)
