"""HAT beside a literal twin: the helper point and its label."""

import pytest
from torch import Tensor

from rattle.objectives.hat import HAT
from support.twins import CLASSES, N, Networks, assert_same, images, networks


@pytest.mark.parametrize("classes", CLASSES)
def test_the_loss_is_the_formula(classes: int) -> None:
    h, beta, gamma = 2.0, 2.5, 0.5

    def twin(found: Networks, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        z, z_adv, z_helper = found["model"](x), found["model"](x_adv), found["model"](x + h * (x_adv - x))
        loss = 0.0
        for i in range(N):
            p, q = z[i].softmax(0), z_adv[i].softmax(0)
            label = int(found["standard"](x_adv)[i].argmax())
            loss = loss - p[y[i]].log() / N
            loss = loss + beta * (p * (p.log() - q.log())).sum() / N
            loss = loss - gamma * z_helper[i].softmax(0)[label].log() / N
        return loss

    found = networks(classes, frozen=("standard",))
    assert_same(HAT(), twin, found, classes)
    assert any(found["standard"](images(classes)[1]).argmax(1) != images(classes)[2])  # the helper's labels matter
