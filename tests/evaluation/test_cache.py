"""What an interruption leaves: batches on disk are not attacked again if weights, images and settings are the same."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, Ensemble, Square
from rattle.attacks.base import Attack
from rattle.cli.main import main
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.evaluation import evaluate as evaluation
from rattle.evaluation.cache import ResultCache
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.verify import load_images
from rattle.randomness import ImageStreams
from rattle.runs.progress import Interrupted
from rattle.threat import Threat
from support.tiny_runs import digits, linear, save_run, small_cnn

THREAT = Threat(epsilon=0.1)


class Counting:
    """Moves every pixel to the middle and counts the batches it is given; it may die at one of them."""

    def __init__(self, threat: Threat = THREAT, dies_at: int = -1) -> None:
        self.threat, self.dies_at, self.batches = threat, dies_at, 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        if self.batches == self.dies_at:
            raise KeyboardInterrupt
        self.batches += 1
        return x + self.threat.epsilon * torch.where(x > 0.5, -1.0, 1.0)


@dataclass(frozen=True)
class Quick(Ensemble):
    """AutoAttack with few steps."""

    threat: Threat = THREAT

    def components(self) -> dict[str, Attack]:
        return {
            "apgd-ce": APGD(threat=self.threat, steps=3),
            "fab-t": FAB(threat=self.threat, steps=3, targets=2),
            "square": Square(threat=self.threat, queries=30),
        }


def images(n: int) -> tuple[Tensor, Tensor]:
    _, _, x, y = digits()
    return x[:n], y[:n]


def interrupted(folder: Path, n: int = 25) -> list[bool]:
    """Flags of 25 images in batches of 5; what is on disk afterwards stops after the third batch."""
    x, y = images(n)
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), x, y, {"a": Counting(dies_at=3)}, batch_size=5, out=folder)
    return evaluate(linear(), x, y, {"a": Counting()}, batch_size=5).attacks["a"].flags


def resumed(folder: Path, model: nn.Module | None = None, seed: int = 0, epsilon: float = 0.1, **settings: int):
    """The flags of the same call given again, and how many batches it attacked; the result file holds these flags."""
    attack = Counting(threat=Threat(epsilon=epsilon))
    x, y = images(settings.pop("n", 25))
    size = settings.pop("batch_size", 5)
    result = evaluate(model or linear(), x, y, {"a": attack}, batch_size=size, seed=seed, out=folder)
    assert [path.name for path in folder.iterdir()] == ["a.json"]
    assert json.loads((folder / "a.json").read_text()) == result.to_plain()
    return result.attacks["a"].flags, attack.batches


def test_an_interrupted_evaluation_goes_on_at_the_first_missing_image(tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    assert resumed(tmp_path) == (whole, 2)
    assert resumed(tmp_path) == (whole, 5)  # a finished evaluation is done again, not continued
    assert len(set(whole)) == 2


def test_a_stop_callback_interrupts_and_the_same_call_finishes(tmp_path: Path) -> None:
    x, y = images(25)
    asked = []
    with pytest.raises(Interrupted):
        evaluate(
            linear(),
            x,
            y,
            {"a": Counting()},
            batch_size=5,
            out=tmp_path,
            stop=lambda: asked.append(1) or len(asked) == 2,
        )
    assert len(asked) == 2
    assert not (tmp_path / "a.json").exists()
    flags, batches = resumed(tmp_path)
    assert (flags, batches) == (evaluate(linear(), x, y, {"a": Counting()}, batch_size=5).attacks["a"].flags, 3)


def test_an_evaluation_that_is_never_stopped_asks_after_each_batch() -> None:
    x, y = images(25)
    asked = []
    evaluate(linear(), x, y, {"a": Counting(), "b": Counting()}, batch_size=5, stop=lambda: bool(asked.append(1)))
    assert len(asked) == 10


def test_a_finished_attack_is_not_repeated_when_a_later_one_is_interrupted(tmp_path: Path) -> None:
    x, y = images(25)
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), x, y, {"a": Counting(), "b": Counting(dies_at=1)}, batch_size=5, out=tmp_path)
    assert not list(tmp_path.glob("*.json"))
    attacks = {"a": Counting(), "b": Counting()}
    evaluate(linear(), x, y, attacks, batch_size=5, out=tmp_path)
    assert [attack.batches for attack in attacks.values()] == [0, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_torn_line_is_cut_off_and_done_again(tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    path = tmp_path / ".a.0.partial"
    path.write_bytes(path.read_bytes()[:-9])
    x, y = images(25)
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), x, y, {"a": Counting(dies_at=1)}, batch_size=5, out=tmp_path)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert resumed(tmp_path) == (whole, 2)


@pytest.mark.parametrize("damage", [b"", b"\x00\xff\n", b"[1, 2]\n", b'{"key": "'])
def test_a_file_that_is_not_ours_starts_afresh(damage: bytes, tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    (tmp_path / ".a.0.partial").write_bytes(damage)
    assert resumed(tmp_path) == (whole, 5)


def test_damage_in_the_middle_costs_that_line_and_no_more(tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    path = tmp_path / ".a.0.partial"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{broken}\n", *lines[2:]]))
    assert resumed(tmp_path) == (whole, 3)


@pytest.mark.parametrize("other", [{"seed": 1}, {"epsilon": 0.05}, {"n": 24}, {"batch_size": 7}])
def test_other_settings_start_afresh(other: dict[str, float], tmp_path: Path) -> None:
    interrupted(tmp_path)
    size, n = int(other.get("batch_size", 5)), int(other.get("n", 25))
    assert resumed(tmp_path, **other)[1] == -(-n // size)


def test_another_model_starts_afresh(tmp_path: Path) -> None:
    moved = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    moved.load_state_dict(linear().state_dict())
    interrupted(tmp_path / "same")
    assert resumed(tmp_path / "same", moved)[1] == 2  # the same weights in another object are the same model
    interrupted(tmp_path / "layers")
    assert resumed(tmp_path / "layers", nn.Sequential(*moved, nn.Softmax(1)))[1] == 5  # in other layers they are not
    with torch.no_grad():
        moved[1].bias[0] += 1e-6
    interrupted(tmp_path / "weights")
    assert resumed(tmp_path / "weights", moved)[1] == 5


def test_images_of_another_evaluation_are_not_taken_for_this_one(tmp_path: Path) -> None:
    x, y = images(10)
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), x, y, {"a": Counting(dies_at=1)}, batch_size=5, out=tmp_path, save_adversarial=True, seed=1)
    assert (tmp_path / ".a.0.images.npy").is_file()
    with pytest.raises(KeyboardInterrupt):
        evaluate(linear(), x, y, {"a": Counting(dies_at=1)}, batch_size=5, out=tmp_path)
    assert not (tmp_path / ".a.0.images.npy").exists()


def test_names_with_the_same_beginning_do_not_share_a_cache(tmp_path: Path) -> None:
    ResultCache(tmp_path, "pgd20-1.5", "x").add(0, {"flags": [1]})
    assert ResultCache(tmp_path, "pgd20-1", "x").done == {}
    assert list(ResultCache(tmp_path, "pgd20-1.5", "x").done) == [0]


def test_batches_of_another_key_are_dropped_whichever_rank_stored_them(tmp_path: Path) -> None:
    ResultCache(tmp_path, "a", "old").add(0, {"flags": [[1]]})
    (tmp_path / ".a.0.partial").rename(tmp_path / ".a.1.partial")
    assert list(ResultCache(tmp_path, "a", "old").done) == [0]
    ResultCache(tmp_path, "a", "new")
    assert ResultCache(tmp_path, "a", "old").done == {}


def test_batches_stored_without_images_are_attacked_again_when_images_are_wanted(tmp_path: Path) -> None:
    whole = interrupted(tmp_path)
    attack, (x, y) = Counting(), images(25)
    result = evaluate(linear(), x, y, {"a": attack}, batch_size=5, out=tmp_path, save_adversarial=True)
    assert (result.attacks["a"].flags, attack.batches) == (whole, 5)
    broken = [i for i, (clean, robust) in enumerate(zip(result.clean, whole, strict=True)) if clean and not robust]
    assert load_images(tmp_path / "a-adversarial.npz").index.tolist() == broken


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RattleError, match="cannot write"):
        ResultCache(tmp_path / "file", "a", "key")


def test_autoattack_is_the_and_of_its_parts_and_equals_calling_it() -> None:
    x, y = images(30)
    model, attack = small_cnn(), Quick()
    result = evaluate(model, x, y, {"quick": attack}).attacks["quick"]
    rows = torch.tensor([result.parts[name] for name in attack.components()])
    assert rows.all(0).tolist() == result.flags
    assert bool((rows[1:] <= rows[:-1]).all()), "a part never raises a flag"
    with torch.no_grad():
        right = model(to_float(x)).argmax(1) == y
        live = right.nonzero().squeeze(1)
        x_adv = attack(model, to_float(x[live]), y[live], generator=ImageStreams(0, live))
        right[live] = model(x_adv).argmax(1) == y[live]
    assert right.tolist() == result.flags
    assert 0 < sum(result.flags) < 30


def test_flags_do_not_depend_on_the_batch_size() -> None:
    x, y = images(40)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    model.load_state_dict(linear().state_dict())
    x = to_float(x).double()
    flags = [evaluate(model, x, y, {"q": Quick()}, batch_size=size).attacks["q"] for size in (7, 40)]
    assert flags[0].flags == flags[1].flags
    assert flags[0].parts == flags[1].parts


def test_saved_images_are_verified_and_tampered_ones_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run")
    words = ["evaluate", str(run), "--n", "30", "--batch-size", "12", "--threat.epsilon", "0.1"]
    assert main([*words, "--attacks", "pgd5", "--save-adversarial"]) == 0
    path = run / "results" / "pgd5-adversarial.npz"
    assert {p.name for p in path.parent.iterdir()} == {"pgd5.json", "pgd5-adversarial.npz"}
    result, saved = json.loads((run / "results" / "pgd5.json").read_text()), load_images(path)
    broken = np.array(result["clean_flags"]) & (1 - np.array(result["attacks"]["pgd5"]["flags"]))
    assert saved.index.tolist() == np.array(result["index"])[broken.nonzero()[0]].tolist()
    assert saved.threat == Threat(epsilon=0.1)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--verify", str(path)]) == 0
    n = len(saved.index)
    assert f"{n} of {n} saved images lie inside linf 0.1 and [0, 1]" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"] == n
    assert main(["evaluate", str(run), "--verify", str(path), "--threat.epsilon", "0.05"]) == 2  # not in that ball
    with np.load(path) as file:
        arrays = dict(file)
    clean = to_float(digits()[2][saved.index]).numpy()
    for changed in (
        {"x_adv": arrays["x_adv"] * np.float32("nan")},
        {"x_adv": np.concatenate([clean[:1], arrays["x_adv"][1:]])},  # an image that is classified rightly
        {"y": (arrays["y"] + 1) % 10},
        {"index": arrays["index"] + 10_000},
        {"index": arrays["index"][:-1]},
        {"x_adv": arrays["x_adv"][:, :, :4]},
        {"x_adv": arrays["x_adv"].astype(object)},
    ):
        np.savez(tmp_path / "tampered.npz", **(arrays | changed), allow_pickle=True)
        capsys.readouterr()
        assert main(["evaluate", str(run), "--verify", str(tmp_path / "tampered.npz")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "tampered.npz").write_bytes(path.read_bytes()[:-200])
    assert main(["evaluate", str(run), "--verify", str(tmp_path / "tampered.npz")]) == 2
    assert "is not a file of adversarial images, or is damaged" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--verify", "nowhere.npz"]) == 2


def test_saving_works_when_nothing_was_broken_or_nothing_was_right(tmp_path: Path) -> None:
    x, y = images(6)
    evaluate(linear(), x, y, {"none": Counting(threat=Threat(epsilon=0))}, out=tmp_path, save_adversarial=True)
    evaluate(linear(), x, (y + 1) % 10, {"all": Counting()}, out=tmp_path, save_adversarial=True)
    evaluate(linear(), x, (y + 1) % 10, {"all": Counting()}, out=tmp_path, save_adversarial=True)
    assert [len(load_images(tmp_path / f"{n}-adversarial.npz").index) for n in ("none", "all")] == [0, 0]


class Dying(Ensemble):
    """Quick, which counts the components that run and dies at one of them."""

    threat = THREAT

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at, self.calls = dies_at, []

    def components(self) -> dict[str, Attack]:
        return {name: Counted(name, attack, self) for name, attack in Quick().components().items()}


class Counted:
    threat = THREAT

    def __init__(self, name: str, attack: Attack, ensemble: Dying) -> None:
        self.name, self.attack, self.ensemble = name, attack, ensemble

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: ImageStreams | None = None) -> Tensor:
        if len(self.ensemble.calls) == self.ensemble.dies_at:
            raise KeyboardInterrupt
        self.ensemble.calls.append(self.name)
        return self.attack(model, x, y, generator=generator)


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_an_ensemble_resumes_after_its_last_component_and_ends_the_same(dies_at: int, tmp_path: Path) -> None:
    x, y = images(30)
    model, settings = small_cnn(), {"batch_size": 15, "out": tmp_path, "save_adversarial": True}
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, x, y, {"quick": Dying(dies_at=dies_at)}, **settings)
    again = Dying()
    resumed = evaluate(model, x, y, {"quick": again}, **settings).attacks["quick"]
    points = load_images(tmp_path / "quick-adversarial.npz").x_adv
    assert again.calls == [*Quick().components(), *Quick().components()][dies_at:]
    whole = evaluate(model, x, y, {"quick": Dying()}, **settings).attacks["quick"]
    assert (resumed.flags, resumed.parts) == (whole.flags, whole.parts)
    assert torch.equal(points, load_images(tmp_path / "quick-adversarial.npz").x_adv)
    assert resumed.seconds == pytest.approx(sum(resumed.part_seconds.values()))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", [b"", b"PK", "another shape"])
def test_a_damaged_state_of_an_ensemble_begins_its_batch_again(damage: bytes | str, tmp_path: Path) -> None:
    x, y = images(10)
    model = small_cnn()
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, x, y, {"quick": Dying(dies_at=2)}, out=tmp_path)
    (state,) = tmp_path.glob("*.state")
    if isinstance(damage, bytes):
        state.write_bytes(damage)
    else:
        stored = torch.load(state, weights_only=True)
        torch.save(stored | {"correct": stored["correct"][:, 1:]}, state)
    again = Dying()
    resumed = evaluate(model, x, y, {"quick": again}, out=tmp_path).attacks["quick"]
    assert again.calls == list(Quick().components())
    assert resumed.flags == evaluate(model, x, y, {"quick": Quick()}).attacks["quick"].flags


@pytest.mark.slow
def test_autoattack_killed_and_given_again_has_the_flags_of_one_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_run(tmp_path / "run")
    words = ["--attacks", "autoattack", "--n", "40", "--batch-size", "8", "--threat.epsilon", "0.1"]
    command = [sys.executable, "-m", "rattle", "evaluate", str(run), *words]
    partial = tmp_path / "killed" / ".autoattack.0.partial"
    child = subprocess.Popen([*command, "--out", str(partial.parent)], stderr=subprocess.DEVNULL, env=os.environ)
    deadline = time.monotonic() + 300
    while not (partial.exists() and partial.read_bytes().count(b"\n") >= 2):  # two batches
        assert child.poll() is None, "it finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    done = partial.read_bytes().count(b"\n")
    assert 2 <= done < 5
    attack_batch, attacked = evaluation.attack_batch, []
    monkeypatch.setattr(
        evaluation, "attack_batch", lambda *words, **more: attacked.append(1) or attack_batch(*words, **more)
    )
    assert main(["evaluate", str(run), *words, "--out", str(partial.parent)]) == 0
    assert len(attacked) == 5 - done
    assert main(["evaluate", str(run), *words, "--out", str(tmp_path / "whole")]) == 0
    killed, whole = (json.loads((tmp_path / n / "autoattack.json").read_text()) for n in ("killed", "whole"))
    for result in (killed, whole):
        for part in result["attacks"]["autoattack"]["parts"].values():
            assert part.pop("seconds") > 0  # the clock's, the only thing that may differ
    for key in ("flags", "parts", "robust_accuracy"):
        assert killed["attacks"]["autoattack"][key] == whole["attacks"]["autoattack"][key]
    assert not partial.exists()
