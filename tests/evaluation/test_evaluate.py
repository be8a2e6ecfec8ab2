"""One flag per image and attack, and every point that an attack returns is checked again."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import AttackResult, Evaluation
from rattle.stats import wilson
from rattle.threat import Threat

THREAT = Threat(epsilon=0.1)


class Brightness(nn.Module):
    """Class 1 where the mean pixel is over one half, else class 0: every result is known."""

    def forward(self, x: Tensor) -> Tensor:
        margin = x.flatten(1).mean(1) - 0.5
        return torch.stack([-margin, margin], 1)


def grey(*levels: float) -> Tensor:
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


X, Y = grey(0.2, 0.45, 0.55, 0.8, 0.9), torch.tensor([0, 0, 1, 1, 0])


@pytest.mark.parametrize("attack", ["fgsm", "cw20"])
def test_a_flag_says_whether_the_image_stays_correct(attack: str) -> None:
    result = evaluate(Brightness(), X, Y, [attack], threat=THREAT)
    assert result.clean == [True, True, True, True, False]
    assert result.attacks[attack].flags == [True, False, False, True, False]
    assert result.to_plain()["attacks"][attack]["robust_interval"] == [wilson(2, 5).low, wilson(2, 5).high]
    assert (result.clean_accuracy, result.robust_accuracy) == (0.8, 0.4)


@dataclass(frozen=True)
class Fixed:
    """An attack that claims whatever points it was given."""

    points: Tensor
    threat: Threat = THREAT

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        return self.points[: len(x)]


@pytest.mark.parametrize("level", [-0.3, 1.0, float("nan"), 0.31])
def test_points_outside_the_ball_or_the_box_lower_no_flag(level: float) -> None:
    x, y = grey(0.2, 0.8), torch.tensor([0, 1])
    result = evaluate(Brightness(), x, y, {"cheat": Fixed(grey(level, 1 - level))})
    assert result.attacks["cheat"].flags == [True, True]


def test_an_attack_is_not_believed_and_may_write_into_its_input() -> None:
    class Boaster:
        threat = THREAT

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
            self.success = torch.ones(len(x), dtype=torch.bool)
            return x

    class Overwriter(Boaster):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
            return x.copy_(1 - x)

    kept = X.clone()
    result = evaluate(Brightness(), X, Y, [Boaster(), Overwriter()])
    assert result.attacks["boaster"].flags == result.clean
    assert result.attacks["boaster"].settings == {"kind": "Boaster", "threat": {"norm": "linf", "epsilon": 0.1}}
    assert result.attacks["overwriter"].flags == [True, False, False, True, False]  # measured from the true image
    assert torch.equal(X, kept)


def test_images_misclassified_when_clean_are_never_robust_nor_attacked() -> None:
    seen = []

    class Watching(Fixed):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
            seen.append(x.clone())
            return x

    result = evaluate(Brightness(), X, Y, {"watch": Watching(X)})
    assert result.attacks["watch"].flags[4] is False
    assert torch.equal(torch.cat(seen), X[:4])


def test_the_worst_case_is_an_and() -> None:
    attacks = {
        name: AttackResult(settings={}, flags=flags, seconds=0.5)
        for name, flags in {"a": [True, True, False, False], "b": [True, False, True, False]}.items()
    }
    result = Evaluation(clean=[True, True, True, False], attacks=attacks)
    assert result.worst_case == [True, False, False, False]
    assert result.robust_accuracy == 0.25
    assert Evaluation(clean=[True, False], attacks={}).robust_accuracy == 0.5
