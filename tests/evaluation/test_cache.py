"""Batches on disk are not attacked again after an interruption, if weights, images and settings are the same."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, Ensemble, Square
from rattle.attacks.base import Attack
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.evaluation.cache import ResultCache
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import AttackResult
from rattle.evaluation.verify import load_images
from rattle.inputs import to_float
from rattle.randomness import ImageStreams
from rattle.runs.progress import Interrupted
from rattle.threat import Threat
from support.command import Command
from support.processes import Child, until
from support.tiny_runs import digits, linear, save_run, small_cnn

THREAT = Threat(epsilon=0.1)


class Counting:
    """Moves every pixel to the middle and counts its batches; it may die at one of them."""

    def __init__(self, threat: Threat = THREAT, dies_at: int = -1) -> None:
        self.threat, self.dies_at, self.batches = threat, dies_at, 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        if self.batches == self.dies_at:
            raise KeyboardInterrupt
        self.batches += 1
        return x + self.threat.epsilon * torch.where(x > 0.5, -1.0, 1.0)


class Quick(Ensemble):
    """AutoAttack with few steps, whose components count themselves in `calls`; it may die at one of them."""

    threat = THREAT

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at, self.calls = dies_at, []

    def components(self) -> dict[str, Attack]:
        attacks = {
            "apgd-ce": APGD(threat=THREAT, steps=3),
            "fab-t": FAB(threat=THREAT, steps=3, targets=2),
            "square": Square(threat=THREAT, queries=30),
        }
        return {name: Component(name, attack, self) for name, attack in attacks.items()}


class Component:
    threat = THREAT

    def __init__(self, name: str, attack: Attack, ensemble: Quick) -> None:
        self.name, self.attack, self.ensemble = name, attack, ensemble

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: ImageStreams | None = None) -> Tensor:
        if len(self.ensemble.calls) == self.ensemble.dies_at:
            raise KeyboardInterrupt
        self.ensemble.calls.append(self.name)
        return self.attack(model, x, y, generator=generator)


def images(n: int = 25) -> tuple[Tensor, Tensor]:
    _, _, x, y = digits()
    return x[:n], y[:n]


def run(attack: Attack, out: Path | None = None, model: nn.Module | None = None, n: int = 25, **settings) -> list[bool]:
    """The flags of n images; the result file, if one is written, holds the same numbers, and nothing else is there."""
    result = evaluate(model or linear(), *images(n), {"a": attack}, out=out, **({"batch_size": 5} | settings))
    if out is not None:
        assert [path.name for path in out.iterdir() if path.suffix != ".npz"] == ["a.json"]
        assert json.loads((out / "a.json").read_text()) == result.to_plain()
    return result.attacks["a"].flags


def interrupted(folder: Path, dies_at: int = 3, **settings) -> list[bool]:
    """The flags of 25 images in batches of 5; what is on disk afterwards stops before one of the batches."""
    with pytest.raises(KeyboardInterrupt):
        run(Counting(dies_at=dies_at), folder, **settings)
    return run(Counting())


def test_an_interrupted_evaluation_resumes_at_the_first_missing_image(tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    for batches in (2, 5):  # a finished evaluation is done again, not continued
        attack = Counting()
        assert run(attack, tmp_path) == whole
        assert attack.batches == batches
    assert len(set(whole)) == 2


def test_a_stop_callback_interrupts_after_a_batch_and_the_same_call_finishes(tmp_path: Path) -> None:
    asked = []
    with pytest.raises(Interrupted):
        run(Counting(), tmp_path, stop=lambda: asked.append(1) or len(asked) == 2)
    assert len(asked) == 2
    assert not (tmp_path / "a.json").exists()
    attack = Counting()
    assert run(attack, tmp_path, stop=lambda: bool(asked.append(1))) == run(Counting())
    assert (attack.batches, len(asked)) == (3, 2 + 5)


def test_a_finished_attack_is_not_repeated_when_a_later_one_is_interrupted(tmp_path: Path) -> None:
    settings = {"batch_size": 5, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), *images(), {"a": Counting(), "b": Counting(dies_at=1)}, **settings)
    assert not list(tmp_path.glob("*.json"))
    attacks = {"a": Counting(), "b": Counting()}
    evaluate(linear(), *images(), attacks, **settings)
    assert [attack.batches for attack in attacks.values()] == [0, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.parametrize(
    ("damage", "batches"),
    [
        (lambda content: content[:-9], 3),  # a torn line
        (lambda content: content.replace(content.splitlines()[1], b"{broken}"), 3),
        (lambda content: b"\x00\xff\n", 5),
    ],
)
def test_damaged_lines_are_done_again_and_no_others(
    damage: Callable[[bytes], bytes], batches: int, tmp_path: Path
) -> None:
    whole = interrupted(tmp_path)
    path = tmp_path / ".a.0.partial"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(KeyboardInterrupt):
        run(Counting(dies_at=1), tmp_path)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    attack = Counting()
    assert run(attack, tmp_path) == whole
    assert attack.batches == batches - 1


def moved(bias: float = 0.0, *more: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *more)
    model.load_state_dict(linear().state_dict())
    with torch.no_grad():
        model[1].bias[0] += bias
    return model


@pytest.mark.parametrize(
    ("other", "batches"),
    [
        ({"seed": 1}, 5),
        ({"n": 24}, 5),
        ({"batch_size": 7}, 4),
        ({"model": moved()}, 2),  # the same weights in another object are the same model
        ({"model": moved(1e-6)}, 5),
        ({"model": moved(0.0, nn.Softmax(1))}, 5),
        ({"threat": Threat(epsilon=0.05)}, 5),
        ({"save_adversarial": True}, 5),  # the images of the batches that are done were not stored
    ],
)
def test_another_model_or_setting_starts_afresh(other: dict, batches: int, tmp_path: Path) -> None:
    interrupted(tmp_path)
    attack = Counting(threat=other.pop("threat", THREAT))
    run(attack, tmp_path, **other)
    assert attack.batches == batches


def test_images_of_another_evaluation_are_not_taken_for_this_one(tmp_path: Path) -> None:
    interrupted(tmp_path, 1, save_adversarial=True, seed=1)
    assert (tmp_path / ".a.0.images.npy").is_file()
    interrupted(tmp_path, 1)
    assert not (tmp_path / ".a.0.images.npy").exists()


def test_caches_belong_to_one_name_and_key_whichever_rank_wrote_them(tmp_path: Path) -> None:
    ResultCache(tmp_path, "pgd20-1.5", "x").add(0, {"flags": [1]})
    assert ResultCache(tmp_path, "pgd20-1", "x").done == {}
    (tmp_path / ".pgd20-1.5.0.partial").rename(tmp_path / ".pgd20-1.5.1.partial")
    assert list(ResultCache(tmp_path, "pgd20-1.5", "x").done) == [0]
    ResultCache(tmp_path, "pgd20-1.5", "new")
    assert ResultCache(tmp_path, "pgd20-1.5", "x").done == {}
    (tmp_path / "file").write_text("")
    with pytest.raises(RattleError, match="cannot write"):
        ResultCache(tmp_path / "file", "a", "key")


def quick(attack: Quick, **settings) -> AttackResult:
    return evaluate(small_cnn(), *images(30), {"quick": attack}, **settings).attacks["quick"]


def test_an_ensemble_is_the_and_of_its_parts_and_equals_calling_it() -> None:
    x, y = images(30)
    model, result = small_cnn(), quick(Quick())
    rows = torch.tensor([result.parts[name] for name in Quick().components()])
    assert rows.all(0).tolist() == result.flags
    assert bool((rows[1:] <= rows[:-1]).all()), "a part never raises a flag"
    with torch.no_grad():
        right = model(to_float(x)).argmax(1) == y
        live = right.nonzero().squeeze(1)
        x_adv = Quick()(model, to_float(x[live]), y[live], generator=ImageStreams(0, live))
        right[live] = model(x_adv).argmax(1) == y[live]
    assert right.tolist() == result.flags
    assert 0 < sum(result.flags) < 30


def test_flags_do_not_depend_on_the_batch_size() -> None:
    x, y = images(40)
    model, x = moved().double(), to_float(x).double()
    small, whole = (evaluate(model, x, y, {"q": Quick()}, batch_size=size).attacks["q"] for size in (7, 40))
    assert (small.flags, small.parts) == (whole.flags, whole.parts)


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_an_ensemble_resumes_after_its_last_component_and_ends_the_same(dies_at: int, tmp_path: Path) -> None:
    settings = {"batch_size": 15, "out": tmp_path, "save_adversarial": True}
    with pytest.raises(KeyboardInterrupt):
        quick(Quick(dies_at), **settings)
    again = Quick()
    resumed = quick(again, **settings)
    points = load_images(tmp_path / "quick-adversarial.npz").x_adv
    assert again.calls == (2 * list(again.components()))[dies_at:]
    whole = quick(Quick(), **settings)
    assert (resumed.flags, resumed.parts) == (whole.flags, whole.parts)
    assert torch.equal(points, load_images(tmp_path / "quick-adversarial.npz").x_adv)
    assert resumed.seconds == pytest.approx(sum(resumed.part_seconds.values()))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", [b"", b"PK", "another shape"])
def test_a_damaged_state_of_an_ensemble_begins_its_batch_again(damage: bytes | str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(Quick(2), out=tmp_path)
    (state,) = tmp_path.glob("*.state")
    if isinstance(damage, bytes):
        state.write_bytes(damage)
    else:
        stored = torch.load(state, weights_only=True)
        torch.save(stored | {"correct": stored["correct"][:, 1:]}, state)
    again = Quick()
    assert quick(again, out=tmp_path).flags == quick(Quick()).flags
    assert again.calls == list(again.components())


def test_saved_images_are_the_broken_ones_and_tampered_ones_are_refused(tmp_path: Path, command: Command) -> None:
    folder = save_run(tmp_path / "run")
    words = ["evaluate", str(folder), "--n", "30", "--batch-size", "12", "--threat.epsilon", "0.1"]
    command(*words, "--attacks", "pgd5", "--save-adversarial")
    path = folder / "results" / "pgd5-adversarial.npz"
    assert {p.name for p in path.parent.iterdir()} == {"pgd5.json", "pgd5-adversarial.npz"}
    result, saved = json.loads((folder / "results" / "pgd5.json").read_text()), load_images(path)
    broken = np.array(result["clean_flags"]) & (1 - np.array(result["attacks"]["pgd5"]["flags"]))
    assert saved.index.tolist() == np.array(result["index"])[broken.nonzero()[0]].tolist()
    assert saved.threat == THREAT
    n = len(saved.index)
    verify = ["evaluate", str(folder), "--verify"]
    assert f"{n} of {n} saved images" in command(*verify, str(path))
    assert json.loads(command(*verify, str(path), "--json"))["held"] == n
    assert main([*verify, str(path), "--threat.epsilon", "0.05"]) == 2  # not in that ball
    command.refused(*verify, str(tmp_path / "nowhere.npz"))
    with np.load(path) as file:
        arrays = dict(file)
    clean = to_float(digits()[2][saved.index]).numpy()
    tampered = tmp_path / "tampered.npz"
    for changed in (
        {"x_adv": arrays["x_adv"] * np.float32("nan")},
        {"x_adv": np.concatenate([clean[:1], arrays["x_adv"][1:]])},  # an image that is classified correctly
        {"y": (arrays["y"] + 1) % 10},
        {"index": arrays["index"] + 10_000},
        {"index": arrays["index"][:-1]},
        {"x_adv": arrays["x_adv"].astype(object)},
    ):
        np.savez(tampered, **(arrays | changed), allow_pickle=True)
        command.capsys.readouterr()
        assert main([*verify, str(tampered)]) == 2
        assert command.capsys.readouterr().err.count("\n") == 1
    tampered.write_bytes(path.read_bytes()[:-200])
    assert "damaged" in command.refused(*verify, str(tampered))


def test_saving_works_when_nothing_was_broken_or_nothing_was_right(tmp_path: Path) -> None:
    x, y = images(6)
    settings = {"out": tmp_path, "save_adversarial": True}
    evaluate(linear(), x, y, {"none": Counting(threat=Threat(epsilon=0))}, **settings)
    for _ in range(2):
        evaluate(linear(), x, (y + 1) % 10, {"all": Counting()}, **settings)
    assert [len(load_images(tmp_path / f"{n}-adversarial.npz").index) for n in ("none", "all")] == [0, 0]


@pytest.mark.slow
@pytest.mark.process
def test_autoattack_killed_and_given_again_has_the_flags_of_one_never_stopped(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "run")
    words = ["evaluate", str(folder), "--attacks", "autoattack", "--n", "40", "--batch-size", "8"]
    words += ["--threat.epsilon", "0.1", "--out"]
    partial = tmp_path / "killed" / ".autoattack.0.partial"
    child = Child(lambda: main([*words, str(partial.parent)]), tmp_path / "log")
    until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 2, 300)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert 2 <= partial.read_bytes().count(b"\n") < 5
    found = []
    for name in ("killed", "whole"):
        assert main([*words, str(tmp_path / name)]) == 0
        result = json.loads((tmp_path / name / "autoattack.json").read_text())["attacks"]["autoattack"]
        for part in result["parts"].values():
            assert part.pop("seconds") > 0  # the clock's, the only thing that may differ
        found.append([result[key] for key in ("flags", "parts", "robust_accuracy")])
    assert found[0] == found[1]
    assert not partial.exists()
