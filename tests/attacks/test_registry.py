"""Names of attacks, attacks registered at run time, and what a result file records of each."""

import json
from dataclasses import dataclass, replace

import pytest
from torch import Tensor, nn

from rattle.attacks import PGD, AttackSequence, RayS, Transfer, describe_attack, registry
from rattle.attacks.base import AttackExtras, DistanceAttack
from rattle.attacks.ensemble import Ensemble
from rattle.attacks.registry import get_attack, list_attacks, register_attack
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.threat import Threat
from support.attack_cases import linear


def test_a_name_means_an_attack() -> None:
    threat = Threat(epsilon=0.031)
    assert get_attack("pgd20", threat) == PGD(threat=threat, steps=20, step_size=0.0031)
    assert get_attack("pgd", threat) == get_attack("pgd20", threat)
    assert get_attack("cw50", threat) == PGD(threat=threat, steps=50, step_size=0.062 / 50, loss="cw")
    assert {"fgsm", "pgd20", "cw20"} <= set(list_attacks())


@pytest.mark.parametrize("name", list_attacks())
def test_every_listed_name_makes_an_attack_on_the_threat(name: str) -> None:
    threat = Threat(epsilon=0.07)
    assert get_attack(name, threat).threat == threat


@pytest.mark.parametrize("name", ["pdg20", "pgd0", "", "PGD", "pgd-20"])
def test_a_name_that_means_none_is_refused(name: str) -> None:
    with pytest.raises(RattleError, match=f"^unknown attack {name!r}"):
        get_attack(name, Threat())
    with pytest.raises(RattleError, match="did you mean 'pgd20'"):
        get_attack("pdg20", Threat())


@dataclass(frozen=True)
class TowardGrey:
    """An attack of the user's own: every pixel moves towards grey."""

    threat: Threat
    share: float = 1.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator=None) -> Tensor:
        return self.threat.project(x + self.share * (0.5 - x), x)


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.ATTACKS, "known", dict(registry.ATTACKS.entries))


@pytest.mark.usefixtures("own_names")
def test_an_attack_registered_at_run_time_is_known_by_its_name() -> None:
    register_attack("toward-grey", lambda threat: TowardGrey(threat))
    case = linear(3, n=12)
    threat = case.threat("linf")
    assert get_attack("toward-grey", threat) == TowardGrey(threat)
    assert "toward-grey" in list_attacks()
    with pytest.raises(RattleError, match="did you mean 'toward-grey'"):
        get_attack("towards-grey", threat)
    named, given = (
        evaluate(case.model, case.x, case.y, attacks, threat=threat).to_plain()["attacks"]["toward-grey"]
        for attacks in (["toward-grey"], {"toward-grey": TowardGrey(threat)})
    )
    assert named["flags"] == given["flags"]
    assert named["settings"] == {
        "kind": "TowardGrey",
        "threat": {"norm": "linf", "epsilon": threat.epsilon},
        "share": 1.0,
    }


@pytest.mark.usefixtures("own_names")
def test_a_registered_attack_can_be_replaced_but_a_built_in_one_cannot() -> None:
    for share in (0.5, 1.0):
        register_attack("toward-grey", lambda threat, share=share: TowardGrey(threat, share))
    assert get_attack("toward-grey", Threat()) == TowardGrey(Threat(), 1.0)
    for name in ("autoattack", "pgd7", "cw"):
        with pytest.raises(RattleError, match=f"^the attack name '{name}' is taken$"):
            register_attack(name, TowardGrey)
    for name in ("Toward-Grey", "../grey", ""):
        with pytest.raises(RattleError, match=r"lower-case letters, digits, \+ and - only"):
            register_attack(name, TowardGrey)


