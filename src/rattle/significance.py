"""Whether two methods differ by more than chance: images paired for one seed, seeds for several; Holm for many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rattle.statistics import Interval, mcnemar, summarise, t_central, t_interval, t_quantile

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One method under one attack: for each seed, a flag for each image."""

    seeds: tuple[int, ...]
    flags: tuple[tuple[float, ...], ...]  # [seeds][images]; of RayS' ADBD each image's distance
    protocol: str = ""  # what was attacked and how; only equal ones are compared

    @property
    def accuracies(self) -> list[float]:
        return [sum(flags) / len(flags) for flags in self.flags]

    @property
    def mean(self) -> float:
        return math.fsum(self.accuracies) / len(self.flags)


def comparable(a: Sample, b: Sample) -> bool:
    """The same attack on the same number of images."""
    return a.protocol == b.protocol and {len(flags) for flags in a.flags} == {len(flags) for flags in b.flags}


def differ(a: Sample, b: Sample) -> bool:
    """Whether the difference is significant at 5 %.

    One seed each: McNemar's mid-p over the images (it speaks of these two networks, not of the methods). The same two
    or more seeds: Student's interval of the paired differences. Other seeds: Welch's interval. One seed against
    several says nothing.
    """
    if not comparable(a, b):
        return False
    if len(a.seeds) == len(b.seeds) == 1:
        return mcnemar(a.flags[0], b.flags[0]).p_mid < 1 - LEVEL
    if min(len(a.seeds), len(b.seeds)) < 2:
        return False
    if sorted(a.seeds) == sorted(b.seeds) and len(set(a.seeds)) == len(a.seeds):
        first, second = (dict(zip(s.seeds, s.accuracies, strict=True)) for s in (a, b))
        interval = t_interval([first[seed] - second[seed] for seed in a.seeds], level=LEVEL)
        return not interval.low <= 0 <= interval.high
    return welch(a.accuracies, b.accuracies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One method less another, and how likely so large a difference is by chance."""

    mean: float
    interval: Interval  # 95 %
    p: float  # two-sided, not adjusted for being one of several
    test: str
    n: int  # seeds


def difference(a: Sample, b: Sample) -> Difference | None:
    """a less b over the seeds that both have; None where they were not measured alike.

    One seed: McNemar's mid-p, or Student's t over images where they have distances instead of flags. Several: Student's
    t of the paired differences.

    >>> one, two = (Sample(seeds=(0,), flags=(flags,)) for flags in ((1, 1, 1, 1, 0), (0, 0, 0, 1, 0)))
    >>> round(difference(one, two).mean, 2), difference(one, two).p
    (0.6, 0.125)
    """
    seeds = [seed for seed in a.seeds if seed in b.seeds]
    if not seeds or not comparable(a, b):
        return None
    pairs = [(a.flags[a.seeds.index(seed)], b.flags[b.seeds.index(seed)]) for seed in seeds]
    if len(seeds) == 1:
        first, second = pairs[0]
        each = [x - y for x, y in zip(first, second, strict=True)]
        if set(first) | set(second) <= {0, 1}:
            p, test = mcnemar(first, second).p_mid, "McNemar's test over images"
        else:
            p, test = student(each), "Student's t over images"
    else:
        each = [sum(x) / len(x) - sum(y) / len(y) for x, y in pairs]
        p, test = student(each), "Student's t over seeds"
    mean = math.fsum(each) / len(each)
    return Difference(mean=mean, interval=t_interval(each, level=LEVEL), p=p, test=test, n=len(seeds))


def student(differences: Sequence[float]) -> float:
    """Two-sided p of paired differences having the mean 0."""
    summary = summarise(differences)
    if summary.n < 2 or summary.mean == 0:
        return 1.0
    if summary.deviation == 0:
        return 0.0
    return 1 - t_central(abs(summary.mean) / summary.deviation * math.sqrt(summary.n), summary.n - 1)


def welch(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether Welch's interval (1947) leaves 0 out; degrees of freedom are rounded down, so never too eagerly."""
    first, second = summarise(a), summarise(b)
    parts = [s.deviation**2 / s.n for s in (first, second)]
    if sum(parts) == 0:
        return first.mean != second.mean
    freedom = sum(parts) ** 2 / sum(part**2 / (s.n - 1) for part, s in zip(parts, (first, second), strict=True))
    return abs(first.mean - second.mean) > t_quantile(LEVEL, max(1, math.floor(freedom))) * math.sqrt(sum(parts))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being several (Holm 1979), in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
