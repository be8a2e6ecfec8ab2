"""AutoAttack (Croce and Hein 2020), the ensemble that robust accuracies are compared by."""

from dataclasses import dataclass, replace
from typing import Literal

from rattle.attacks.apgd import APGD
from rattle.attacks.base import Attack
from rattle.attacks.ensemble import Ensemble
from rattle.attacks.fab import FAB
from rattle.attacks.square import Square
from rattle.settings import Plain, check_settings
from rattle.threat import Threat

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


def components(kind: str, threat: Threat) -> dict[str, Attack]:
    """The attacks of an ensemble on a threat; for l_1 the standard ones are set as by Croce and Hein 2021."""
    changes: Plain = STANDARD_L1 if kind == "standard" and threat.norm == "l1" else {}
    return {name: replace(attack, threat=threat, **changes.get(name, {})) for name, attack in ENSEMBLES[kind].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAttack(Ensemble):
    """Every component on the images that the ones before it did not break (Croce and Hein 2020, Sec. 6).

    >>> list(AutoAttack(version="standard").components())
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """

    threat: Threat = Threat()
    version: Literal["standard", "plus", "rand"] = "standard"  # as in the reference package; rand: for random models

    def __post_init__(self) -> None:
        check_settings(self, "attack")

    def components(self) -> dict[str, Attack]:
        return components(self.version, self.threat)
