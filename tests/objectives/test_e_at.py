"""E-AT beside a plain twin: points in both norms, the errors it remembers, and which norm a minibatch draws."""

import copy
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.objectives.base import Memory, Moment, StepContext
from rattle.objectives.e_at import EAT
from rattle.recipes.catalog import make_recipe
from rattle.threat import Threat
from rattle.training.step import step
from support.inner_attacks import draws, problem
from support.steps import step_inputs

EPSILON, STEP, STEPS, D = 0.1, 0.025, 3, 64
ATTACK = PGD(threat=Threat(epsilon=EPSILON), step_size=STEP, steps=STEPS)
SHARE = 0.5  # of the 64 coordinates' 6.4: a radius of 3.2, that some points are projected to
N = 14


def l1_projection(v: Tensor, x: Tensor, radius: float) -> Tensor:
    """The nearest point of the l_1 ball within [0, 1], of one image, by bisection on the threshold."""
    delta = v - x

    def shrunk(t: float) -> Tensor:
        return (x + delta.sign() * (delta.abs() - t).clamp(min=0)).clamp(0, 1)

    if float((shrunk(0) - x).abs().sum()) <= radius:
        return shrunk(0)
    low, high = 0.0, float(delta.abs().max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((shrunk(middle) - x).abs().sum()) > radius else (low, middle)
    return shrunk(high)


def attack_twin(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """PGD of each image in plain steps; in l_1 the step moves the one coordinate in a hundred of largest gradient."""
    radius, found = SHARE * D * EPSILON, []
    uniform, normal = draws(N).uniform(1, 8, 8).double(), draws(N).normal(1, 8, 8).double()
    for i in range(N):
        if norm == "linf":
            point = (x[i] + EPSILON * (2 * uniform[i] - 1)).clamp(0, 1)
        else:
            point = l1_projection(x[i] + normal[i], x[i], radius)
        for _ in range(STEPS):
            leaf = point[None].clone().requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(model(leaf), y[i : i + 1]), leaf)
            if norm == "linf":
                point = (point + STEP * g[0].sign()).clamp(x[i] - EPSILON, x[i] + EPSILON).clamp(0, 1)
            else:
                largest = int(g.abs().argmax())
                point = point.clone()
                point.view(-1)[largest] += SHARE * D * STEP * g.flatten()[largest].sign()
                point = l1_projection(point, x[i], radius)
        found.append(point)
    return torch.stack(found)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_points_loss_gradient_and_errors_of_six_steps_are_those_of_the_twin(classes: int) -> None:
    given, objective = problem(classes), EAT(l1_share=SHARE)
    memory, sums, drawn = (
        Memory(objective.state(images=N, classes=classes, batch=given.x.shape), torch.arange(N)),
        {},
        [],
    )
    for number in range(6):
        context = StepContext(moment=Moment(step=number), draws=draws(N), memory=memory)
        norm = "l1" if objective.draws_l1(context) else "linf"
        model, twin = copy.deepcopy(given.model), copy.deepcopy(given.model)
        x_adv = attack_twin(twin.eval(), given.x, given.y, norm)
        z = twin.train()(x_adv)
        loss = F.cross_entropy(z, given.y)
        loss.backward()
        terms = step(step_inputs(model, objective, ATTACK, given.x, given.y, context))
        torch.testing.assert_close(sum(terms.values()), loss.detach(), rtol=1e-6, atol=0)
        for mine, wanted in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-6, atol=1e-9)
        wrong = sum(int(row.argmax()) != int(label) for row, label in zip(z, given.y, strict=True))
        sums.setdefault(norm, []).append(wrong / N)
        drawn.append(norm)
    assert len(set(drawn)) == 2
    for row, norm in zip(memory.tensors["errors"].tolist(), ("linf", "l1"), strict=True):
        assert row == pytest.approx([sum(sums[norm]), len(sums[norm])])


@pytest.mark.parametrize(
    ("errors", "share"),
    [
        ([[6.0, 10.0], [2.0, 10.0]], 0.25),  # errors 0.6 and 0.2
        ([[1.0, 10.0], [9.0, 30.0]], 0.75),  # 0.1 and 0.3: means, not sums
        ([[5.0, 9.0], [0.0, 0.0]], 0.5),  # until both were seen
        ([[0.0, 9.0], [0.0, 9.0]], 0.5),  # nothing is broken
    ],
)
def test_a_norm_is_drawn_in_proportion_to_its_robust_error(errors: list[list[float]], share: float) -> None:
    memory, n = Memory({"errors": torch.tensor(errors)}, torch.arange(N)), 1000
    found = [EAT().draws_l1(StepContext(moment=Moment(step=k), draws=draws(N), memory=memory)) for k in range(n)]
    assert sum(found) / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)
    random.seed(0)  # as the authors draw: random.choices with weights 1 - accuracy
    weights = [total / max(count, 1) for total, count in errors]
    if min(count for _, count in errors) and sum(weights):
        theirs = random.choices(range(2), weights=weights, k=n)
        assert sum(theirs) / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)


def test_the_radius_for_cifar10_is_the_papers() -> None:
    recipe = make_recipe("e-at")
    memory = Memory({"errors": torch.tensor([[0.0, 1.0], [1.0, 1.0]])}, torch.arange(N))  # l_1 alone has errors
    attack = recipe.objective.attack(recipe.attack, StepContext(draws=draws(N), memory=memory))
    assert attack.func == recipe.objective.attack_in_l1
    pgd = recipe.objective.in_l1(recipe.attack, 3 * 32 * 32)
    assert (pgd.threat.norm, pgd.threat.epsilon, pgd.step_size) == ("l1", pytest.approx(12), pytest.approx(3))


def test_a_recipe_in_l1_alone_is_refused() -> None:
    with pytest.raises(RattleError, match=r"E-AT needs attack\.threat\.norm linf or l2, got l1"):
        make_recipe("e-at", norm="l1", epsilon=12.0, step_size=3.0)
