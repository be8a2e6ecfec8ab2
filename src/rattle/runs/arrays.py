"""Arrays that a run stores as .npz: galleries of adversarial examples and loss landscapes. No torch.

`rattle.analysis` computes them, `runs.io.save_arrays` and `load_arrays` write and read them, pictures and pages show
them. Arrays of several models are comparable when `same_plane` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rattle.errors import RattleError

Array = NDArray[Any]
# The axes of each array, a letter a size, which is the same wherever it stands; "..." is any axes, "*" a text.
AXES = {
    "Gallery": {
        "classes": "K*",
        "y": "n",
        "clean_predicted": "n",
        "adversarial_predicted": "n",
        "index": "m",
        "x": "mchw",
        "x_adv": "mchw",
        "clean_confidence": "m",
        "adversarial_label": "m",
        "adversarial_confidence": "m",
        "epsilons": "E",
        "robust": "En",
        "attack": "*",
        "norm": "*",
        "epsilon": "",
        "step": "",
        "overrides": "*",
    },
    "InputPlane": {"a": "A", "b": "B", "gradient": "n...", "rademacher": "n..."},
    "InputSurface": {"a": "A", "b": "B", "loss": "nAB", "correct": "nAB", "x": "nchw", "y": "n"},
    "WeightSurface": {"a": "A", "b": "B", "clean": "AB", "adversarial": "AB"},
}
# Arrays of whole numbers below a size: labels of classes, numbers of images.
BELOW = {"y": "K", "clean_predicted": "K", "adversarial_predicted": "K", "adversarial_label": "K", "index": "n"}
# the first of its class | broken most confidently | withstood most narrowly
GALLERY_GROUPS = ("first", "failure", "survivor")


class Checked:
    """Arrays whose axes and kinds agree, or RattleError: their file may have been damaged."""

    __slots__ = ()

    def __post_init__(self) -> None:
        sizes = {}
        for name, axes in AXES[type(self).__name__].items():
            array = np.asarray(getattr(self, name))
            letters = axes.strip("*.")
            fits = array.ndim == len(letters) or (axes.endswith("...") and array.ndim > len(letters))
            fits &= array.dtype.kind in ("U" if axes.endswith("*") else "fiub")
            for letter, size in zip(letters, array.shape, strict=False):
                fits &= sizes.setdefault(letter, size) == size > 0
            if fits and name in BELOW:
                fits = array.dtype.kind in "iu" and array.min() >= 0 and array.max() < sizes.get(BELOW[name], np.inf)
            if not fits:
                raise RattleError(f"{name} has a shape, type or value that no {type(self).__name__} has")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gallery(Checked):
    """Predictions for n images under one attack, m of them with their pictures, and robustness at E radii."""

    classes: Array  # str [C]
    y: Array  # [n]
    clean_predicted: Array  # [n]
    adversarial_predicted: Array  # [n]; the clean prediction where that is wrong already
    index: Array  # [m], which of the n images are shown
    x: Array  # [m, C, H, W] in [0, 1]
    x_adv: Array  # [m, C, H, W]
    clean_confidence: Array  # [m], softmax of the predicted class
    adversarial_label: Array  # [m], predicted on x_adv
    adversarial_confidence: Array  # [m], softmax of that class
    epsilons: Array  # [E], rising
    robust: Array  # bool [E, n]: correct under the attack at this radius and at every smaller one
    attack: str
    norm: str
    epsilon: float
    step: int  # optimizer steps the weights were trained for
    overrides: str  # how the run differs from the named recipe; empty when it does not
    group: Array = field(default_factory=lambda: np.array([], np.str_))  # [m], why it is shown, of GROUPS; or none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputPlane(Checked):
    """Where input-space surfaces are taken: x + a * gradient + b * rademacher; shared by all models compared."""

    a: Array  # [A], steps along sign(grad_x loss), in pixel units
    b: Array  # [B], steps along the Rademacher direction
    gradient: Array  # [n, *image], -1, 0 or 1
    rademacher: Array  # [n, *image], -1 or 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputSurface(Checked):
    """A model's loss on an InputPlane, image by image."""

    a: Array  # [A]
    b: Array  # [B]
    loss: Array  # [n, A, B]
    correct: Array  # bool [n, A, B]: where the model still predicts the right class
    x: Array  # [n, *image], the images at a = b = 0
    y: Array  # [n]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightSurface(Checked):
    """A model's mean loss at w + a * d_1 + b * d_2; one-dimensional when b is [0]."""

    a: Array  # [A]
    b: Array  # [B]
    clean: Array  # [A, B]
    adversarial: Array  # [A, B]; NaN when no attack was given

    @property
    def dimensions(self) -> int:
        return 1 if len(self.b) == 1 else 2

    @property
    def attacked(self) -> bool:
        return not bool(np.isnan(self.adversarial).all())


def same_plane(stored: Sequence[InputPlane] | Sequence[InputSurface] | Sequence[WeightSurface]) -> bool:
    """Whether all share one grid and, if they are planes, one pair of directions; true for fewer than two.

    >>> plane = InputPlane(a=np.arange(3), b=np.arange(3), gradient=np.ones(4), rademacher=np.ones(4))
    >>> flipped = InputPlane(a=plane.a, b=plane.b, gradient=plane.gradient, rademacher=-plane.rademacher)
    >>> same_plane([plane, plane]), same_plane([plane, flipped])
    (True, False)
    """
    names = [name for name in ("a", "b", "gradient", "rademacher") if all(hasattr(each, name) for each in stored)]
    return all(np.array_equal(getattr(stored[0], name), getattr(other, name)) for other in stored[1:] for name in names)
