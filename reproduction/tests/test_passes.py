"""python -m reproduction.bench --against passes: what attacks ask of a network, counted in images."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.attacks import APGD, FAB
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from reproduction.bench.__main__ import main
from reproduction.bench.cases import COMPONENTS
from reproduction.bench.passes import THEIRS, Counted, Tally, count_passes, pass_rows
from reproduction.bench.setup import Setup
from reproduction.linearised import LinearisedAPGD
from support.attack_cases import linear

SLIM = Setup(model="cnn", width=2, batch=6, side=8, device="cpu")


def asked(attack, *, n: int = 5, classes: int = 6) -> Tally:
    """What an attack that breaks nothing asks of a network without BatchNorm."""
    case = linear(classes, n=n)
    model = Counted(case.model)
    attack(model, case.x, case.y, generator=ImageStreams(0, torch.arange(n)))
    return model.tally


BREAKS_NOTHING = Threat(epsilon=1e-6)
PROBED = 2  # images on which a network is asked once whether it takes channels-last


def test_every_row_of_every_pass_is_counted() -> None:
    model = Counted(nn.Linear(4, 3))
    x = torch.rand(7, 4, requires_grad=True)
    z = model(x)
    torch.autograd.grad(z.sum(), x, retain_graph=True)
    torch.autograd.grad(z.sum(), x)
    with torch.no_grad():
        model(x[:2])
    assert model.tally == Tally(forward=9, backward=14)


def test_apgd_asks_once_for_each_point() -> None:
    n, steps = 5, 7
    assert asked(APGD(threat=BREAKS_NOTHING, steps=steps)) == Tally(PROBED + n * (1 + steps + 1), n * (steps + 1))


def test_plain_fab_asks_for_no_gradient_of_the_label() -> None:
    n, steps, classes = 5, 4, 6
    found = asked(FAB(threat=BREAKS_NOTHING, targets=0, steps=steps))
    assert found == Tally(PROBED + n * (1 + 2 * steps), n * steps * (classes - 1))


def test_ranking_targets_asks_for_two_forward_passes_and_a_gradient_a_candidate() -> None:
    n, steps, targets, classes = 5, 7, 2, 6
    found = asked(LinearisedAPGD(threat=BREAKS_NOTHING, targets=targets, steps=steps))
    runs = n * targets
    assert found == Tally(PROBED + n * (1 + 1 + 1) + runs * (steps + 1), n * (classes - 1) + runs * (steps + 1))


@pytest.fixture(scope="module")
def found() -> dict[str, Tally]:
    return count_passes(SLIM)


def test_counts_do_not_vary(found: dict[str, Tally]) -> None:
    assert count_passes(SLIM) == found


def test_no_component_asks_more_than_the_references(found: dict[str, Tally]) -> None:
    """But for the images on which the layout is tried."""
    for name in COMPONENTS:
        ours, theirs = found[name], found[name + THEIRS]
        assert 0 < ours.forward <= theirs.forward + PROBED
        assert ours.backward <= theirs.backward


def test_the_last_line_is_the_sum(found: dict[str, Tally]) -> None:
    lines = pass_rows(found, images=6)
    assert [line[0] for line in lines] == [*COMPONENTS, "all"]
    for column in range(1, 5):
        assert sum(int(line[column]) for line in lines[:-1]) == int(lines[-1][column])
    ours = {name: tally for name, tally in found.items() if name in COMPONENTS}
    assert all(line[2] == line[4] == line[6] == "" for line in pass_rows(ours, images=6))  # pyautoattack not installed


def test_the_command_prints_and_writes_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "cnn", "--width", "2", "--batch", "6", "--device", "cpu", "--json", str(tmp_path / "p.json")]
    main(["--against", "passes", *words])
    plain = json.loads((tmp_path / "p.json").read_text())["passes"]
    assert set(plain) == {name + side for name in COMPONENTS for side in ("", THEIRS)}
    assert str(plain["fab-t"]["backward"]) in capsys.readouterr().out
