"""Intervals and tests against values computed by hand or with scipy 1.17."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rattle.errors import RattleError
from rattle.evaluation.evaluate import LOOK_EVERY
from rattle.evaluation.samples import Sample, difference, two_sided_p
from rattle.stats import (
    LEVEL_OF_LOOKS,
    Interval,
    holm,
    mcnemar,
    precise_enough,
    seeds_interval,
    student,
    summarise,
    t_interval,
    welch,
    wilson,
)
from support.run_folders import sample

WILSON = [  # scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    (0, 10, 0.0, 0.27753279986288926),
    (10, 10, 0.7224672001371109, 1.0),
    (263, 500, 0.4822016483694956, 0.5694018859265038),
    (5130, 10000, 0.5032003808274409, 0.5227896352149216),
]
MCNEMAR = [  # scipy.stats.binomtest(min(b, c), b + c).pvalue less the probability of the outcome itself
    (3, 1, 0.375),
    (25, 10, 0.011330984183587134),
    (0, 6, 0.015625),
    (300, 371, 0.006123362907806937),
    (7, 7, 1),
    (0, 0, 1),
]
STUDENT = [  # scipy.stats.t.ppf(0.975, n - 1)
    (2, 12.706204736174694),
    (3, 4.302652729749462),
    (4, 3.1824463052837078),
    (5, 2.7764451051977934),
    (10, 2.262157162798205),
    (100, 1.9842169515864174),
]


@pytest.mark.parametrize(("successes", "n", "low", "high"), WILSON)
def test_wilson_is_scipys(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_proportion_and_stays_between_0_and_1(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    interval = wilson(successes, n)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1


@pytest.mark.parametrize(("only_first", "only_second", "p"), MCNEMAR)
def test_mcnemar_is_the_binomial_test_of_the_discordant_images(only_first: int, only_second: int, p: float) -> None:
    both = [1] * 1000
    test = mcnemar([1] * only_first + [0] * only_second + both, [0] * only_first + [1] * only_second + both)
    assert test.p_mid == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize(("n", "t95"), STUDENT)
def test_students_interval_and_test_agree_with_the_table_of_quantiles(n: int, t95: float) -> None:
    values = [float(i) for i in range(n)]
    summary, interval = summarise(values), t_interval(values)
    half = t95 * summary.deviation / math.sqrt(n)
    assert (interval.low, interval.high) == pytest.approx((summary.mean - half, summary.mean + half), abs=1e-9)
    assert student([value - summary.mean + half for value in values]) == pytest.approx(0.05, abs=1e-10)


def test_one_run_has_no_deviation_and_an_unbounded_interval() -> None:
    assert math.isnan(summarise([51.0]).deviation)
    assert t_interval([51.0]) == Interval(-math.inf, math.inf)


def test_impossible_counts_are_refused_in_words() -> None:
    with pytest.raises(RattleError, match="11 out of 10"):
        wilson(11, 10)
    with pytest.raises(RattleError, match="no values"):
        summarise([])


def test_welch_is_scipys_test_of_unequal_variances() -> None:
    from scipy.stats import ttest_ind

    for a, b in (([1.0, 2.0, 3.0], [2.0, 3.0, 4.5]), ([1.0, 1.1, 1.2], [2.0, 2.6, 2.3]), ([0.0, 5.0], [1.0, 2.0])):
        assert welch(a, b) == pytest.approx(ttest_ind(a, b, equal_var=False)[1], rel=1e-12)
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1


def test_the_difference_is_tested_over_seeds_where_there_are_several() -> None:
    def p(*samples: Sample) -> float:
        found = two_sided_p(*samples)
        assert found is not None
        return found

    assert p(sample(0.40, 0.41, 0.42), sample(0.50, 0.51, 0.52)) < 0.05
    assert p(sample(0.40, 0.50, 0.60), sample(0.45, 0.50, 0.58)) > 0.05
    assert p(sample(0.40, 0.41, 0.42), sample(0.50, 0.51, 0.52, seeds=(7, 8, 9))) < 0.05
    assert two_sided_p(sample(0.40), sample(0.90, 0.91)) is None
    assert two_sided_p(sample(0.1, protocol="x"), sample(0.9, protocol="y")) is None
    assert two_sided_p(sample(0.1), sample(0.9, n=50)) is None


def test_the_interval_of_a_paired_difference_is_bonett_and_prices() -> None:
    found = mcnemar([1] * 10 + [0] * 2 + [1] * 38, [0] * 10 + [1] * 2 + [1] * 38)
    assert (found.only_first, found.only_second, found.difference) == (10, 2, -0.16)
    half = 1.959964 * math.sqrt((14 / 52 - (8 / 52) ** 2) / 52)  # their eq. with 11 and 3 of 52
    assert found.interval.low == pytest.approx(-8 / 52 - half, abs=1e-6)
    assert found.interval.high == pytest.approx(-8 / 52 + half, abs=1e-6)
    same = mcnemar([1, 0], [1, 0]).interval
    assert same.low < 0 < same.high


def test_a_difference_is_paired_by_images_or_by_the_seeds_that_both_have() -> None:
    from scipy.stats import ttest_rel

    one = difference(sample(0.7), sample(0.4))
    assert one is not None
    assert (one.test, one.n, one.mean) == ("McNemar's test over images", 1, pytest.approx(0.3))
    assert one.interval.low < one.mean < one.interval.high
    a, b = (0.50, 0.55, 0.57), (0.45, 0.44, 0.52)
    several = difference(sample(*a, 0.9), sample(*b))
    assert several is not None
    assert (several.test, several.n) == ("Student's t over seeds", 3)
    assert several.p == pytest.approx(ttest_rel(a, b).pvalue)
    near, far = (Sample(seeds=(0,), flags=(values,)) for values in ((0.1, 0.2, 0.0, 0.3), (0.2, 0.4, 0.0, 0.35)))
    distances = difference(far, near)
    assert distances is not None
    assert distances.test == "Student's t over images"
    assert distances.p == pytest.approx(ttest_rel(far.flags[0], near.flags[0]).pvalue)


def test_samples_of_other_protocols_or_other_seeds_have_no_difference() -> None:
    assert difference(sample(0.5, protocol="x"), sample(0.5, protocol="y")) is None
    assert difference(sample(0.5, seeds=(0,)), sample(0.5, seeds=(1,))) is None
    same, constant = difference(sample(0.5, 0.6), sample(0.5, 0.6)), difference(sample(0.6, 0.7), sample(0.5, 0.6))
    assert same is not None
    assert same.p == 1
    assert constant is not None
    # 0.1 in both seeds, of other images: twenty of a hundred vary, and Student's t would be infinitely sure
    assert constant.p == pytest.approx(2 * NormalDist().cdf(-0.1 / (math.sqrt(20 * 0.5 / 2) / 100)))


@pytest.mark.parametrize("paired", [True, False])
def test_seeds_that_agree_by_luck_are_no_evidence(paired: bool) -> None:
    """Two methods that are alike: with two seeds of 100 images Student's p is 0 as often as two differences agree."""
    generator, sure, surest_by_seeds = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        chances = generator.beta(0.5, 0.5, 100)  # of each image to be classified right
        flags = [tuple(tuple(row) for row in (generator.random((2, 100)) < chances).astype(int)) for _ in range(2)]
        a, b = (Sample(seeds=(0, 1) if paired or k == 0 else (2, 3), flags=rows) for k, rows in enumerate(flags))
        p = two_sided_p(a, b)
        assert p is not None
        sure += p < 0.001
        surest_by_seeds += student([x - y for x, y in zip(a.accuracies, b.accuracies, strict=True)]) < 0.001
    assert sure <= 4
    assert surest_by_seeds > 30


