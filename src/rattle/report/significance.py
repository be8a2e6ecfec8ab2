"""The one rule of significance that tables, the page and `rattle compare` follow: each pair of rows in each column that
both have, under the same attack and on the images that both have, and Holm's adjustment over all tests shown together.

Fewer tests never raise an adjusted p, so what a table calls best is never equal where fewer of its pairs are shown.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from rattle.evaluation.samples import Sample, on_shared_images, two_sided_p
from rattle.recipes.schema import flatten
from rattle.report.naming import p_value, title_of
from rattle.stats import LEVEL, McNemar, holm, mcnemar, summarise

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
        first, second = (summarise(sample.accuracies).mean for sample in self.samples)
        return second - first

    @property
    def counts(self) -> McNemar:
        """Image by image, of rows with one seed each."""
        return mcnemar(*(sample.flags[0] for sample in self.samples))

    @property
    def significant(self) -> bool:
        return self.p_adjusted < 1 - LEVEL

    @property
    def better(self) -> tuple[str, str] | None:
        """(the better, the other), if they can be told apart."""
        both = (self.second, self.first) if self.difference > 0 else (self.first, self.second)
        return both if self.significant else None

    @property
    def conclusion(self) -> str:
        return f"{self.better[0]} is better" if self.better else "cannot be told apart"

    @property
    def sentence(self) -> str:
        """The conclusion with attack, difference, number of images and adjusted p."""
        where = "on clean images" if self.attack == "clean" else f"under {title_of(self.attack)}"
        points, p = f"{100 * abs(self.difference):.1f} points", p_value(self.p_adjusted)
        facts = f"n = {self.counts.n:,}, p {p if p.startswith('<') else f'= {p}'}"
        if self.better:
            return f"{self.better[0]} is better {where} by {points} ({facts})"
        return f"{self.first} and {self.second} cannot be told apart {where} (difference {points}, {facts})"


def why_not(a: Sample, b: Sample) -> str:
    """Why two samples cannot be tested against each other; empty if they can."""
    if differences := protocol_differences(a.protocol, b.protocol):
        return f"they differ in {' and '.join(differences)}"
    if on_shared_images(a, b) is None:
        return f"they share none of their {a.n:,} and {b.n:,} images"
    alone = (len(a.seeds) == 1) != (len(b.seeds) == 1)
    return "one seed against several" if alone else ""


def paired_tests(samples: Samples, baseline: str | None = None) -> tuple[list[PairedTest], list[str]]:
    """The tests of all pairs of rows, or of `baseline` with each other row; and a sentence for each one not made."""
    pairs = list(combinations(samples, 2))
    if baseline is not None:
        pairs = [(baseline, other) for other in samples if other != baseline]
    found, refused = [], {}
    for first, second in pairs:
        for attack in (column for column in samples[first] if column in samples[second]):
            pair = samples[first][attack], samples[second][attack]
            reason, shared = why_not(*pair), on_shared_images(*pair)
            if reason or shared is None:
                refused.setdefault((first, second, reason), []).append(title_of(attack))
                continue
            p = two_sided_p(shared[0], replace(shared[1], protocol=shared[0].protocol))
            found.append({"first": first, "second": second, "attack": attack, "samples": shared, "p": p})
    adjusted = holm([test["p"] for test in found])
    sentences = [f"{a} and {b} ({', '.join(titles)}): {reason}" for (a, b, reason), titles in refused.items()]
    return [PairedTest(**test, p_adjusted=p) for test, p in zip(found, adjusted, strict=True)], sentences


def protocol_differences(one: str, other: str) -> list[str]:
    """In what two protocols of `StoredResult` differ, each as "name (one; other)"; nothing if results are comparable.

    A setting that one of them lacks, as another version wrote it, does not count, unless it says which attack or threat
    this is.
    """
    if one == other:
        return []
    ours, theirs = flatten(json.loads(one)), flatten(json.loads(other))
    found = []
    for key in ours | theirs:
        shared = key in ours and key in theirs
        first, second = ours.get(key), theirs.get(key)
        if (shared or key.rpartition(".")[2] in IDENTITY) and not equal_settings(first, second):
            found.append(f"{key} ({setting_text(first)}; {setting_text(second)})")
    return found


def equal_settings(a: Any, b: Any) -> bool:
    """Numbers up to the rounding of their text."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def setting_text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
