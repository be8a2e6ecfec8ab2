"""The worst class with an interval that allows for its having been chosen."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from rattle.evaluation.classes import worst_class
from rattle.stats import minimum_interval


def coverage(accuracies: list[float], sizes: list[int], draws: int = 1000) -> tuple[float, float]:
    """How often the interval holds the lowest accuracy, and how often the naive one of the chosen class does."""
    generator, truth = np.random.default_rng(0), min(accuracies)
    held = naive = 0
    for _ in range(draws):
        successes = generator.binomial(sizes, accuracies)
        interval = minimum_interval(successes.tolist(), sizes)
        held += interval.low <= truth <= interval.high
        chosen = int(np.argmin(successes / sizes))
        alone = minimum_interval([int(successes[chosen])], [sizes[chosen]])
        naive += alone.low <= truth <= alone.high
    return held / draws, naive / draws


EQUAL = [50] * 10
UNEQUAL = [12, 20, 35, 50, 50, 80, 100, 150, 200, 300]


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal sizes", "unequal sizes"])
@pytest.mark.parametrize(
    "accuracies",
    [[0.5] * 10, [0.9] * 10, [0.02] * 10, [0.2, 0.5, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.95]],
    ids=["all half", "all high", "all low", "unequal"],
)
def test_the_interval_holds_the_lowest_accuracy_in_95_of_100_evaluations(
    accuracies: list[float], sizes: list[int]
) -> None:
    held, _ = coverage(accuracies, sizes)
    assert held >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 1000)


def test_the_interval_of_the_chosen_class_alone_would_not() -> None:
    held, naive = coverage([0.5] * 10, EQUAL)
    assert naive < 0.88 < 0.95 <= held


def test_both_ends_are_clopper_and_pearsons() -> None:
    interval = minimum_interval([30, 40], [50, 60])
    assert interval.low == pytest.approx(beta.ppf(0.025, 30, 21))
    assert interval.high == pytest.approx(beta.ppf(math.sqrt(0.975), 31, 20))
    ends = minimum_interval([0, 10], [10, 10]), minimum_interval([10, 10], [10, 10])
    assert (ends[0].low, ends[1].high) == (0, 1)


def test_the_worst_class_has_its_size_its_spread_and_an_interval_around_it() -> None:
    worst = worst_class([1] * 18 + [0] * 2 + [1] * 10 + [0.25] * 20, [3] * 20 + [0] * 10 + [7] * 20)
    assert worst is not None
    assert (worst.label, worst.accuracy, worst.n, worst.best, worst.spread) == (7, 0.25, 20, 1.0, 0.75)
    assert worst.interval.low < 0.25 < worst.interval.high


def test_a_class_of_few_images_leaves_it_out() -> None:
    assert worst_class([1] * 30, [0] * 21 + [1] * 9) is None
    assert worst_class([1] * 30, [0] * 20 + [1] * 10) is not None
    assert worst_class([1] * 30, [0] * 30) is None
