"""The one rule of significance that tables, the page and `rattle compare` follow: each pair of rows in each column that
both have, under the same attack and on the images that both have, and Holm's adjustment over all tests shown together.

Fewer tests never raise an adjusted p, so what a table calls best is never equal where fewer of its pairs are shown.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from rattle.evaluation.samples import Sample, difference, on_shared_images, two_sided_p
from rattle.recipes.schema import flatten
from rattle.report.naming import p_value, title_of, value_text
from rattle.stats import LEVEL, Interval, McNemar, holm, mcnemar

Samples = Mapping[str, Mapping[str, Sample]]  # {row: {column: what was measured}}

IDENTITY = ("kind", "norm", "epsilon")  # settings without which it is not known what an attack was


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Two rows in one column."""

    first: str
    second: str
    attack: str  # the column; "clean" for none
    samples: tuple[Sample, Sample]
    p: float
    p_adjusted: float  # for being one of all tests shown

    @property
    def difference(self) -> float:
        """Mean accuracy of the second less that of the first."""
        first, second = (sample.summary.mean for sample in self.samples)
        return second - first

    @property
    def seeds(self) -> int:
        """The most seeds of a row."""
        return max(len(sample.seeds) for sample in self.samples)

    @property
    def counts(self) -> McNemar | None:
        """Image by image, of rows with one seed each; None where one has rates over draws."""
        if any(sample.errors for sample in self.samples):
            return None
        return mcnemar(*(sample.flags[0] for sample in self.samples))

    @property
    def interval(self) -> Interval:
        """95 % of the difference, of rows with one seed each."""
        if self.counts:
            return self.counts.interval
        first, second = self.samples
        found = difference(replace(second, seeds=first.seeds, protocol=first.protocol), first)
        assert found is not None, "the rows were tested"
        return found.interval

    @property
    def significant(self) -> bool:
        return self.p_adjusted < 1 - LEVEL

    @property
    def better(self) -> tuple[str, str] | None:
        """(the better, the other), if the difference is significant."""
        both = (self.second, self.first) if self.difference > 0 else (self.first, self.second)
        return both if self.significant else None

    @property
    def conclusion(self) -> str:
        return f"{self.better[0]} is better" if self.better else "not distinguishable"

    @property
    def sentence(self) -> str:
        """The conclusion with attack, difference, number of images and adjusted p."""
        where = "on clean images" if self.attack == "clean" else f"under {title_of(self.attack)}"
        points, p = f"{100 * abs(self.difference):.1f} points", p_value(self.p_adjusted)
        seeds = f"{self.seeds} seeds, " if self.seeds > 1 else ""
        facts = f"{seeds}n = {self.samples[0].n:,}, p {p if p.startswith('<') else f'= {p}'}"
        if self.better:
            return f"{self.better[0]} is better {where} by {points} ({facts})"
        return f"{self.first} and {self.second} are not distinguishable {where} (difference {points}, {facts})"


Tests = tuple[list[PairedTest], list[str]]  # and a sentence for each one that was not made


def paired_tests(samples: Samples, baseline: str | None = None) -> Tests:
    """The tests of all pairs of rows, or of `baseline` with each other row; and a sentence for each one not made."""
    pairs = list(combinations(samples, 2))
    if baseline is not None:
        pairs = [(baseline, other) for other in samples if other != baseline]
    return compare_pairs(samples, [(a, b, column) for a, b in pairs for column in samples[a] if column in samples[b]])


def compare_pairs(samples: Samples, pairs: Iterable[tuple[str, str, str]], family: int | None = None) -> Tests:
    """The tests of these (row, row, column), and a sentence for each pair not tested.

    family: adjust each p for a family of so many tests that includes these; None for these alone.
    """
    found: list[PairedTest] = []
    refused: dict[tuple[str, str, str], list[str]] = {}
    for first, second, attack in pairs:
        a, b = samples[first][attack], samples[second][attack]
        shared, p = on_shared_images(a, b), None
        differences = protocol_differences(a.protocol, b.protocol)
        if differences:
            reason = f"they differ in {' and '.join(differences)}"
        elif shared is None:
            reason = f"they share none of their {a.n:,} and {b.n:,} images"
        else:
            reason = "one seed against several"
            p = two_sided_p(shared[0], replace(shared[1], protocol=shared[0].protocol))
        if p is None or shared is None:
            refused.setdefault((first, second, reason), []).append(title_of(attack))
            continue
        found.append(PairedTest(first=first, second=second, attack=attack, samples=shared, p=p, p_adjusted=p))
    adjusted = holm([test.p for test in found], family)
    tests = [replace(test, p_adjusted=p) for test, p in zip(found, adjusted, strict=True)]
    return tests, [f"{a} and {b} ({', '.join(titles)}): {reason}" for (a, b, reason), titles in refused.items()]


def protocol_differences(one: str, other: str) -> list[str]:
    """In what two protocols of `StoredResult` differ, each as "name (one; other)"; nothing if results are comparable.

    Numbers are compared by six figures, as they are shown. A setting that one of them lacks, as another version wrote
    it, does not count, unless it says which attack or threat this is.
    """
    if one == other:
        return []
    ours, theirs = flatten(json.loads(one)), flatten(json.loads(other))
    found = []
    for key in ours | theirs:
        shared = key in ours and key in theirs
        first, second = value_text(ours.get(key)), value_text(theirs.get(key))
        if (shared or key.rpartition(".")[2] in IDENTITY) and first != second:
            found.append(f"{key} ({first}; {second})")
    return found
