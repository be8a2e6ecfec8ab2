"""The drop-in for AutoAttack: the reference's calls, its lines, its results; and an interruption that loses nothing."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.autoattack import components
from rattle.errors import RattleError
from rattle.evaluation import verify
from rattle.integrations import AutoAttack
from rattle.threat import Threat
from support.tiny_runs import digits, linear, small_cnn

EPSILON = 0.05
STEPS, QUERIES = 10, 100


def images(n: int) -> tuple[Tensor, Tensor]:
    _, _, x, y = digits()
    return x[:n].float() / 255, y[:n]


def robust(x_adv: Tensor, y: Tensor, model: nn.Module | None = None) -> Tensor:
    with torch.no_grad():
        return (model or small_cnn())(x_adv).argmax(1) == y


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks of a few steps: for what does not depend on how strong they are."""

    def shortened(version: str, threat: Threat) -> dict[str, Attack]:
        less = {True: {"queries": QUERIES}, False: {"steps": STEPS}}
        return {name: replace(attack, **less[name == "square"]) for name, attack in components(version, threat).items()}

    monkeypatch.setattr("rattle.integrations.autoattack.components", shortened)


@pytest.mark.usefixtures("short")
def test_the_same_images_fall_as_in_the_reference() -> None:
    model, (x, y) = linear(), images(100)
    ours = AutoAttack(model, norm="Linf", eps=EPSILON, seed=0, verbose=False).run_standard_evaluation(x, y, bs=100)
    reference = import_module("pyautoattack.autoattack").AutoAttack(model, norm="Linf", eps=EPSILON, seed=0)
    for part in (reference.apgd, reference.apgd_targeted, reference.fab, reference.square):
        part.n_iter, part.n_queries = STEPS, QUERIES
    theirs, _ = reference.run_standard_evaluation(x, y, batch_size=100)
    assert 0 < robust(theirs, y, model).sum() < robust(x, y, model).sum()
    assert float((robust(ours, y, model) == robust(theirs, y, model)).float().mean()) >= 0.99
    assert float((ours - x).abs().max()) <= EPSILON + 1e-6


@pytest.mark.usefixtures("short")
def test_it_prints_the_references_lines_and_logs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = images(20)
    settings = {"norm": "Linf", "eps": EPSILON, "seed": 0, "version": "custom", "attacks_to_run": ["apgd-ce", "square"]}
    adversary = AutoAttack(small_cnn(), **settings, log_path=tmp_path / "log.txt")
    x_adv, labels = adversary.run_standard_evaluation(x, y, return_labels=True)
    said = capsys.readouterr().out
    assert said == (tmp_path / "log.txt").read_text()
    assert re.search(r"^initial accuracy: \d+\.\d\d%$", said, re.M)
    for name in ("APGD-CE", "SQUARE"):
        assert re.search(rf"^robust accuracy after {name}: \d+\.\d\d% \(total time \d+\.\d s\)$", said, re.M)
    assert f"robust accuracy: {float(robust(x_adv, y).float().mean()):.2%}" in said
    assert torch.equal(labels == y, robust(x_adv, y))
    assert torch.equal(x_adv[robust(x_adv, y)], x[robust(x_adv, y)])  # images that hold come back as they were


@pytest.mark.usefixtures("short")
def test_after_an_interruption_it_goes_on_and_all_examples_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = images(20)
    settings = {"eps": EPSILON, "verbose": False, "version": "custom", "attacks_to_run": ["apgd-ce", "apgd-t"]}
    whole = AutoAttack(small_cnn(), **settings).run_standard_evaluation(x, y, bs=5, state_path=tmp_path / "whole")
    real, calls = verify.attack_batch, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(verify, "attack_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        AutoAttack(small_cnn(), **settings).run_standard_evaluation(x, y, bs=5, state_path=tmp_path / "state")
    again = AutoAttack(small_cnn(), **settings).run_standard_evaluation(x, y, bs=5, state_path=tmp_path / "state")
    assert torch.equal(again, whole)
    assert len(calls) == 6 + 3  # of eight batches, five were done


@pytest.mark.usefixtures("short")
def test_each_attack_alone() -> None:
    x, y = images(10)
    settings = {"norm": "L2", "eps": 0.2, "verbose": False, "version": "custom", "attacks_to_run": ["apgd-ce", "fab-t"]}
    adversary = AutoAttack(small_cnn(), **settings)
    found = adversary.run_standard_evaluation_individual(x, y)
    assert list(found) == adversary.attacks_to_run == ["apgd-ce", "fab-t"]
    assert adversary.clean_accuracy(found["apgd-ce"], y) <= adversary.clean_accuracy(x, y)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm": "linf"}, "unknown norm 'linf'; did you mean 'Linf'?"),
        ({"version": "standart"}, "unknown version 'standart'; did you mean 'standard'?"),
        ({"is_tf_model": True}, "TensorFlow models are not supported"),
        ({"attacks_to_run": ["apgd-ce"]}, "attacks_to_run is for version='custom'"),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(settings: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=re.escape(sentence)):
        AutoAttack(small_cnn(), **settings)


@pytest.mark.parametrize(("attacks", "sentence"), [([], "names no attack"), (["pgd"], "unknown attack 'pgd'")])
def test_attacks_that_do_not_exist_are_refused(attacks: list[str], sentence: str) -> None:
    x, y = images(4)
    adversary = AutoAttack(small_cnn(), version="custom", attacks_to_run=attacks, verbose=False)
    with pytest.raises(RattleError, match=sentence):
        adversary.run_standard_evaluation(x, y)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = linear()

    def forward(self, x: Tensor) -> Tensor:
        z = self.network(x)
        return z + 0.1 * torch.randn_like(z)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("version", ["standard", "rand"])
def test_a_model_that_answers_at_random_is_attacked_as_in_the_reference_with_a_warning(version: str) -> None:
    x, y = images(20)
    adversary = AutoAttack(Noisy(), norm="Linf", eps=1e-6, seed=0, verbose=False, version=version)
    with pytest.warns(UserWarning, match=r"rattle\.evaluate"):
        x_adv = adversary.run_standard_evaluation(x, y)
    assert float((x_adv - x).abs().max()) <= 2e-6
