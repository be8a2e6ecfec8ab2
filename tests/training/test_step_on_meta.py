"""A training step never waits for the device: on `meta`, tensors have no values, so that every look at one raises.

What reads a value (`.item()`, `float`, `bool`, a mask that packs rows) makes the host wait on a GPU. A copy from host
memory does too, unless it is pinned, and it works on meta: `Copies` lists those.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rattle.attacks import PGD
from rattle.data import Augment, Images
from rattle.data.dataset import Dataset
from rattle.errors import RattleError
from rattle.models import create_model
from rattle.objectives import AT, Taylor, Trades
from rattle.objectives.base import Memory, Method, Moment, StepContext
from rattle.objectives.registry import METHODS
from rattle.randomness import ImageStreams
from rattle.threat import Norm, Threat
from rattle.training.minibatch import augmented
from rattle.training.state import init_state
from rattle.training.step import step
from rattle.weights import ASAM, AWP, EMA, SAM, Noise
from support.steps import step_inputs
from support.training import tiny

META = torch.device("meta")
IMAGES, CLASSES = 4, 10
# What waits for the device by its nature, with the reason.
WAITS = {
    "fat": "images leave the attack as they are misclassified, and the others go on as a smaller batch",
    "fat-trades": "the same",
    "e-at": "the errors so far decide which norm a minibatch is attacked in",
    "mma": "images that are misclassified already are not attacked",
}


class Copies(TorchDispatchMode):
    """The copies from host memory to the device, as shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[0] if function is torch.ops.aten._to_copy.default else args[1]
            if source.device.type == "cpu" and result.device.type == "meta":
                self.found.append(list(source.shape))
        return result


def network() -> nn.Module:
    return create_model("cnn", classes=CLASSES, channels=1, width=4).to(META).train()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and the images' numbers."""
    y = torch.zeros(IMAGES, dtype=torch.long, device=META)
    return torch.rand(IMAGES, 1, 8, 8, device=META), y, torch.arange(IMAGES, device=META)


def one_step(method: Method, norm: Norm = "linf", *, awp: AWP | SAM | ASAM | None = None, samples: int = 1) -> list:
    """A step of a method as the loop makes it; returns the shapes that were copied to the device."""
    model, objective, (x, y, index) = network(), method.objective, batch()
    teachers = {name: network() for name, (_, how) in objective.teachers.items() if how != "average"}
    average = EMA().averaged(model)
    average.update_parameters(model)
    state = objective.state(images=IMAGES, classes=CLASSES, batch=x.shape)
    context = StepContext(
        moment=Moment(epoch=1, epochs=2),
        draws=ImageStreams(0, index),
        memory=Memory({name: value.to(META) for name, value in state.items()}, index),
        classes=CLASSES,
        teachers=teachers,
    )
    attack = replace(method.attack, threat=Threat(norm=norm, epsilon=0.1), step_size=0.02, steps=1)
    parts = {"noise": Noise(), "awp": awp, "noise_samples": samples, "average": average}
    given = step_inputs(model, objective, attack, x, y, context, **parts)
    with Copies() as copies:
        terms = step(given)
    assert all(value.device == META for value in terms.values())
    assert all(p.grad is not None for p in model.parameters())
    return copies.found


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_every_method_looks_at_no_value(name: str, norm: Norm) -> None:
    if name in WAITS:
        with pytest.raises((RuntimeError, NotImplementedError)):
            one_step(METHODS[name], norm)
    else:
        assert one_step(METHODS[name], norm) == []


@pytest.mark.parametrize("awp", [AWP(gamma=0.01, warmup=0), SAM(rho=0.1), ASAM()])
@pytest.mark.parametrize("mode", ["head", "exact", "sampled"])
def test_a_step_with_perturbed_weights_and_taylor_terms_looks_at_no_value(mode: str, awp: AWP | SAM | ASAM) -> None:
    method = replace(METHODS["trades"], objective=Trades(taylor=Taylor(order=2, mode=mode)))
    assert one_step(method, awp=awp, samples=2 if mode == "sampled" else 1) == []


def test_a_step_on_the_cpu_still_refuses_images_outside_0_1() -> None:
    model, index = create_model("cnn", classes=CLASSES, channels=1, width=4), torch.arange(4)
    context = StepContext(draws=ImageStreams(0, index))
    with pytest.raises(RattleError, match=r"must lie in \[0, 1\]"):
        step(step_inputs(model, AT(), PGD(), 255 * torch.rand(4, 1, 8, 8), index, context))


@pytest.mark.parametrize("value", [-0.1, 255.0, float("nan")])
def test_a_dataset_refuses_float_images_outside_0_1(value: float) -> None:
    good, bad = (Images(torch.full((4, 1, 8, 8), each), torch.zeros(4, dtype=torch.long)) for each in (0.5, value))
    with pytest.raises(RattleError, match=r"mine: images must lie in \[0, 1\]"):
        Dataset(name="mine", train=bad, test=good, classes=("one",))


@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_augmentation_and_mixing_look_at_no_value_and_copy_nothing(mix: Any) -> None:
    recipe = tiny("at")
    recipe = replace(recipe, data=replace(recipe.data, augment=Augment(pad=2, flip=True, cutout=3, mix=mix)))
    state = init_state(recipe, recipe.data.load())
    state.model.to(META)
    images = state.data.train.to(META)
    with Copies() as copies:
        x, y = augmented(state, images, torch.arange(8, device=META))
    assert x.device == y.device == META
    assert len(x) == len(y) == 8
    assert copies.found == []
