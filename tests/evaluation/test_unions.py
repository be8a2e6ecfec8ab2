"""Several threats in one evaluation: a result for each, and the images that are robust under all of them."""

import json
from pathlib import Path

import pytest
import torch

from rattle.attacks import PGD
from rattle.attacks.registry import ATTACKS, get_attack, register_attack
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import AttackResult, Draws, load_results
from rattle.evaluation.unions import with_unions
from rattle.report.run_data import load_runs
from rattle.threat import Norm, Threat
from support.command import Command
from support.tiny_runs import digits, linear, save_run

THREATS = (Threat(epsilon=0.05), Threat(norm="l2", epsilon=0.3), Threat(norm="l1", epsilon=1))


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, _, x, y = digits()
    return x[:n], y[:n]


def test_an_image_is_in_the_union_where_it_is_robust_under_every_threat(tmp_path: Path) -> None:
    x, y = images(100)
    result = evaluate(linear(), x, y, "pgd5", threats=THREATS, out=tmp_path)
    names = ["pgd5,linf=0.05", "pgd5,l2=0.3", "pgd5,l1=1"]
    assert list(result.attacks) == [*names, "pgd5,union"]
    for name, threat in zip(names, THREATS, strict=True):
        alone = evaluate(linear(), x, y, "pgd5", threat=threat)
        assert result.attacks[name].flags == alone.attacks["pgd5"].flags
    each = [result.attacks[name].flags for name in names]
    assert result.attacks["pgd5,union"].flags == [all(flags) for flags in zip(*each, strict=True)] == result.worst_case
    assert min(map(sum, each)) > sum(result.worst_case)  # no threat decides alone
    stored, notes = load_results(tmp_path)
    assert notes == []
    assert stored["pgd5,union"].flags == tuple(map(int, result.worst_case))
    assert set(stored["pgd5,union"].settings["components"]) == {"linf=0.05", "l2=0.3", "l1=1"}


def test_two_attacks_have_two_unions_and_an_attack_of_one_threat_none() -> None:
    a, b, c = (AttackResult(settings={}, flags=flags, seconds=1.0) for flags in ([True, True], [False, True], [True]))
    found = with_unions({"a,l2=1": a, "a,linf=1": b, "b,l2=1": a, "b,l1=3": c, "c": a, "d,l2=1": a})
    assert {name: found[name].flags for name in found if "union" in name} == {
        "a,union": [False, True],
        "b,union": [True],
    }


def test_the_union_of_a_random_model_takes_the_rate_whose_pilot_is_lowest() -> None:
    def drawn(rates: list[float], pilot: list[float], error: float) -> AttackResult:
        draws = Draws(count=8, eot=2, error=error, pilot=pilot, majority=[rate > 0.5 for rate in rates])
        return AttackResult(settings={}, flags=rates, seconds=1.0, draws=draws)

    members = {"a,l2=1": drawn([0.9, 0.4], [1.0, 0.25], 0.01), "a,linf=1": drawn([0.7, 0.3], [0.5, 0.5], 0.02)}
    found = with_unions(members)["a,union"]
    assert found.draws is not None
    assert (found.flags, found.draws.pilot, found.draws.majority) == ([0.7, 0.4], [0.5, 0.25], [True, False])
    assert found.error == 0.02


@pytest.mark.parametrize(
    ("one", "other", "inside"),
    [
        (("linf", 0.1), ("linf", 0.2), True),
        (("linf", 0.2), ("linf", 0.1), False),
        (("l2", 0.1), ("linf", 0.1), True),
        (("l2", 0.11), ("linf", 0.1), False),
        (("linf", 0.1), ("l2", 0.8), True),  # the square root of 64 times 0.1
        (("linf", 0.1), ("l2", 0.79), False),
        (("linf", 0.1), ("l1", 6.4), True),
        (("l2", 0.5), ("l1", 4), True),
        (("l2", 0.5), ("l1", 3.9), False),
        (("l1", 0.5), ("l2", 0.5), True),
    ],
)
def test_a_ball_lies_within_another_where_its_farthest_point_does(
    one: tuple[Norm, float], other: tuple[Norm, float], inside: bool
) -> None:
    first, second = (Threat(norm=norm, epsilon=epsilon) for norm, epsilon in (one, other))
    assert first.lies_within(second, 64) == inside
    zero, half = torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 0.5)
    spread = {"linf": first.epsilon, "l2": first.epsilon / 8, "l1": first.epsilon / 64}[first.norm]
    peak = zero.clone()
    peak[0, 0, 0, 0] = first.epsilon
    points = [half + spread] if first.norm == "linf" else [half + spread, zero + peak]
    starts = [half, zero]
    reached = [bool(second.contains(point, start)) for point, start in zip(points, starts, strict=False)]
    assert all(reached) == inside


