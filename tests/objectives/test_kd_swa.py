"""KD from two teachers beside a literal twin, and SWA as part of its recipes."""

import pytest
from torch import Tensor

from rattle.objectives.kd_swa import KD
from support.twins import CLASSES, N, Networks, assert_same, networks


@pytest.mark.parametrize("classes", CLASSES)
def test_the_loss_is_the_formula(classes: int) -> None:
    weights, t = {"standard": 0.1, "robust": 0.6}, 2.0

    def twin(found: Networks, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        z, loss = found["model"](x_adv), 0.0
        taught = {name: found[name](x_adv) for name in weights}
        for i in range(N):
            loss = loss - 0.3 * z[i].softmax(0)[int(y[i])].log() / N
            for name, weight in weights.items():
                target, mine = (taught[name][i] / t).softmax(0), (z[i] / t).softmax(0)
                loss = loss - weight * t**2 * (target * mine.log()).sum() / N
        return loss

    assert_same(KD(), twin, networks(classes, frozen=("standard", "robust")), classes)
