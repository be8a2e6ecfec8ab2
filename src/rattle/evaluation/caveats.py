"""The caveats of a result in one line: what could change its number. No torch."""

from rattle.evaluation.results import Evaluation
from rattle.evaluation.unions import split_name
from rattle.stats import mean_interval

NEAR_CHANCE = 1.5  # times the accuracy of guessing: the model does not do its job
FINE = 2.0  # points to either side; a wider interval is worth more images
STRONG = "autoattack"  # what the field takes for an answer; other attacks bound it from above


def caveats_of(result: Evaluation, *, classes: int, test_images: int) -> str:
    """What could change the robust accuracy, the gravest first; or that nothing was found.

    classes: the model's outputs. test_images: how many the data have.

    >>> few = Evaluation(clean=[True] * 40, attacks={})
    >>> caveats_of(few, classes=10, test_images=500)
    'caveats: more images (n = 40 of 500 leaves 4.4 points to a side)'
    """
    reasons = []
    if result.clean_accuracy < NEAR_CHANCE / classes:
        reasons.append("right weights, labels or normalisation (clean accuracy is near chance)")
    if result.warnings:
        reasons.append("the cause of the warnings above")
    attacks = list(dict.fromkeys(split_name(name)[0] for name in result.attacks))
    if attacks and STRONG not in attacks:
        reasons.append(f"a stronger attack ({', '.join(attacks)} can only overestimate; autoattack is the rule)")
    n = len(result.worst_case)
    interval = mean_interval(result.worst_case, result.worst_error)
    spread = 50 * (interval.high - interval.low)
    if spread > FINE and n < test_images:
        reasons.append(f"more images (n = {n:,} of {test_images:,} leaves {spread:.1f} points to a side)")
    if not reasons:
        return f"no caveats beyond the interval (n = {n:,}, {spread:.1f} points)"
    return f"caveats: {'; '.join(reasons)}"
