"""The last line of an evaluation: the caveats of its number."""

from typing import Any

import pytest

from rattle.evaluation.caveats import caveats_of
from rattle.evaluation.results import AttackResult, Evaluation


def evaluation(robust: int, n: int, *, clean: int | None = None, attack: str = "autoattack", **more: Any) -> Evaluation:
    flags = [True] * robust + [False] * (n - robust)
    right = [True] * (n if clean is None else clean)
    found = AttackResult(settings={}, flags=flags, seconds=1.0)
    return Evaluation(clean=right + [False] * (n - len(right)), attacks={attack: found}, **more)


@pytest.mark.parametrize(
    ("result", "words", "silent"),
    [
        (evaluation(4000, 10_000), "no caveats", "caveats:"),
        (evaluation(100, 200), "n = 200 of 10,000, ±6.9 points", "upper bound"),
        (evaluation(5, 10_000, clean=1100), "clean accuracy is near chance", "few images"),
        (evaluation(5, 10_000, attack="pgd20"), "only an upper bound (pgd20", "few images"),
        (evaluation(5, 10_000, warnings=("masked",)), "warnings above", "upper bound"),
        (evaluation(15, 29, labels=[0] * 20 + [1] * 9), "a class has fewer than 10 images", "no caveats"),
        (evaluation(15, 30, labels=[0] * 20 + [1] * 10), "few images", "a class has"),
    ],
)
def test_what_was_seen_is_said_and_nothing_else(result: Evaluation, words: str, silent: str) -> None:
    line = caveats_of(result, classes=10, test_images=10_000)
    assert words in line
    assert silent not in line
    assert "\n" not in line


def test_all_the_images_there_are_are_not_asked_for_again() -> None:
    assert "few images" not in caveats_of(evaluation(20, 40), classes=10, test_images=40)
    assert "few images" in caveats_of(evaluation(20, 40), classes=10, test_images=60)
