"""AutoAttack (Croce and Hein 2020), the ensemble that robust accuracies are compared by, and ensembles of your own."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rattle.attacks.apgd import APGD
from rattle.attacks.base import Attack, Ensemble, UsesModels, describe
from rattle.attacks.fab import FAB
from rattle.attacks.rows import spawn
from rattle.attacks.square import Square
from rattle.errors import RattleError
from rattle.inputs import check_batch, is_correct
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.settings import check_settings
from rattle.threat import Threat
from rattle.weights import eval_mode

StillCorrect = Callable[[Tensor, Tensor, Tensor], Tensor]  # (x_adv, x, y) -> [n] bool


@dataclass(frozen=True, slots=True)
class Found:
    """What the components of an ensemble that have run found."""

    x_adv: Tensor  # the points of all images
    correct: Tensor  # which images were correct before the first component and after each, bool [1 + components, n]
    seconds: Tensor  # of each component, [components]


def run_components(
    ensemble: Ensemble,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    draws: ImageStreams,
    still_correct: StillCorrect,
    found: Found | None = None,
) -> Iterator[Found]:
    """Run each component on the correct images that the ones before it left correct, as `still_correct` decides.

    found: the result of the first components, which are not run again. Yields the result after each component.
    """
    if found is None:
        found = Found(x.clone(), is_correct(model, x, y)[None], torch.zeros(0))
    components = list(ensemble.components().values())
    for number in range(len(found.seconds), len(components)):
        begun = time.perf_counter()
        x_adv, correct = found.x_adv.clone(), found.correct[-1].clone()
        left = correct.nonzero().squeeze(1)
        if len(left):
            points = components[number](model, x[left], y[left], generator=spawn(draws[left], number))
            x_adv[left] = points.to(x_adv)
            correct[left] = still_correct(x_adv[left], x[left], y[left])
        seconds = torch.tensor([time.perf_counter() - begun])
        found = Found(x_adv, torch.cat([found.correct, correct[None]]), torch.cat([found.seconds, seconds]))
        yield found


def run_ensemble(ensemble: Ensemble, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
    """`__call__` of an ensemble: the point of the first component that breaks an image, else of the last."""
    x, y = check_batch(x, y)
    draws = streams(generator, x)
    with eval_mode(model):
        *_, found = run_components(ensemble, model, x, y, draws, lambda x_adv, _, y: is_correct(model, x_adv, y))
    return found.x_adv


ENSEMBLES: dict[str, dict[str, APGD | FAB | Square]] = {  # Sec. 4 of the paper; `components` puts the threat in
    "standard": {"apgd-ce": APGD(), "apgd-t": APGD(loss="dlr-targeted"), "fab-t": FAB(), "square": Square()},
    "plus": {  # the reference package's larger ensemble, untargeted attacks with five restarts
        "apgd-ce": APGD(restarts=5),
        "apgd-dlr": APGD(loss="dlr", restarts=5),
        "fab": FAB(targets=0, restarts=5),
        "square": Square(),
        "apgd-t": APGD(loss="dlr-targeted"),
        "fab-t": FAB(),
    },
    "rand": {"apgd-ce": APGD(eot=20), "apgd-dlr": APGD(loss="dlr", eot=20)},  # for models that draw at random
    "smoke": {  # the standard components with a tenth of the steps and fewer targets: to see that everything runs
        "apgd-ce": APGD(steps=10),
        "apgd-t": APGD(loss="dlr-targeted", targets=3, steps=10),
        "fab-t": FAB(targets=3, steps=10),
        "square": Square(queries=100),
    },
}
STANDARD_L1 = {"apgd-ce": {"restarts": 5, "eps_schedule": True}, "apgd-t": {"targets": 5, "eps_schedule": True}}
RENAMED = {"fast": "apgd-ce+t", "brief": "smoke-ensemble"}  # former versions, which were not AutoAttack


def components(kind: str, threat: Threat) -> dict[str, Attack]:
    """The attacks of an ensemble on a threat; for l_1 the standard ones are set as by Croce and Hein 2021."""
    changes: dict[str, Any] = STANDARD_L1 if kind == "standard" and threat.norm == "l1" else {}
    return {name: replace(attack, threat=threat, **changes.get(name, {})) for name, attack in ENSEMBLES[kind].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAttack:
    """Every component on the images that the ones before it did not break (Croce and Hein 2020, Sec. 6).

    >>> list(AutoAttack(version="standard").components())
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """

    threat: Threat = Threat()
    version: Literal["standard", "plus", "rand"] = "standard"  # as in the reference package; rand: for random models

    def __post_init__(self) -> None:
        if self.version in RENAMED:
            new = RENAMED[self.version]
            raise RattleError(f"attack.version {self.version!r} was not AutoAttack; it is now called {new}")
        check_settings(self, "attack")

    def components(self) -> dict[str, Attack]:
        return components(self.version, self.threat)

    __call__ = run_ensemble


@dataclass(frozen=True, slots=True)
class AttackSequence:
    """Your own ensemble: each attack on the images that the ones before it did not break."""

    attacks: dict[str, Attack]  # name -> attack, all on the same threat

    def __post_init__(self) -> None:
        if not self.attacks or len({attack.threat for attack in self.attacks.values()}) > 1:
            raise RattleError("a sequence needs at least one attack, and the same threat for all of them")

    @property
    def threat(self) -> Threat:
        return next(iter(self.attacks.values())).threat

    def components(self) -> dict[str, Attack]:
        return dict(self.attacks)

    __call__ = run_ensemble

    def models(self) -> dict[str, nn.Module]:
        users = {name: attack for name, attack in self.attacks.items() if isinstance(attack, UsesModels)}
        return {f"{name}/{other}": model for name, user in users.items() for other, model in user.models().items()}

    def metadata(self) -> dict[str, Any]:
        parts = {name: describe(attack) for name, attack in self.attacks.items()}
        return {"kind": "AttackSequence", "threat": asdict(self.threat), "components": parts}
