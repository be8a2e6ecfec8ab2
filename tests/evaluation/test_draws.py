"""Models that answer at random: they are noticed, and their expected accuracy over fresh draws is measured."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rattle
from rattle.attacks import APGD, PGD
from rattle.attacks.diagnostics import is_random
from rattle.attacks.ensemble import AttackSequence
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.randomized import Expected, Randomized
from rattle.runs.progress import Interrupted
from rattle.threat import Threat
from rattle.weights import Noise

N, TINY = 120, Threat(epsilon=1e-6)


class Drawing(nn.Module):
    """A network whose logits are `draw(network, x)`."""

    def __init__(self, draw: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.draw = rattle.load("zoo:digits-linf-cnn-trades"), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.network, x)


def logits_noise(network: nn.Module, x: Tensor) -> Tensor:
    z = network(x)
    return z + 1.5 * torch.randn_like(z)


def input_noise(network: nn.Module, x: Tensor) -> Tensor:
    return network(x + 0.4 * torch.randn_like(x))


def dropout(network: nn.Module, x: Tensor) -> Tensor:
    return network(F.dropout(x, 0.5, training=True))


def random_model(kind: str) -> nn.Module:
    if kind == "weights":
        return Randomized(rattle.load("zoo:digits-linf-cnn-trades"), Noise(sigma=0.04), draws=1, seed=None)
    return Drawing({"logits": logits_noise, "inputs": input_noise, "dropout": dropout}[kind])


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    test = Data(name="digits").source().test
    return test.x[:N].float() / 255, test.y[:N]


@pytest.mark.parametrize("kind", ["logits", "weights", "dropout", "inputs"])
def test_at_a_vanishing_epsilon_robust_is_expected_clean_accuracy(kind: str, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    model = random_model(kind).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        expected = float(torch.stack([model(x).argmax(1) == y for _ in range(60)]).double().mean())
    parts = {"apgd-ce": APGD(threat=TINY, steps=2), "apgd-dlr": APGD(threat=TINY, steps=2, loss="dlr")}
    attacks = {"both": AttackSequence(parts), "pgd": PGD(threat=TINY, steps=2, step_size=1e-6)}
    result = evaluate(model, x, y, attacks, eot=2)
    assert 0.4 < expected < 0.95, "randomness that matters"
    for row in result.records():  # half the width is what 120 images allow; draws alone decide here
        assert abs(row["accuracy"] - expected) < 0.03, row
        assert row["low"] < expected < row["high"]
    assert abs(result.robust_accuracy - expected) < 0.03


def test_random_models_are_told_from_rounding_and_batches(digits: tuple[Tensor, Tensor]) -> None:
    x, _ = digits
    plain = rattle.load("zoo:digits-linf-cnn-trades").eval()
    assert not is_random(plain, x)
    assert not is_random(Drawing(lambda f, x: f(x) * (1 + 1e-6 * torch.rand(1))), x)
    assert not is_random(Drawing(lambda f, x: f(x) - f(x).mean(0)), x)
    assert is_random(Drawing(lambda f, x: 1e6 + f(x) + torch.randn(len(x), 10)), x)
    assert is_random(Drawing(lambda f, x: f(x) + torch.randn(len(x), 10) * (torch.arange(len(x)) > 110)[:, None]), x)


def test_a_model_random_on_the_last_images_alone_is_noticed(digits: tuple[Tensor, Tensor]) -> None:
    x, y = (torch.cat([each] * 3) for each in digits)
    x[-9:] = 1.0
    model = Drawing(lambda f, x: f(x) + torch.randn(len(x), 10) * (x.mean((1, 2, 3)) > 0.99)[:, None])
    assert evaluate(model, x, y, {}).draws is not None


def test_the_rate_of_a_coin_is_measured_by_fresh_draws() -> None:
    """Every pass is right or wrong for all images alike: the interval knows that images share draws."""
    model = Drawing(lambda _, x: F.one_hot(torch.randint(2, (1,)).expand(len(x)), 2).float() + 0 * x.sum())
    x, y = torch.rand(100, 1, 2, 2), torch.zeros(100, dtype=torch.long)
    result = evaluate(model, x, y, {f"pgd-{i}": PGD(steps=1) for i in range(4)}, eot=1, draws=32)
    for row in result.records():
        assert row["low"] < 0.5 < row["high"]
        assert row["high"] - row["low"] > 0.2  # 32 draws, not 100 images
    assert result.to_plain()["robust_interval"][0] < 0.5 < result.to_plain()["robust_interval"][1]


def test_an_attack_on_the_mean_lowers_rates_beyond_one_half() -> None:
    """Logits x_0 - 1/2 and 0 with noise: the optimum is the corner of the ball, whatever the first lucky draw says."""

    class Line(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = 20 * (x.flatten(1)[:, :1] - 0.5)
            return torch.cat([z, torch.zeros_like(z)], 1) + torch.randn(len(x), 2)

    x, y = torch.full((50, 1, 1, 2), 0.52), torch.zeros(50, dtype=torch.long)
    threat = Threat(epsilon=0.08)
    z = 20 * (0.52 - 0.08 - 0.5) / 2**0.5
    optimum = 0.5 * (1 + torch.erf(torch.tensor(z / 2**0.5)))
    for attack in (PGD(threat=threat, step_size=0.02), APGD(threat=threat, steps=10)):
        result = evaluate(Line(), x, y, attack, draws=64)
        (found,) = result.attacks.values()
        assert found.accuracy == pytest.approx(float(optimum), abs=0.05)


def test_gradients_are_of_the_mean_probability_over_draws() -> None:
    """Two noises that are drawn with equal probability: the gradient of many draws is that of their exact mean."""
    torch.manual_seed(0)
    linear, shifts = nn.Linear(4, 3).requires_grad_(False), torch.randn(2, 3)
    model = Drawing(lambda _, x: linear(x) + shifts[torch.randint(2, (len(x),))])
    x, y = torch.rand(5, 4, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
    found = torch.autograd.grad(F.cross_entropy(Expected(model, 2000, seed=3)(x), y), x)[0]
    mean = torch.stack([(linear(x) + shift).softmax(1) for shift in shifts]).mean(0)
    exact = torch.autograd.grad(F.nll_loss(mean.log(), y), x)[0]
    assert torch.allclose(found, exact, atol=0.03 * float(exact.abs().max()))
    assert torch.equal(Expected(model, 4, seed=3)(x), Expected(model, 4, seed=3)(x))


def test_a_random_evaluation_repeats_resumes_and_says_its_draws(tmp_path: Path, digits: tuple[Tensor, Tensor]) -> None:
    x, y = (each[:40] for each in digits)
    stops = iter([True])

    def run(out: Path, **settings: object) -> dict:
        evaluate(random_model("logits"), x, y, PGD(steps=2), out=out, batch_size=20, eot=2, **settings)  # type: ignore[arg-type]
        plain = json.loads((out / "pgd.json").read_text())
        plain["attacks"]["pgd"]["seconds"] = plain["seconds"] = 0
        return plain

    whole = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", stop=lambda: next(stops, False))
    assert run(tmp_path / "parts") == whole
    draws = whole["attacks"]["pgd"]["draws"]
    assert (draws["count"], draws["eot"], len(draws["majority"]), len(draws["pilot"])) == (32, 2, 40, 40)
    assert draws["passes"] == pytest.approx(2 * 2 * 2, abs=4)  # two steps, each two draws forwards and backwards
    assert any(0 < flag < 1 for flag in whole["clean_flags"])
    assert any("at random" in sentence for sentence in whole["advice"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draws": 0}, "draws must be >= 8"),
        ({"eot": 0}, "eot must be >= 1"),
        ({"save_adversarial": True, "out": "here"}, "leave out mask"),
        ({"within": 2}, "leave out mask"),
    ],
)
def test_settings_of_draws_are_refused_in_a_sentence(
    settings: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[Tensor, Tensor]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RattleError, match=words):
        evaluate(random_model("logits"), *digits, PGD(steps=1), **settings)


def test_draws_that_are_nan_and_eot_of_a_plain_model_are_refused(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    with pytest.raises(RattleError, match="NaN"):
        evaluate(Drawing(lambda f, x: f(x) + torch.randn(1).log()), x, y, PGD(steps=1))
    with pytest.raises(RattleError, match="draws and eot are for models"):
        evaluate(rattle.load("zoo:digits-linf-cnn-trades"), x, y, PGD(steps=1), eot=2)
