"""Loss landscapes as arrays: over a plane in input space, and along random directions in weight space.

Input space follows Figs. 2 and 3 of the paper: the plane of sign(grad_x loss) and a Rademacher(0.5) direction. Weight
space follows Li et al. (2018), filter normalisation; the adversarial loss is attacked again at every point, as Wu et
al. (2020) do. Models are restored: mode, weights, gradients and statistics. `rattle.analysis.plots` draws the arrays.

Parameters that several functions share: `x` [n, *image] in [0, 1] and `y` [n] are images and labels.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import Attack, attack_mode
from rattle.errors import RattleError
from rattle.inputs import check_batch, check_labels, logits_of
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.runs.arrays import Array, InputPlane, InputSurface, WeightSurface
from rattle.threat import length
from rattle.weights import Delta, perturbed

FORWARD_BATCH = 512  # images of a forward pass


def as_array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()


def offsets(radius: float, points: int) -> Array:
    """Evenly spaced from -radius to radius; one more than an even number of points, so that the middle one is 0."""
    half = points // 2
    return np.arange(-half, half + 1) * (radius / half)


def random_like(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """N(0, 1) in the shape of p, drawn on the generator's device."""
    device = generator.device if generator is not None else "cpu"
    return torch.randn(p.shape, generator=generator, device=device).to(p)


def losses_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each image, [n]; raises RattleError if the model returns no logits or lacks a class of y."""
    logits = logits_of(model, x)
    check_labels(logits, y)
    return losses.ce(logits, y)


def loss_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """grad_x of each image's loss, [n, *image]; called inside `attack_mode`."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(losses_at(model, x, y).sum(), x)[0]


def weight_gradient(value: Tensor, weights: Sequence[Tensor], *, again: bool = False) -> Tensor:
    """The gradient by all weights as one vector, [d]; again: it can itself be differentiated."""
    parts = torch.autograd.grad(value, weights, retain_graph=True, create_graph=again, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def input_plane(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    radius: float = 16 / 255,
    points: int = 25,
    generator: Randomness = None,
) -> InputPlane:
    """The plane of Figs. 2 and 3 for each image, its gradient direction taken from the given (reference) model.

    `radius` is the largest step along either direction, in pixel units; `points` (odd) the length of each axis;
    `generator` draws the Rademacher direction.
    """
    check_batch(x, y)
    steps = offsets(radius, points)
    rademacher = streams(generator, len(x), x.device).signs(*x.shape[1:])
    with attack_mode(model):
        gradient = loss_gradient(model, x, y).sign()
    return InputPlane(a=steps, b=steps.copy(), gradient=as_array(gradient), rademacher=as_array(rademacher))


def input_surface(model: nn.Module, x: Tensor, y: Tensor, plane: InputPlane) -> InputSurface:
    """The loss at x + a * gradient + b * rademacher for every grid point (Figs. 2, 3); points may leave [0, 1]."""
    check_batch(x, y)
    if plane.gradient.shape != tuple(x.shape):
        raise RattleError(f"the plane is for images {list(plane.gradient.shape)}, got {list(x.shape)}")
    gradient, rademacher = torch.as_tensor(plane.gradient).to(x), torch.as_tensor(plane.rademacher).to(x)
    steps = torch.cartesian_prod(torch.as_tensor(plane.a), torch.as_tensor(plane.b)).to(x)
    values = np.zeros((len(x), len(steps)))
    correct = np.zeros((len(x), len(steps)), bool)
    with attack_mode(model), torch.no_grad():
        for i in range(len(x)):
            for rows in torch.arange(len(steps)).split(FORWARD_BATCH):
                a, b = (step.view(-1, *[1] * (x.ndim - 1)) for step in steps[rows].unbind(1))
                labels = y[i].expand(len(rows))
                logits = logits_of(model, x[i] + a * gradient[i] + b * rademacher[i])
                check_labels(logits, labels)
                values[i, rows] = as_array(losses.ce(logits, labels))
                correct[i, rows] = as_array(logits.argmax(1) == labels)
    grid = (len(x), len(plane.a), len(plane.b))
    return InputSurface(
        a=plane.a, b=plane.b, loss=values.reshape(grid), correct=correct.reshape(grid), x=as_array(x), y=as_array(y)
    )


def filter_normalised(model: nn.Module, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """A random direction whose every filter is as long as the model's own (Li et al. 2018, Section 4).

    A filter is a slice along the first axis of a weight with two or more; biases and normalisation layers get none.
    """
    direction = {}
    for name, p in model.named_parameters():
        if p.ndim > 1:
            d = random_like(p, generator)
            direction[name] = d * (length(p.detach()) / length(d).clamp_min(1e-12))
    if not direction:
        raise RattleError("the model has no weight matrix to perturb")
    return direction


def mean_loss(model: nn.Module, x: Tensor, y: Tensor, attack: Attack | None = None, seed: int = 0) -> float:
    """Mean loss over the images, or over examples made by the attack at the present weights; called in `attack_mode`.

    Image i always draws the same random numbers, so that neighbouring weights are compared on equal terms.
    """
    total = 0.0
    for index in torch.arange(len(x), device=x.device).split(FORWARD_BATCH):
        images, labels = x[index], y[index]
        if attack is not None:
            images = attack(model, images, labels, generator=ImageStreams(seed, index))
        with torch.no_grad():
            total += float(losses_at(model, images, labels).double().sum())
    return total / len(x)


def weight_surface(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    directions: Sequence[Delta],
    radius: float = 1.0,
    points: int = 25,
    attack: Attack | None = None,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> WeightSurface:
    """Mean clean and adversarial loss along one direction or over the plane of two (Li et al. 2018, eqs. 1 and 2).

    `directions` are usually one or two draws of `filter_normalised`, followed for `radius` times their length at
    `points` (odd) steps. `attack` gives the adversarial loss, its random numbers depend on `seed` and the image alone.
    BatchNorm uses its running statistics. `advance` is called after each point.
    """
    check_batch(x, y)
    if len(directions) not in (1, 2):
        raise RattleError(f"a weight landscape has one or two directions, got {len(directions)}")
    a = offsets(radius, points)
    b = a.copy() if len(directions) == 2 else np.zeros(1)
    clean, adversarial = (np.full((len(a), len(b)), np.nan) for _ in range(2))
    with attack_mode(model):
        for i, j in np.ndindex(clean.shape):
            delta = {name: float(a[i]) * d for name, d in directions[0].items()}
            for name, d in directions[-1].items():
                delta[name] = delta[name] + float(b[j]) * d  # of one direction nothing: b is 0
            with perturbed(model, delta):
                clean[i, j] = mean_loss(model, x, y)
                if attack is not None:
                    adversarial[i, j] = mean_loss(model, x, y, attack, seed)
            advance()
    return WeightSurface(a=a, b=b, clean=clean, adversarial=adversarial)
