"""The caveats of a result in one line: why its number may be wrong or vague. No torch."""

from collections import Counter

from rattle.evaluation.classes import FEWEST_OF_CLASS
from rattle.evaluation.results import Evaluation
from rattle.evaluation.unions import split_name
from rattle.stats import mean_interval

NEAR_CHANCE = 1.5  # times the accuracy of guessing: the model does not do its job
FINE = 2.0  # +- points; a wider interval is a caveat
STRONG = "autoattack"  # what the field takes for an answer; other attacks bound it from above


def caveats_of(result: Evaluation, *, classes: int, test_images: int) -> str:
    """Why the robust accuracy may be wrong or vague, the gravest reason first; or that none was found.

    classes: the model's outputs. test_images: how many the data have.

    >>> few = Evaluation(clean=[True] * 40, attacks={})
    >>> caveats_of(few, classes=10, test_images=500)
    'caveats: few images (n = 40 of 500, ±4.4 points)'
    """
    reasons = []
    if result.clean_accuracy < NEAR_CHANCE / classes:
        reasons.append("clean accuracy is near chance (check weights, labels and normalisation)")
    if result.warnings:
        reasons.append("the warnings above")
    attacks = list(dict.fromkeys(split_name(name)[0] for name in result.attacks))
    if attacks and STRONG not in attacks:
        reasons.append(f"only an upper bound ({', '.join(attacks)}; run autoattack)")
    n = len(result.worst_case)
    interval = mean_interval(result.worst_case, result.worst_error)
    spread = 50 * (interval.high - interval.low)
    if spread > FINE and n < test_images:
        reasons.append(f"few images (n = {n:,} of {test_images:,}, ±{spread:.1f} points)")
    sizes = Counter(result.labels or ())
    if len(sizes) > 1 and min(sizes.values()) < FEWEST_OF_CLASS:
        reasons.append(f"no worst class (a class has fewer than {FEWEST_OF_CLASS} images)")
    if not reasons:
        return f"no caveats beyond the interval (n = {n:,}, ±{spread:.1f} points)"
    return f"caveats: {'; '.join(reasons)}"
