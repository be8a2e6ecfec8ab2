"""Attacks never mix devices: they run on one that is not the CPU, and find there what they find on the CPU."""

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import get_attack
from rattle.evaluation.evaluate import evaluate
from rattle.inputs import images_checked
from rattle.models import create_model
from rattle.randomness import ImageStreams
from rattle.threat import Norm, Threat
from support.other_device import DEVICE, There, other_device, to_device

EPSILON = {"linf": 0.1, "l2": 0.8, "l1": 6.0}
BRIEF = {  # every operation goes through Python, so few steps
    "fgsm": {},
    "pgd2": {},
    "cw2": {},
    "apgd-ce": {"steps": 3},
    "apgd-dlr": {"steps": 2},
    "apgd-t": {"steps": 2, "targets": 2},
    "fab-t": {"steps": 2, "targets": 1},
    "fab": {"steps": 2, "targets": 0},
    "square": {"queries": 12},
    "rays": {"queries": 20},
}


def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network, images, and the labels that it gives to most of them."""
    torch.manual_seed(0)
    model = create_model("cnn", classes=10, channels=1, width=4).eval()
    x = torch.rand(6, 1, 8, 8)
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 10  # one is misclassified already
    return model, x, y


def test_two_devices_do_not_mix() -> None:
    x = to_device(torch.rand(3))
    with other_device():
        assert torch.equal((x + torch.ones((), device=DEVICE)).value, x.value + 1)
        assert (x + torch.tensor(1.0)).device == (x + 1).device == DEVICE
        with pytest.raises(RuntimeError, match=r"aten.add.Tensor on two devices: \[\(3,\)\] of the CPU"):
            _ = x + torch.rand(3)


@pytest.mark.parametrize("norm", ["linf", "l2", pytest.param("l1", marks=pytest.mark.slow)])  # half of the time
@pytest.mark.parametrize("name", BRIEF)
def test_an_attack_mixes_no_devices_and_finds_what_it_finds_on_the_cpu(name: str, norm: Norm) -> None:
    if name == "rays" and norm != "linf":
        pytest.skip("rays is an l_inf attack")
    attack = get_attack(name, Threat(norm=norm, epsilon=EPSILON[norm]), **BRIEF[name])
    model, x, y = digits()
    wanted = attack(model, x, y, generator=ImageStreams(0, torch.arange(6)))
    with other_device(), images_checked():  # what is on meta has no values to check, as a rule
        streams = ImageStreams(0, torch.arange(6, device=DEVICE))
        found = attack(to_device(model), to_device(x), to_device(y), generator=streams)
    assert isinstance(found, There)
    torch.testing.assert_close(found.value, wanted)


def test_an_evaluation_mixes_no_devices_and_gives_the_flags_of_the_cpu() -> None:
    model, x, y = digits()
    attacks = {"pgd": get_attack("pgd2", Threat(epsilon=0.1)), "square": get_attack("square", Threat(), queries=5)}
    wanted = evaluate(model, x, y, attacks, batch_size=4)
    with other_device(), images_checked():
        found = evaluate(to_device(model), to_device(x), to_device(y), attacks, batch_size=4)
    assert found.clean == wanted.clean
    assert {name: r.flags for name, r in found.attacks.items()} == {name: r.flags for name, r in wanted.attacks.items()}