THREAT = Threat(epsilon=0.1)
BALL = {"norm": "linf", "epsilon": 0.1}
SETTINGS = {  # what result files have recorded since the first version (eps_schedule was called shrinking)
    "pgd20": {
        "kind": "PGD",
        "threat": BALL,
        "steps": 20,
        "step_size": 0.01,
        "loss": "ce",
        "start": "uniform",
        "restarts": 1,
    },
    "apgd-t": {
        "kind": "APGD",
        "threat": BALL,
        "loss": "dlr-targeted",
        "targets": 9,
        "steps": 100,
        "restarts": 1,
        "eot": 1,
        "rho": 0.75,
        "eps_schedule": False,
    },
    "fab-t": {
        "kind": "FAB",
        "threat": BALL,
        "targets": 9,
        "steps": 100,
        "restarts": 1,
        "alpha_max": 0.1,
        "overshoot": 1.05,
        "backward": 0.9,
    },
    "square": {"kind": "Square", "threat": BALL, "queries": 5000, "p_init": 0.8, "restarts": 1},
    "rays": {"kind": "RayS", "threat": BALL, "queries": 10_000, "tolerance": 0.001},
}
SETTINGS["apgd-ce"] = SETTINGS["apgd-t"] | {"loss": "ce"}
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
SETTINGS["autoattack"] = {
    "kind": "AutoAttack",
    "threat": BALL,
    "version": "standard",
    "components": {name: SETTINGS[name] for name in PARTS},
}
SETTINGS["apgd-ce+t"] = {
    "kind": "AttackSequence",
    "threat": BALL,
    "components": {name: SETTINGS[name] for name in PARTS[:2]},
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_result_file_records_class_and_settings(name: str) -> None:
    assert json.dumps(describe_attack(get_attack(name, THREAT))) == json.dumps(SETTINGS[name])


def test_a_result_file_records_the_surrogate_and_its_attack() -> None:
    attack = Transfer(attack=get_attack("autoattack", THREAT), surrogate=nn.Identity(), name="other")
    assert describe_attack(attack) == {"kind": "Transfer", "surrogate": "other", "attack": SETTINGS["autoattack"]}


class Still:
    """An attack that is no dataclass."""

    threat = THREAT

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator=None) -> Tensor:
        return x


def test_an_attack_that_is_no_dataclass_is_recorded_by_its_threat() -> None:
    assert describe_attack(Still()) == {"kind": "Still", "threat": BALL}


def test_attacks_offer_what_the_contract_names() -> None:
    surrogate = nn.Identity()
    transfer = Transfer(attack=PGD(), surrogate=surrogate, name="other")
    attacks = {"pgd": PGD(), "rays": RayS(), "transfer": transfer, "sequence": AttackSequence({"pgd": PGD()})}
    offers = {
        DistanceAttack: {"rays"},
        Ensemble: {"sequence"},
        AttackExtras: {"rays", "transfer", "sequence"},
    }
    for base, names in offers.items():
        assert {name for name, attack in attacks.items() if isinstance(attack, base)} == names
    assert transfer.models() == {"other": surrogate}
    assert AttackSequence({"pgd": PGD(), "black-box": transfer}).models() == {"black-box/other": surrogate}


def test_fields_of_a_named_attack_are_changed_by_keyword() -> None:
    assert get_attack("pgd40", THREAT, step_size=0.01, restarts=2) == PGD(
        threat=THREAT, steps=40, step_size=0.01, restarts=2
    )
    assert get_attack("apgd-ce", THREAT, rho=1) == replace(get_attack("apgd-ce", THREAT), rho=1)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("pgd40", {"step_sise": 0.1}, "^unknown setting of pgd40 'step_sise'; did you mean 'step_size'?"),
        ("pgd40", {"steps": 20}, "^pgd40 with other steps would not be pgd40: pgdK has K steps$"),
        ("pgd40", {"restarts": 2.5}, r"^pgd40\.restarts must be int, got 2\.5$"),
        ("pgd40", {"restarts": True}, r"^pgd40\.restarts must be int, got True$"),
        ("pgd40", {"step_size": "0.01"}, r"^pgd40\.step_size must be float, got '0\.01'$"),
        ("pgd40", {"step_size": -1}, r"^attack\.step_size must be >= 0"),
        ("apgd-ce", {"eps_schedule": 1}, r"^apgd-ce\.eps_schedule must be bool, got 1$"),
        ("autoattack", {"version": "plus"}, "^autoattack with other version would not be autoattack"),
        ("smoke-ensemble", {"attacks": {}}, "^smoke-ensemble with other attacks would not be smoke-ensemble"),
    ],
)
def test_a_setting_that_a_named_attack_does_not_take_is_refused(name: str, settings: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=sentence):
        get_attack(name, THREAT, **settings)


@pytest.mark.usefixtures("own_names")
def test_an_attack_that_is_no_dataclass_has_no_settings_to_change() -> None:
    register_attack("still", lambda threat: Still())
    with pytest.raises(RattleError, match=r"^still is no dataclass and has no settings to change$"):
        get_attack("still", THREAT, steps=3)
