"""One rule of significance: what a table prints bold, the page and `rattle compare` call better, and the reverse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rattle.report.significance import paired_tests
from rattle.report.tables import compare
from rattle.stats import holm, mcnemar
from support import run_folders as made


def test_every_pair_in_every_column_is_adjusted_together() -> None:
    shares = {"a": (0.9, 0.40), "b": (0.9, 0.50), "c": (0.8, 0.53)}
    samples = {name: {"clean": made.sample(x), "pgd20": made.sample(y)} for name, (x, y) in shares.items()}
    tests, refused = paired_tests(samples)
    assert [(t.first, t.second, t.attack) for t in tests] == [
        (a, b, column) for a, b in (("a", "b"), ("a", "c"), ("b", "c")) for column in ("clean", "pgd20")
    ]
    assert refused == []
    expected = [mcnemar(*(sample.flags[0] for sample in t.samples)).p_mid for t in tests]
    assert [t.p for t in tests] == expected
    assert [t.p_adjusted for t in tests] == pytest.approx(holm(expected))


def test_with_a_baseline_each_other_row_is_compared_with_it_alone_and_the_adjustment_is_smaller() -> None:
    samples = {name: {"pgd20": made.sample(share)} for name, share in (("a", 0.4), ("b", 0.46), ("c", 0.53))}
    few, all_pairs = (paired_tests(samples, baseline)[0] for baseline in ("c", None))
    assert [(t.first, t.second) for t in few] == [("c", "a"), ("c", "b")]
    assert few[0].p_adjusted < next(t for t in all_pairs if (t.first, t.second) == ("a", "c")).p_adjusted


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 40)] * 2), min_size=2, max_size=6))
def test_what_a_table_prints_bold_is_better_in_every_comparison_of_fewer_pairs(counts: list[tuple[int, int]]) -> None:
    samples = {
        f"row {i}": {column: made.sample(c / 40, n=40) for column, c in zip(("clean", "pgd20"), each, strict=True)}
        for i, each in enumerate(counts)
    }
    table = compare(samples)
    for baseline in (None, "row 0"):
        for test in paired_tests(samples, baseline)[0]:
            bold = [name for name in (test.first, test.second) if (name, test.attack) in table.best]
            assert not bold or (test.better is not None and test.better[0] == bold[0])


def test_one_seed_against_several_is_said_and_not_tested() -> None:
    rows = {"a": {"pgd20": made.sample(0.4)}, "b": {"pgd20": made.sample(0.9, 0.91)}}
    assert paired_tests(rows) == ([], ["a and b (PGD-20): one seed against several"])


def test_the_sentence_names_the_better_or_says_that_there_is_none() -> None:
    rows = {"A": {"autoattack": made.sample(0.4), "clean": made.sample(0.9)}, "B": {}}
    rows["B"] = {"autoattack": made.sample(0.48), "clean": made.sample(0.89)}
    attacked, clean = paired_tests(rows)[0]
    assert attacked.sentence == "B is better under AutoAttack by 8.0 points (n = 100, p = 0.008)"
    assert (
        clean.sentence == "A and B are not distinguishable on clean images (difference 1.0 points, n = 100, p = 0.500)"
    )