@pytest.mark.parametrize(
    ("threats", "sentence"),
    [
        ((Threat(), Threat()), "linf 8/255 is named twice"),
        ((Threat(epsilon=0.1), Threat(epsilon=0.2)), "linf 0.1 lies within linf 0.2"),
        ((Threat(epsilon=0.1), Threat(norm="l2", epsilon=0.9)), "linf 0.1 lies within l2 0.9"),
        ((Threat(),), "threats must be two or more"),
    ],
)
def test_threats_that_contain_each_other_are_refused(threats: tuple[Threat, ...], sentence: str) -> None:
    with pytest.raises(RattleError, match=sentence):
        evaluate(linear(), *images(10), "fgsm", threats=threats)


def test_one_threat_beside_several_and_attacks_with_a_threat_of_their_own_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RattleError, match="one threat, or several"):
        evaluate(linear(), *images(10), "fgsm", threats=THREATS, epsilon=0.1)
    with pytest.raises(RattleError, match="has its own threat"):
        evaluate(linear(), *images(10), PGD(threat=THREATS[1]), threats=THREATS)
    monkeypatch.setattr(ATTACKS, "known", dict(ATTACKS.entries))  # as before after the test
    register_attack("only-linf", lambda threat: get_attack("fgsm", Threat(epsilon=0.05)))
    with pytest.raises(RattleError, match="only-linf takes no l2 threat"):
        evaluate(linear(), *images(10), "only-linf", threats=THREATS)


def test_the_command_the_table_and_the_comparison_show_the_union(tmp_path: Path, command: Command) -> None:
    runs = [save_run(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b"))]
    words = ["--threats", "linf:8/255", "l2:0.2", "--attacks", "fgsm", "pgd5", "--pgd5.restarts", "2", "--n", "100"]
    for run in runs:
        out = command("evaluate", str(run), *words)
        assert "pgd5,restarts=2,union" in out
        assert len(list((run / "results").glob("*.json"))) == 6
    flags = json.loads((runs[0] / "results" / "fgsm,union.json").read_text())["attacks"]["fgsm,union"]["flags"]
    assert f"{sum(flags):.2f}" in command("table", str(runs[0]))
    columns = load_runs(runs)[0].columns
    assert columns["fgsm,union"].flags == (tuple(flags),)
    compared = json.loads(command("compare", *map(str, runs), "--json"))
    assert {"fgsm,union", "fgsm,linf=0.031372549"} < {test["attack"] for test in compared["tests"]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["linf:0.1", "l2:0.5", "linf:0.2"], "linf 0.1 lies within linf 0.2"),
        (["linf:0.1", "l3:1"], "norm 'l3'"),
        (["linf", "l2:1"], "such as linf:0.5"),
        (["linf:x", "l2:1"], "must be a number"),
        (["linf:0.1", "l2:0.5", "--threat.epsilon", "0.1"], "leave out --threat"),
        (["linf:0.1", "l2:0.5", "--epsilons", "0.1"], "leave out"),
        (["linf:0.1", "l1:2", "--attacks", "rays"], "rays"),
    ],
)
def test_a_wrong_threat_is_one_sentence(words: list[str], sentence: str, tmp_path: Path, command: Command) -> None:
    assert sentence in command.refused("evaluate", str(save_run(tmp_path / "run")), "--threats", *words)
