"""Accuracies with their intervals, and tables of methods over seeds."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rattle.errors import RattleError
from rattle.evaluation.samples import Sample
from rattle.report.naming import title_of
from rattle.report.significance import Samples, compare_pairs
from rattle.report.writers import Bold, csv_table, latex_table, markdown_table
from rattle.stats import Interval, mean_interval, summarise

TableFormat = Literal["markdown", "latex", "csv"]

COLUMN_ORDER = {"clean": 0, "pgd20": 1, "cw20": 2, "autoattack": 4, "best-known": 5}  # of the usual columns; others: 3
TABLE_NOTE = (
    "Accuracy in %, mean ± std over seeds where there are several. "
    "Bold: highest of its column, and significantly so against every other row "
    "(p < 0.05 after Holm's adjustment for all pairs of rows in all columns)."
)


BOUND = (
    "Best known: of AutoAttack's images those that no attack here broke, where another broke more than AutoAttack did."
)


def sorted_attacks(names: Iterable[str]) -> list[str]:
    """Clean and the usual attacks first and AutoAttack last, the others between them by name; each once."""
    return sorted(set(names), key=lambda name: (COLUMN_ORDER.get(name, 3), name))


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
    return mean_interval(flags, error).around(sum(flags) / len(flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods by columns."""

    columns: Sequence[str]  # "clean" and the attacks
    rows: Samples  # method -> column -> what was measured
    best: Collection[tuple[str, str]]  # (method, column): highest, and significantly so against every other row
    refused: Sequence[str]  # sentences: which rows are not comparable, and why

    @property
    def images(self) -> int | None:
        """How many test images every cell was measured on; None if they differ."""
        numbers = {sample.n for row in self.rows.values() for sample in row.values()}
        return numbers.pop() if len(numbers) == 1 else None


def compare(samples: Samples) -> Comparison:
    """{method: {column: what was measured}}, and what is best."""
    columns = sorted_attacks(column for row in samples.values() for column in row)
    if not columns:
        raise RattleError("none of these runs has been evaluated; `rattle evaluate RUN` does it")
    others: dict[str, int] = {}  # column -> rows that the best one must beat
    pairs, family = [], 0
    for column in columns:
        means = {method: row[column].summary.mean for method, row in samples.items() if column in row}
        best = max(means, key=lambda method: means[method])
        pairs += [(best, other, column) for other in means if other != best]
        others[column] = len(means) - 1
        family += math.comb(len(means), 2)
    tests, refused = compare_pairs(samples, pairs, family)  # of n methods n - 1 tests a column decide what is bold
    beaten = Counter((test.better[0], test.attack) for test in tests if test.better)
    best = [place for place, count in beaten.items() if count == others[place[1]]]
    return Comparison(columns=columns, rows=samples, best=best, refused=refused)


def write_table(comparison: Comparison, form: TableFormat) -> str:
    """The table as text to paste, in one of three formats."""
    if form == "csv":
        return csv_text(comparison)
    columns = ["Method", "Seeds", *map(title_of, comparison.columns)]
    each = comparison.images is None  # then every cell says its own
    rows = []
    for method, row in comparison.rows.items():
        cells = [method, seeds_of(row)]
        for column in comparison.columns:
            text = cell_text(row.get(column), with_n=each)
            cells.append(Bold(text) if (method, column) in comparison.best else text)
        rows.append(cells)
    n = "n: test images; tests use those that both rows have." if each else f"n = {comparison.images:,} test images."
    notes = [
        TABLE_NOTE,
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
        draws = max(sample.draws for sample in row.values()) if row else 0
        if draws:
            most = max(sample.error for sample in row.values())
            found.append(f"{method}: expected accuracy over {draws} fresh draws (standard error {100 * most:.2f}).")
    return found


def beside(comparison: Comparison) -> list[str]:
    """Sentences about each row's worst class and calibration error, where they are known."""
    found: dict[str, list[str]] = {"Worst class": [], "Expected calibration error": []}
    for method, row in comparison.rows.items():
        worst, errors = [], []
        for column, sample in row.items():
            if classes := sample.worst_classes:
                shares = [each.accuracy for each in classes]
                worst.append(f"{title_of(column)} {mean_text(shares, classes[0].interval)}")
            if known := sample.calibrations:
                errors.append(f"{title_of(column)} {mean_text([each.error for each in known], known[0].interval)}")
        for title, texts in zip(found, (worst, errors), strict=True):
            if texts:
                found[title].append(f"{method}: {', '.join(texts)}")
    return [f"{title}, %: {'; '.join(rows)}." for title, rows in found.items() if rows]


def mean_text(shares: Sequence[float], interval: Interval) -> str:
    """In %: of one seed with its interval, else mean ± std."""
    return interval.around(shares[0]) if len(shares) == 1 else summarise(shares).percent()


def seeds_of(row: Mapping[str, Sample]) -> str:
    return str(max((len(sample.seeds) for sample in row.values()), default=0))


def cell_text(sample: Sample | None, *, with_n: bool) -> str:
    """Percent, with the std over seeds when there are several; with_n: also the number of images."""
    if sample is None:
        return "-"
    return sample.summary.percent(2) + (f" (n {sample.n:,})" if with_n else "")


def csv_text(comparison: Comparison) -> str:
    """Fractions of 1; for each attack: mean, std, number of images, and whether it is significantly best."""
    parts = ("mean", "deviation", "n", "best")
    columns = [f"{column}_{part}" for column in comparison.columns for part in parts]
    rows = []
    for method, row in comparison.rows.items():
        texts = [method, seeds_of(row)]
        for column in comparison.columns:
            if sample := row.get(column):
                found, best = sample.summary, (method, column) in comparison.best
                deviation = f"{found.deviation:.6f}" if found.n > 1 else ""
                texts += [f"{found.mean:.6f}", deviation, str(sample.n), str(int(best))]
            else:
                texts += [""] * len(parts)
        rows.append(texts)
    return csv_table(["method", "seeds", *columns], rows)
