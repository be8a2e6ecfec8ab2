"""Intervals and tests over n runs or n images. No torch; scipy is imported late, as it takes a second to load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from rattle.errors import RattleError

LEVEL = 0.95  # of every interval; tests decide at 1 - LEVEL
LEVEL_OF_LOOKS = 0.96  # of the interval that ends a sequential evaluation


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
    """Two models on the same images: how many exactly one gets right, and how likely that split is by chance."""

    n: int  # images
    only_first: int  # right in the first model alone
    only_second: int
    p_exact: float  # two-sided binomial: never too small
    p_mid: float  # two-sided mid-p: less conservative, the one to report (Fagerland et al. 2013)

    @property
    def difference(self) -> float:
        """Accuracy of the second less that of the first."""
        return (self.only_second - self.only_first) / self.n

    @property
    def interval(self) -> Interval:
        """95 % of `difference` (Bonett and Price 2012): one is added to both counts, so that none has a width too."""
        n, first, second = self.n + 2, self.only_first + 1, self.only_second + 1
        centre = (second - first) / n
        half = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(((first + second) / n - centre**2) / n)
        return Interval(max(-1.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One method under one attack: for each seed, a flag for each image."""

    seeds: tuple[int, ...]
    flags: tuple[tuple[float, ...], ...]  # [seeds][images]; distances, where the attack measures those
    protocol: str = ""  # how they were attacked; only equal ones are compared
    images: tuple[str, ...] = ()  # a checksum of each image, by which samples are paired
    places: tuple[str, ...] = ()  # dataset and number of each image, where one of two samples has no checksums

    @property
    def accuracies(self) -> list[float]:
        return [sum(flags) / len(flags) for flags in self.flags]

    @property
    def n(self) -> int:
        """Images."""
        return len(self.flags[0])

    def at(self, rows: Sequence[int]) -> "Sample":
        """The same of these images alone."""
        flags = tuple(tuple(each[i] for i in rows) for each in self.flags)
        images, places = (tuple(each[i] for i in rows) if each else () for each in (self.images, self.places))
        return replace(self, flags=flags, images=images, places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One method less another, and how likely so large a difference is by chance."""

    mean: float
    interval: Interval  # 95 %
    p: float  # two-sided, not adjusted for being one of several
    test: str
    n: int  # seeds


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
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


def precise_enough(successes: int, n: int, within: float) -> bool:
    """Whether to stop drawing images: the accuracy is known to `within`, a fraction of 1, to either side.

    A fixed-width sequential interval (Chow and Robbins 1965; for proportions Frey 2010): Wilson's, at a level raised
    from 95 to 96 %, which pays for looking again after every batch. Its exact coverage is at least 95 %
    (tests/method/test_stats.py computes it).
    """
    interval, share = wilson(successes, n, LEVEL_OF_LOOKS), successes / n
    return max(interval.high - share, share - interval.low) <= within


def mcnemar(first: Any, second: Any) -> McNemar:
    """McNemar's test (1947) from one flag per image and model, True where that model is right.

    >>> mcnemar([1, 1, 1, 1, 0], [0, 0, 0, 1, 1]).p_exact
    0.625
    """
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if a.shape != b.shape or a.ndim != 1:
        raise RattleError(f"a paired test needs one flag per image from both models, got {a.shape} and {b.shape}")
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    trials = only_first + only_second
    term = tail = 1  # C(trials, k) and its sum up to the smaller count, in whole numbers: exact at any n
    for k in range(min(only_first, only_second)):
        term = term * (trials - k) // (k + 1)
        tail += term
    p_exact, p_mid = min(1.0, 2 * tail / 2**trials), (2 * tail - term) / 2**trials
    return McNemar(n=len(a), only_first=only_first, only_second=only_second, p_exact=p_exact, p_mid=p_mid)


def summarise(values: Sequence[float]) -> Summary:
    """Mean and standard deviation over runs."""
    if len(values) == 0:
        raise RattleError("there are no values to average")
    n, mean = len(values), math.fsum(values) / len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return Summary(n=n, mean=mean, deviation=math.sqrt(squares / (n - 1)) if n > 1 else math.nan)


def t_interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval for the mean of n values, such as paired differences; unbounded for one value."""
    from scipy.stats import t

    summary = summarise(values)
    if summary.n == 1:
        return Interval(-math.inf, math.inf)
    half = float(t.ppf((1 + LEVEL) / 2, summary.n - 1)) * summary.deviation / math.sqrt(summary.n)
    return Interval(summary.mean - half, summary.mean + half)


def student(differences: Sequence[float]) -> float:
    """Two-sided p of paired differences having the mean 0; 1 for a single one."""
    from scipy.stats import t

    summary = summarise(differences)
    if summary.n < 2 or summary.mean == 0:
        return 1.0
    if summary.deviation == 0:
        return 0.0
    return float(2 * t.sf(abs(summary.mean) / summary.deviation * math.sqrt(summary.n), summary.n - 1))


def welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of two independent groups having the same mean (Welch 1947); each needs two values or more."""
    from scipy.stats import ttest_ind_from_stats

    first, second = summarise(a), summarise(b)
    if first.deviation == second.deviation == 0:
        return float(first.mean == second.mean)
    groups = (value for s in (first, second) for value in (s.mean, s.deviation, s.n))
    return float(ttest_ind_from_stats(*groups, equal_var=False).pvalue)


def on_shared_images(a: Sample, b: Sample) -> tuple[Sample, Sample] | None:
    """Both on the images that both have, in one order; None if there are none.

    >>> first, second = (Sample(seeds=(0,), flags=((1, 0),), places=places) for places in (("p", "q"), ("q", "r")))
    >>> [sample.flags for sample in on_shared_images(first, second)]
    [((0,),), ((1,),)]
    """
    one, two = (a.images, b.images) if a.images and b.images else (a.places, b.places)
    if one == two:  # also where neither says
        return a, b
    found = {image: i for i, image in enumerate(two)}
    rows = [i for i, image in enumerate(one) if image in found]
    return (a.at(rows), b.at([found[one[i]] for i in rows])) if rows else None


def comparable(a: Sample, b: Sample) -> bool:
    """The same attack on the same number of images."""
    return a.protocol == b.protocol and {len(flags) for flags in a.flags} == {len(flags) for flags in b.flags}


def paired_test(a: Sample, b: Sample, seeds: Sequence[int]) -> tuple[list[float], float, str]:
    """(differences a less b, two-sided p, name of the test) over seeds that both have.

    One seed: McNemar's mid-p, or Student's t over images where they have distances instead of flags. Several: Student's
    t of the paired differences.
    """
    pairs = [(a.flags[a.seeds.index(seed)], b.flags[b.seeds.index(seed)]) for seed in seeds]
    if len(pairs) > 1:
        over_seeds = [sum(x) / len(x) - sum(y) / len(y) for x, y in pairs]
        return over_seeds, student(over_seeds), "Student's t over seeds"
    first, second = pairs[0]
    over_images = [x - y for x, y in zip(first, second, strict=True)]
    if set(first) | set(second) <= {0, 1}:
        return over_images, mcnemar(first, second).p_mid, "McNemar's test over images"
    return over_images, student(over_images), "Student's t over images"


def difference(a: Sample, b: Sample) -> Difference | None:
    """a less b by `paired_test` over the seeds that both have; None where there are none or they are not comparable.

    >>> one, two = (Sample(seeds=(0,), flags=(flags,)) for flags in ((1, 1, 1, 1, 0), (0, 0, 0, 1, 0)))
    >>> round(difference(one, two).mean, 2), difference(one, two).p
    (0.6, 0.125)
    """
    seeds = [seed for seed in a.seeds if seed in b.seeds]
    if not seeds or not comparable(a, b):
        return None
    each, p, test = paired_test(a, b, seeds)
    return Difference(mean=math.fsum(each) / len(each), interval=t_interval(each), p=p, test=test, n=len(seeds))


def two_sided_p(a: Sample, b: Sample) -> float | None:
    """How likely so large a difference is by chance; None where they are not comparable, or one seed meets several.

    The same seeds, or one seed each: by `paired_test` (with one seed it speaks of these two networks, not of the
    methods). Other seeds: Welch's test.
    """
    if not comparable(a, b):
        return None
    if len(a.seeds) == len(b.seeds) == 1:
        b = replace(b, seeds=a.seeds)  # paired by the images, whatever the seeds
    if sorted(a.seeds) == sorted(b.seeds) and len(set(a.seeds)) == len(a.seeds):
        return paired_test(a, b, a.seeds)[1]
    return welch(a.accuracies, b.accuracies) if min(len(a.seeds), len(b.seeds)) > 1 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being several (Holm 1979), in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted.tolist()
