"""AVMixup beside a plain twin that mixes one image after the other."""

import copy

import pytest
import torch
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.objectives.avmixup import AVMixup
from rattle.threat import Threat
from support.inner_attacks import assert_same_step, draws, our_step, problem

PGD_3 = PGD(threat=Threat(epsilon=0.1), steps=3, step_size=0.04)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_loss_gradient_and_images_are_those_of_the_twin(classes: int) -> None:
    given, random = problem(classes), draws(14)
    twin, images, labels = copy.deepcopy(given.model), [], []
    x_adv = PGD_3(twin, given.x, given.y, generator=random)
    for x, moved, y, a in zip(given.x, x_adv, given.y, random.uniform(1).double(), strict=True):
        vertex = torch.clip(x + 2.0 * (moved - x), 0, 1)
        images.append(a * x + (1 - a) * vertex)
        one_hot = F.one_hot(y, classes).double()
        at_x = 1.0 * one_hot
        at_vertex = 0.1 * one_hot + (1 - one_hot) * 0.9 / (classes - 1)
        labels.append(a * at_x + (1 - a) * at_vertex)
    logits = twin(torch.stack(images))
    loss = -(torch.stack(labels) * logits.log_softmax(1)).sum() / 14
    ours = our_step(AVMixup(), PGD_3, given)
    assert_same_step(ours, loss, twin, torch.stack(images))
    torch.testing.assert_close(ours.batch.y, torch.stack(labels))
