"""A batch of an evaluation that is broken off goes on at the step where it stopped, with the same bits."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, PGD, Attack, RayS, Square
from rattle.attacks.autoattack import AttackSequence
from rattle.evaluation import cache
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import Evaluation
from rattle.threat import Threat
from support.processes import Child, until
from support.tiny_runs import digits, linear

LINF, L2, L1 = Threat(epsilon=0.1), Threat(norm="l2", epsilon=0.5), Threat(norm="l1", epsilon=4.0)
TARGETED = APGD(threat=LINF, loss="dlr-targeted", targets=3, steps=8)
ATTACKS: dict[str, Attack] = {
    "pgd": PGD(threat=LINF, steps=5, restarts=3, step_size=0.03),
    "apgd": APGD(threat=L2, steps=10, restarts=2),
    "apgd-t": TARGETED,
    "apgd-l1": APGD(threat=L1, steps=10, eps_schedule=True),
    "fab": FAB(threat=LINF, steps=5, targets=2, restarts=2),
    "square": Square(threat=LINF, queries=60),
    "square-l2": Square(threat=L2, queries=60),
    "rays": RayS(threat=LINF, queries=60),
    "sequence": AttackSequence(
        {"pgd": PGD(threat=LINF, steps=4), "t": TARGETED, "square": Square(threat=LINF, queries=30)}
    ),
}


class Dies(nn.Module):
    """A linear network that counts its forward passes and may stop the process's work at one of them."""

    def __init__(self, at: int = -1, slow: float = 0.0) -> None:
        super().__init__()
        self.network, self.at, self.slow, self.passes = linear(), at, slow, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        time.sleep(self.slow)
        if self.passes == self.at:
            raise KeyboardInterrupt
        return self.network(x)


def run(model: Dies, attack: Attack, out: Path, n: int = 70) -> Evaluation:
    _, _, x, y = digits()
    return evaluate(model, x[:n], y[:n], {"a": attack}, out=out, save_adversarial=True)


def same(a: Evaluation, b: Evaluation, folders: tuple[Path, Path]) -> bool:
    """Flags, those after each part, distances and every adversarial image."""
    one, other = (np.load(folder / "a-adversarial.npz") for folder in folders)
    pairs = zip(a.attacks.values(), b.attacks.values(), strict=True)
    flags = all((p.flags, p.parts, p.distances) == (q.flags, q.parts, q.distances) for p, q in pairs)
    return flags and all(np.array_equal(one[name], other[name]) for name in one.files)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_batch_that_is_broken_off_again_and_again_is_the_same_and_no_step_is_done_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "EVERY", 0.0)
    model = Dies()
    whole = run(model, ATTACKS[name], tmp_path / "whole")
    assert 0 < sum(whole.attacks["a"].flags) < sum(whole.clean)
    passes, kills, resumed = 0, 0, None
    while resumed is None:
        dies = Dies(at=14 + model.passes // 8)  # 14 at most are what each call begins with
        try:
            resumed = run(dies, ATTACKS[name], tmp_path / "killed")
        except KeyboardInterrupt:
            kills += 1
            assert len(list((tmp_path / "killed").glob(".a.0.*.state"))) == 1
        passes += dies.passes
    assert kills >= 1
    assert same(whole, resumed, (tmp_path / "whole", tmp_path / "killed"))
    assert passes <= model.passes + kills * 14
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["a-adversarial.npz", "a.json"]


def test_a_state_is_written_once_in_a_period_and_only_of_its_own_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "EVERY", 60.0)
    with pytest.raises(KeyboardInterrupt):
        run(Dies(at=30), ATTACKS["square"], tmp_path)
    assert not list(tmp_path.glob("*.state"))
    monkeypatch.setattr(cache, "EVERY", 0.0)
    for n, attack in ((70, "square"), (60, "square"), (60, "square-l2")):
        with pytest.raises(KeyboardInterrupt):
            run(Dies(at=30), ATTACKS[attack], tmp_path, n=n)
        assert len(list(tmp_path.glob(".a.0.*.state"))) == 1  # the other one is gone


def of_other_rows(path: Path) -> None:
    stored = torch.load(path, weights_only=True)
    stored["loops"]["steps"]["0.row"] += 10**6
    torch.save(stored, path)


def of_other_words(path: Path) -> None:
    torch.save({"seconds": "x", "loops": [1, 2]}, path)


def without_a_step(path: Path) -> None:
    stored = torch.load(path, weights_only=True)
    stored["loops"]["steps"]["step"] = "x"
    torch.save(stored, path)


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "rows": of_other_rows,
    "words": of_other_words,
    "step": without_a_step,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_costs_its_batch_and_no_more(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(Dies(), TARGETED, tmp_path / "whole")
    monkeypatch.setattr(cache, "EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(Dies(at=15), TARGETED, tmp_path / "killed")
    (path,) = (tmp_path / "killed").glob("*.state")
    DAMAGE[damage](path)
    resumed = run(Dies(), TARGETED, tmp_path / "killed")
    assert same(whole, resumed, (tmp_path / "whole", tmp_path / "killed"))


def test_an_evaluation_of_one_batch_killed_in_its_last_part_does_not_do_the_others_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "EVERY", 0.05)
    model, attack = Dies(), ATTACKS["sequence"]
    whole = run(model, attack, tmp_path / "whole")
    child = Child(lambda: run(Dies(slow=0.01), attack, tmp_path / "killed") and 0, tmp_path / "said")
    state: dict[str, cache.State] = {}

    def in_the_last_part() -> bool:
        state["last"] = next(map(cache.State.read, (tmp_path / "killed").glob("*.state")), cache.State())
        return state["last"].loops.get("parts", {}).get("step") == 2

    until(in_the_last_part)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    last = Dies()
    resumed = run(last, attack, tmp_path / "killed")
    assert same(whole, resumed, (tmp_path / "whole", tmp_path / "killed"))
    assert last.passes <= 30 + 16  # the queries of the last part, and what each call begins with
    assert last.passes < model.passes - 10
    assert resumed.attacks["a"].seconds > state["last"].seconds > 0
