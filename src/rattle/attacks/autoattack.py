"""AutoAttack (Croce and Hein 2020): the ensemble that robust accuracies are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from rattle.attacks.apgd import APGD
from rattle.attacks.base import Attack, Ensemble, check_batch, is_correct
from rattle.attacks.fab import FAB
from rattle.attacks.rows import branch
from rattle.attacks.square import Square
from rattle.errors import RattleError
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.threat import Threat
from rattle.weights import eval_mode

Version = Literal["standard", "plus", "rand", "fast", "brief"]


def run_components(
    ensemble: Ensemble,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    draws: ImageStreams,
    still_correct: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Run each component on the correctly classified images that the ones before it did not break.

    still_correct: (x_adv, x, y) -> [n] bool, false where a point breaks its image.
    Yields after each component its name, the points of all images so far, and which images are still correct, [n].
    """
    x_adv, correct = x.clone(), is_correct(model, x, y)
    for number, (name, component) in enumerate(ensemble.components().items()):
        left = correct.nonzero().squeeze(1)
        if len(left):
            points = component(model, x[left], y[left], generator=branch(draws[left], number))
            x_adv[left] = points.to(x_adv)
            correct[left] = still_correct(x_adv[left], x[left], y[left])
        yield name, x_adv, correct.clone()


def standard(threat: Threat) -> dict[str, Attack]:
    """Sec. 4 of the paper; for l_1 the settings of Croce and Hein 2021."""
    l1 = threat.norm == "l1"
    return {
        "apgd-ce": APGD(threat=threat, restarts=5 if l1 else 1, shrinking=l1),
        "apgd-t": APGD(threat=threat, loss="dlr-targeted", targets=5 if l1 else 9, shrinking=l1),
        "fab-t": FAB(threat=threat),
        "square": Square(threat=threat),
    }


def plus(threat: Threat) -> dict[str, Attack]:
    return {
        "apgd-ce": APGD(threat=threat, restarts=5),
        "apgd-dlr": APGD(threat=threat, loss="dlr", restarts=5),
        "fab": FAB(threat=threat, targets=0, restarts=5),
        "square": Square(threat=threat),
        "apgd-t": APGD(threat=threat, loss="dlr-targeted"),
        "fab-t": FAB(threat=threat),
    }


def rand(threat: Threat) -> dict[str, Attack]:
    """For models that draw at random: gradients averaged over 20 passes."""
    return {
        "apgd-ce": APGD(threat=threat, eot=20),
        "apgd-dlr": APGD(threat=threat, loss="dlr", eot=20),
    }


def fast(threat: Threat) -> dict[str, Attack]:
    """The first two components of `standard`: an upper bound on its robust accuracy, not AutoAttack."""
    whole = standard(threat)
    return {name: whole[name] for name in ("apgd-ce", "apgd-t")}


def brief(threat: Threat) -> dict[str, Attack]:
    """All of `standard` with a tenth of the steps: to see that everything runs. An upper bound, not AutoAttack."""
    return {
        "apgd-ce": APGD(threat=threat, steps=10),
        "apgd-t": APGD(threat=threat, loss="dlr-targeted", targets=3, steps=10),
        "fab-t": FAB(threat=threat, targets=3, steps=10),
        "square": Square(threat=threat, queries=100),
    }


VERSIONS: dict[str, Callable[[Threat], dict[str, Attack]]] = {
    "standard": standard,
    "plus": plus,
    "rand": rand,
    "fast": fast,
    "brief": brief,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAttack:
    """Every component on the images that the ones before it left unbroken.

    `components()` gives them by name and in order, for whoever wants a verdict from each.

    >>> list(AutoAttack(version="standard").components())
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """

    threat: Threat = Threat()
    version: Version = "standard"  # standard | plus | rand, as the reference; fast, brief: less, not AutoAttack

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise RattleError(f"attack.version must be one of {', '.join(VERSIONS)}, got {self.version!r}")

    def components(self) -> dict[str, Attack]:
        return VERSIONS[self.version](self.threat)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        with eval_mode(model):
            steps = run_components(
                self, model, x, y, streams(generator, x), lambda x_adv, _, y: is_correct(model, x_adv, y)
            )
            *_, (_, x_adv, _) = steps
        return x_adv
