"""Intervals and tests over n runs or n images. No torch; scipy is imported late, as it takes a second to load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import numpy as np

from rattle.errors import RattleError

LEVEL = 0.95  # of every interval; tests decide at 1 - LEVEL
HALF_WIDTH = NormalDist().inv_cdf((1 + LEVEL) / 2)  # of it, in standard errors of a normal estimate
RESAMPLES = 1000  # of a bootstrap
LEVEL_OF_LOOKS = 0.96  # of the interval that ends a sequential evaluation


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float

    def percent(self, form: str = ".1f") -> str:
        """An interval of a share, in %.

        >>> Interval(0.25, 0.5).percent()
        '[25.0, 50.0]'
        """
        return f"[{100 * self.low:{form}}, {100 * self.high:{form}}]"

    def around(self, share: float) -> str:
        """A share with this interval, in %.

        >>> Interval(0.25, 0.5).around(0.4)
        '40.0 [25.0, 50.0]'
        """
        return f"{100 * share:.1f} {self.percent()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean and sample std (n - 1) of n values; with one value the std is NaN, never 0."""

    n: int
    mean: float
    deviation: float

    def percent(self, places: int = 1) -> str:
        """Mean ± std of shares, in %; of one value the mean alone."""
        spread = f" ± {100 * self.deviation:.{places}f}" if self.n > 1 else ""
        return f"{100 * self.mean:.{places}f}{spread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """Two models on the same images: how many exactly one gets right, and how likely that split is by chance."""

    n: int  # images
    only_first: int  # right in the first model alone
    only_second: int
    p_mid: float  # two-sided mid-p (Fagerland et al. 2013)

    @property
    def difference(self) -> float:
        """Accuracy of the second less that of the first."""
        return (self.only_second - self.only_first) / self.n

    @property
    def interval(self) -> Interval:
        """95 % of `difference` (Bonett and Price 2012): one is added to both counts, so that none has a width too."""
        n, first, second = self.n + 2, self.only_first + 1, self.only_second + 1
        centre = (second - first) / n
        half = HALF_WIDTH * math.sqrt(((first + second) / n - centre**2) / n)
        return Interval(max(-1.0, centre - half), min(1.0, centre + half))


def wilson(successes: float, n: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): stays inside [0, 1], also at 0 and n successes.

    >>> interval = wilson(8, 10)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.4902, 0.9433)
    """
    if n < 1 or not 0 <= successes <= n:
        raise RattleError(f"cannot form a proportion of {successes} out of {n}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, shrink = successes / n, 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # exact at the ends, where rounding would leave 1e-17
    return Interval(0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def mean_interval(values: Sequence[float], error: float = 0.0) -> Interval:
    """95 % interval of the mean of n values in [0, 1]: for flags Wilson's.

    For rates over draws it is Wilson's of as many flags as have their standard error, from the images and from `error`,
    the part of the draws that images share.

    >>> mean_interval([1, 0, 1, 1]) == wilson(3, 4)
    True
    """
    n, mean = len(values), sum(values) / len(values)
    if mean in (0, 1) or (error == 0 and set(values) <= {0, 1}):
        return wilson(round(sum(values)), n)
    variance = float(np.var(values)) / max(1, n - 1) + error**2
    effective = max(1.0, mean * (1 - mean) / max(variance, 1e-12))
    return wilson(mean * effective, effective)


def precise_enough(successes: float, n: int, within: float) -> bool:
    """Whether to stop drawing images: the accuracy is known to +- `within`, a fraction of 1.

    A fixed-width sequential interval (Chow and Robbins 1965; for proportions Frey 2010): Wilson's, at a level raised
    from 95 to 96 %, which pays for looking again after every batch. Its exact coverage is at least 95 %
    (tests/method/test_stats.py computes it).
    """
    interval, share = wilson(successes, n, LEVEL_OF_LOOKS), successes / n
    return max(interval.high - share, share - interval.low) <= within


def time_left(spent: float, images: int, batch: int, seconds: float) -> bool:
    """Whether a budget allows another batch, at the pace of those that took `spent` seconds on so many images.

    Decided before a batch is begun, and every batch begun counts: robust images take longer, and those under way when
    time is over would else be left out (tests/evaluation/test_budget.py simulates the coverage).
    """
    return spent * (images + batch) / images <= seconds


def minimum_interval(successes: Sequence[float], sizes: Sequence[int]) -> Interval:
    """95 % interval of the lowest of several proportions, whichever it is, from independent samples of each.

    The sample that looks worst was chosen for looking so: its own interval is too low. Each end is an exact bound
    (Clopper and Pearson 1934) at 97.5 %. The lowest proportion is below the low end only if that one's own bound fails,
    so the low end needs no correction (intersection-union, Berger 1982). The high end fails if any proportion's bound
    does, so each is at 0.975^(1/k) (Sidak 1967). Coverage is at least 95 % for any sizes, and rates, which vary less
    than flags, count as flags.

    >>> chosen, alone = minimum_interval([5, 9, 9, 9], [10] * 4), minimum_interval([5], [10])
    >>> chosen.low == alone.low, chosen.high > alone.high
    (True, True)
    """
    from scipy.special import betaincinv

    tail, k = (1 - LEVEL) / 2, len(sizes)
    lows, highs = [], []
    for x, n in zip(successes, sizes, strict=True):
        lows.append(float(betaincinv(x, n - x + 1, tail)) if x > 0 else 0.0)
        highs.append(float(betaincinv(x + 1, n - x, (1 - tail) ** (1 / k))) if x < n else 1.0)
    return Interval(min(lows), min(highs))


def absolute_sum_interval(values: Any, groups: Any) -> Interval:
    """95 % interval of sum over groups |mean of the group's part|, from a value and a group number for each image.

    Noise makes the estimate too large, and its bootstrap larger still: percentile intervals miss a true 0 always. So
    each end is a bound at 97.5 %. Low: the estimate errs by no more than the sum of the groups' own errors (triangle
    inequality), whose quantile the bootstrap over images gives (Efron 1979). High: with the signs of the truth the sum
    is a mean of n values and normal, and the estimate, a sum of absolute values, is at least that.
    """
    values, groups = np.asarray(values, dtype=float), np.asarray(groups)
    n, generator = len(values), np.random.default_rng(0)
    sums = np.bincount(groups, values)
    errors = []
    for _ in range(RESAMPLES):
        rows = generator.integers(n, size=n)
        errors.append(np.abs(np.bincount(groups[rows], values[rows], len(sums)) - sums).sum() / n)
    estimate = float(np.abs(sums).sum() / n)
    low = max(0.0, estimate - float(np.quantile(errors, (1 + LEVEL) / 2)))
    variance = max(0.0, float(np.square(values).mean()) - low**2)
    return Interval(low, min(1.0, estimate + HALF_WIDTH * math.sqrt(variance / n)))


def mcnemar(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """McNemar's test (1947) from one flag per image and model, true where that model is right.

    >>> mcnemar([1, 1, 1, 1, 0], [0, 0, 0, 1, 1]).p_mid
    0.375
    """
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    fewer, trials = min(only_first, only_second), only_first + only_second
    ways = tail = 1  # to choose k of the trials, and to choose at most k
    for k in range(fewer):
        ways = ways * (trials - k) // (k + 1)
        tail += ways
    return McNemar(
        n=len(a), only_first=only_first, only_second=only_second, p_mid=min(1.0, (2 * tail - ways) / 2**trials)
    )


def summarise(values: Sequence[float]) -> Summary:
    """Mean and std over runs."""
    n = len(values)
    if n == 0:
        raise RattleError("there are no values to average")
    return Summary(n=n, mean=fmean(values), deviation=float(np.std(values, ddof=1)) if n > 1 else math.nan)


def t_interval(values: Sequence[float], error: float = 0.0) -> Interval:
    """Student's 95 % interval for the mean of n values, such as paired differences; unbounded for one value.

    error: a standard error that the values share, such as that by the draws of a random model.
    """
    from scipy.stats import t

    summary = summarise(values)
    if summary.n == 1:
        return Interval(-math.inf, math.inf)
    deviation = math.hypot(summary.deviation / math.sqrt(summary.n), error)
    half = float(t.ppf((1 + LEVEL) / 2, summary.n - 1)) * deviation
    return Interval(summary.mean - half, summary.mean + half)


def student(differences: Sequence[float], error: float = 0.0) -> float:
    """Two-sided p of paired differences having the mean 0; 1 for a single one. error: as in `t_interval`."""
    from scipy.stats import t

    summary = summarise(differences)
    if summary.n < 2 or summary.mean == 0:
        return 1.0
    deviation = math.hypot(summary.deviation / math.sqrt(summary.n), error)
    if deviation == 0:
        return 0.0
    return float(2 * t.sf(abs(summary.mean) / deviation, summary.n - 1))


def error_of_images(values: Any) -> float:
    """Standard error of a mean over seeds, from values [seeds, images], as if images varied independently.

    Images of a better network are better together, so the true error is larger. Seeds whose means agree by luck show a
    smaller one, or none, and then this is the better estimate.
    """
    array = np.asarray(values, dtype=float)
    return float(np.sqrt(array.var(axis=0, ddof=1).sum() / len(array)) / array.shape[1])


def seeds_interval(values: Any, error: float = 0.0) -> Interval:
    """95 % interval of a mean over two seeds or more, from values [seeds, images]: Student's, no narrower than the
    images allow, and the draws of random models: `error` is the standard error of the mean by these.

    >>> seeds_interval([[1, 0, 0, 0], [0, 1, 0, 0]]).low < 0  # a quarter in both seeds: Student's has no width
    True
    """
    student, mean = t_interval(np.mean(values, axis=1)), float(np.mean(values))
    half = HALF_WIDTH * math.hypot(error_of_images(values), error)
    return Interval(min(student.low, mean - half), max(student.high, mean + half))


def normal(mean: float, error: float) -> float:
    """Two-sided p of a mean with a known standard error being 0."""
    return math.erfc(abs(mean) / error / math.sqrt(2)) if error else float(mean == 0)


def welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of two independent groups having the same mean (Welch 1947); each needs two values or more."""
    from scipy.stats import ttest_ind_from_stats

    one, two = summarise(a), summarise(b)
    if one.deviation == two.deviation == 0:
        return float(one.mean == two.mean)
    statistics = (one.mean, one.deviation, one.n, two.mean, two.deviation, two.n)
    return float(ttest_ind_from_stats(*statistics, equal_var=False).pvalue)


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """p-values adjusted for being several (Holm 1979), in the order given.

    family: of how many tests these are some, which makes none of them smaller than in the whole family.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, n = np.argsort(p_values), family or len(p_values)
    steps = np.asarray(p_values)[order] * np.arange(n, n - len(p_values), -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted.tolist()