def test_an_interval_over_seeds_is_no_narrower_than_its_images_allow() -> None:
    apart = [[1] * 60 + [0] * 40, [1] * 20 + [0] * 80, [1] * 90 + [0] * 10]
    assert seeds_interval(apart) == t_interval([0.6, 0.2, 0.9])
    alike = [[1, 0] * 50, [0, 1] * 50, [1, 0] * 50]  # a half each
    half = NormalDist().inv_cdf(0.975) * math.sqrt(100 / 3 / 3) / 100
    assert (seeds_interval(alike).low, seeds_interval(alike).high) == pytest.approx((0.5 - half, 0.5 + half))
    one, none = (Sample(seeds=(0, 1, 2), flags=tuple(map(tuple, x))) for x in (alike, [[0] * 100] * 3))
    found = difference(one, none)
    assert found is not None
    assert found.interval == seeds_interval(alike)


def test_seeds_that_agree_on_every_image_count_as_one() -> None:
    """Two runs without randomness: they do not make an accuracy, or a difference, surer than one of them does."""
    one, other = ([1] * 96 + [0] * 4, [1] * 94 + [0] * 6)
    twice, twice_other = (Sample(seeds=(0, 1), flags=(tuple(x), tuple(x))) for x in (one, other))
    once, once_other = (Sample(seeds=(0,), flags=(tuple(x),)) for x in (one, other))
    assert twice.interval == once.interval == wilson(96, 100)
    assert difference(twice, twice_other) == difference(once, once_other)
    for sample_of_other in (twice_other, Sample(seeds=(7, 8), flags=twice_other.flags), once_other):
        assert two_sided_p(twice, sample_of_other) == two_sided_p(once, once_other) == 0.25


def test_holm_never_lowers_a_p_value_and_keeps_their_order() -> None:
    assert holm([0.5, 0.01, 0.02]) == [0.5, 0.03, 0.04]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.01, 0.02], family=10) == [0.1, 0.18]


def coverage_of_a_sequential_evaluation(accuracy: float, within: float, batch: int) -> tuple[float, float]:
    """Exact: how often the interval at the end holds the accuracy, and the images it takes, looking after every batch.

    A recursion over the number of robust images among those drawn so far.
    """
    from scipy.stats import binom

    step = binom.pmf(np.arange(batch + 1), batch, accuracy)
    going, n, covered, images = np.array([1.0]), 0, 0.0, 0.0
    while going.sum() > 1e-9:
        going, n = np.convolve(going, step), n + batch
        for robust in np.flatnonzero(going > 1e-15):
            if precise_enough(int(robust), n, within):
                interval = wilson(int(robust), n, LEVEL_OF_LOOKS)
                covered += going[robust] * (interval.low <= accuracy <= interval.high)
                images += going[robust] * n
                going[robust] = 0
    return covered, images


@pytest.mark.parametrize("within", [0.05, 0.03])
def test_looking_after_every_batch_keeps_the_coverage_of_a_sequential_evaluation(within: float) -> None:
    found = [coverage_of_a_sequential_evaluation(p, within, 50) for p in (0.03, 0.1, 0.25, 0.4, 0.5, 0.8, 0.95)]
    assert min(covered for covered, _ in found) >= 0.95
    assert max(images for _, images in found) < 1.25 * (1.96 / within) ** 2 / 4  # what half would need, known before


@pytest.mark.parametrize("accuracy", [0.005, 0.995])
def test_looks_250_images_apart_keep_the_coverage_at_the_ends(accuracy: float) -> None:
    """Looks after every image covered 91 to 93 %; an evaluation looks after every 250, whatever its batches."""
    assert LOOK_EVERY == 250
    assert coverage_of_a_sequential_evaluation(accuracy, 0.03, LOOK_EVERY)[0] >= 0.95
