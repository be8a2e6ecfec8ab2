"""What n runs or n images allow one to say: intervals, and the paired test of two models. Plain Python and numpy."""

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
