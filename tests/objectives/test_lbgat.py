"""LBGAT beside a literal twin: a teacher that learns along."""

import pytest
from torch import Tensor

from rattle.objectives.lbgat import LBGAT
from support.twins import CLASSES, N, Networks, assert_same, networks


@pytest.mark.parametrize("beta", [0.0, 6.0])
@pytest.mark.parametrize("classes", CLASSES)
def test_the_loss_is_the_formula_for_both_networks(classes: int, beta: float) -> None:
    def twin(found: Networks, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        z, z_adv, taught = found["model"](x), found["model"](x_adv), found["natural"](x)
        loss = 0.0
        for i in range(N):
            for k in range(classes):
                loss = loss + (z_adv[i, k] - taught[i, k]) ** 2 / (N * classes)
            loss = loss - taught[i].softmax(0)[y[i]].log() / N
            p, q = z[i].softmax(0), z_adv[i].softmax(0)
            loss = loss + beta * (p * (p.log() - q.log())).sum() / N
        return loss

    assert_same(LBGAT(beta=beta), twin, networks(classes, along=("natural",)), classes)
