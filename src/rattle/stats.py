"""What n runs or n images allow one to say: intervals and tests. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rattle.errors import RattleError


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean and sample standard deviation (n - 1) of n values; with one value the deviation is NaN, never 0."""

    n: int
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """Two models on the same images: where exactly one is right, and how likely such a split is by chance."""

    n: int  # images
    only_first: int  # right in the first model alone
    only_second: int
    p_exact: float  # two-sided binomial: never too small
    p_mid: float  # two-sided mid-p: less conservative, the one to report (Fagerland et al. 2013)

    @property
    def difference(self) -> float:
        """Accuracy of the second less that of the first."""
        return (self.only_second - self.only_first) / self.n


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise RattleError(f"a confidence level lies between 0 and 1, got {level}")


def wilson(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): stays inside [0, 1] and is right at 0 and n successes.

    >>> interval = wilson(8, 10)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.4902, 0.9433)
    """
    check_level(level)
    if n < 1 or not 0 <= successes <= n:
        raise RattleError(f"cannot form a proportion of {successes} out of {n}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half  # rounding would leave 1e-17 there
    high = 1.0 if successes == n else centre + half
    return Interval(low, high)


def mcnemar_counts(only_first: int, only_second: int, *, n: int) -> McNemar:
    """McNemar's test from the two discordant counts among n images; sums whole numbers, so it is exact at any n."""
    if min(only_first, only_second) < 0 or only_first + only_second > n or n < 1:
        raise RattleError(f"{only_first} and {only_second} discordant images do not fit among {n}")
    trials, fewer = only_first + only_second, min(only_first, only_second)
    term, tail = 1, 1  # C(trials, k) and its sum up to k = fewer
    for k in range(fewer):
        term = term * (trials - k) // (k + 1)
        tail += term
    p_exact = min(1.0, 2 * tail / 2**trials)
    p_mid = (2 * tail - term) / 2**trials
    return McNemar(n=n, only_first=only_first, only_second=only_second, p_exact=p_exact, p_mid=p_mid)


def mcnemar(first: Any, second: Any) -> McNemar:
    """McNemar's test (1947) from one flag per image and model, True where that model is right.

    >>> mcnemar([1, 1, 1, 1, 0], [0, 0, 0, 1, 1]).p_exact
    0.625
    """
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if a.shape != b.shape or a.ndim != 1:
        raise RattleError(f"a paired test needs one flag per image from both models, got {a.shape} and {b.shape}")
    return mcnemar_counts(int((a & ~b).sum()), int((b & ~a).sum()), n=len(a))


def summarise(values: Sequence[float]) -> Summary:
    """Mean and standard deviation over runs."""
    if len(values) == 0:
        raise RattleError("there are no values to average")
    n, mean = len(values), math.fsum(values) / len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return Summary(n=n, mean=mean, deviation=math.sqrt(squares / (n - 1)) if n > 1 else math.nan)


def t_central(t: float, freedom: int) -> float:
    """P(-t < T < t) for t >= 0: the finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(theta), math.cos(theta) ** 2
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


def t_quantile(level: float, freedom: int) -> float:
    """The t with P(-t < T < t) = level, by bisection.

    >>> round(t_quantile(0.95, 2), 4)
    4.3027
    """
    check_level(level)
    if freedom < 1:
        raise RattleError(f"Student's t needs at least 1 degree of freedom, got {freedom}")
    low, high = 0.0, 1.0
    while t_central(high, freedom) < level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_central(middle, freedom) < level else (low, middle)
    return high


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Student's interval for the mean of n runs; of paired differences when those are given. Unbounded for one run."""
    check_level(level)
    summary = summarise(values)
    if summary.n == 1:
        return Interval(-math.inf, math.inf)
    half = t_quantile(level, summary.n - 1) * summary.deviation / math.sqrt(summary.n)
    return Interval(summary.mean - half, summary.mean + half)


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
