"""Intervals and tests against values computed by hand or with scipy 1.17."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rattle.errors import RattleError
from rattle.stats import Interval, mcnemar, mcnemar_counts, summarise, t_central, t_interval, t_quantile, wilson

WILSON = [  # scipy.stats.binomtest(k, n).proportion_ci(level, method="wilson")
    (0, 10, 0.95, 0.0, 0.27753279986288926),
    (10, 10, 0.95, 0.7224672001371109, 1.0),
    (263, 500, 0.95, 0.4822016483694956, 0.5694018859265038),
    (5130, 10000, 0.99, 0.5001208538584723, 0.5258619068484578),
]
MCNEMAR = [  # scipy.stats.binomtest(min(b, c), b + c).pvalue, and less the probability of the outcome itself
    (3, 1, 0.625, 0.375),
    (25, 10, 0.016673847800120715, 0.011330984183587134),
    (0, 6, 0.03125, 0.015625),
    (300, 371, 0.006841895632001823, 0.006123362907806937),
]
STUDENT = [  # scipy.stats.t.ppf(0.975, freedom) and (0.995, freedom)
    (1, 12.706204736174694, 63.656741162871526),
    (2, 4.302652729749462, 9.924843200918287),
    (3, 3.1824463052837078, 5.840909309733355),
    (4, 2.7764451051977934, 4.604094871349992),
    (9, 2.262157162798205, 3.249835541592126),
    (99, 1.9842169515864174, 2.626405457280827),
]


@pytest.mark.parametrize(("successes", "n", "level", "low", "high"), WILSON)
def test_wilson_is_scipys(successes: int, n: int, level: float, low: float, high: float) -> None:
    interval = wilson(successes, n, level=level)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_proportion_and_stays_between_0_and_1(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    interval = wilson(successes, n)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1


@pytest.mark.parametrize(("first", "second", "p_exact", "p_mid"), MCNEMAR)
def test_mcnemar_is_the_binomial_test_of_the_discordant_images(
    first: int, second: int, p_exact: float, p_mid: float
) -> None:
    test = mcnemar_counts(first, second, n=1000)
    assert (test.p_exact, test.p_mid) == pytest.approx((p_exact, p_mid), rel=1e-10)


def test_equal_models_give_p_one() -> None:
    assert (mcnemar_counts(7, 7, n=100).p_exact, mcnemar_counts(7, 7, n=100).p_mid) == (1, 1)
    assert (mcnemar([1, 0], [1, 0]).p_exact, mcnemar([1, 0], [1, 0]).p_mid) == (1, 1)


def test_mcnemar_counts_the_flags_and_signs_the_difference() -> None:
    first = np.array([True] * 60 + [False] * 40)
    second = np.array([True] * 57 + [False] * 3 + [True] * 1 + [False] * 39)
    test = mcnemar(first, second)
    assert (test.only_first, test.only_second, test.n) == (3, 1, 100)
    assert test.difference == pytest.approx(-0.02)
    assert test.p_exact == 0.625


def test_mcnemar_is_finite_for_ten_thousand_images() -> None:
    assert 0 < mcnemar_counts(900, 1100, n=10_000).p_mid < 1e-5
    assert mcnemar_counts(0, 10_000, n=10_000).p_exact == 0.0  # 2**-9999 is below the smallest float


@pytest.mark.parametrize(("freedom", "t95", "t99"), STUDENT)
def test_students_quantile_is_scipys(freedom: int, t95: float, t99: float) -> None:
    assert (t_quantile(0.95, freedom), t_quantile(0.99, freedom)) == pytest.approx((t95, t99), rel=1e-10)
    assert t_central(t95, freedom) == pytest.approx(0.95, abs=1e-12)


def test_three_runs_have_the_mean_deviation_and_interval_of_scipy() -> None:
    runs = [50.1, 50.3, 50.6]
    summary, interval = summarise(runs), t_interval(runs)
    assert (summary.n, summary.mean, summary.deviation) == pytest.approx((3, 50.33333333333333, 0.2516611478423586))
    assert (interval.low, interval.high) == pytest.approx((49.70817238539572, 50.95849428127088), abs=1e-9)


def test_one_run_has_no_deviation_and_an_unbounded_interval() -> None:
    assert math.isnan(summarise([51.0]).deviation)
    assert t_interval([51.0]) == Interval(-math.inf, math.inf)


def test_impossible_counts_and_levels_are_refused_in_words() -> None:
    with pytest.raises(RattleError, match="11 out of 10"):
        wilson(11, 10)
    with pytest.raises(RattleError, match="between 0 and 1"):
        wilson(1, 10, level=95)
    with pytest.raises(RattleError, match="one flag per image"):
        mcnemar([1, 0], [1, 0, 1])
    with pytest.raises(RattleError, match="do not fit among 3"):
        mcnemar_counts(2, 2, n=3)
    with pytest.raises(RattleError, match="no values"):
        summarise([])
    with pytest.raises(RattleError, match="degree of freedom"):
        t_quantile(0.95, 0)
