"""RobustLoss gives the gradients of the training step, RobustAccuracy the flags of evaluate, in plain loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

import rattle
from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.integrations import loop
from rattle.models import find_head
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams, derive_seed
from rattle.stats import wilson
from rattle.training.step import StepInputs, step


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


def batch(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


SAMPLED = rattle.Trades(taylor=rattle.Taylor(order=1, mode="sampled"))


@pytest.mark.parametrize("method", ["at", "trades-2nd", "mart", "trades-awp-1st", "at-sam", "n-fgsm", SAMPLED])
def test_the_gradient_is_that_of_the_training_step(method: str | rattle.Trades) -> None:
    criterion = rattle.RobustLoss(method, epsilon=0.1, steps=3, seed=5)
    criterion.calls = 2
    (x, y), model = batch(), network().train()
    twin = copy.deepcopy(model)
    if criterion.moved is None:
        criterion(model, x, y).backward()
    else:
        with criterion.awp(model, x, y) as loss:
            loss.backward()
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(twin, criterion.objective.needs, find_head(twin)),
        attack=criterion.attack,
        noise=criterion.noise,
        objective=criterion.objective,
        awp=criterion.moved,
        context=StepContext(draws=ImageStreams(derive_seed(5, loop.FOR_ATTACK, 2), torch.arange(len(x)))),
        shared=torch.Generator().manual_seed(derive_seed(5, loop.FOR_WEIGHTS, 2)),
    )
    step(given)
    torch.testing.assert_close(gradients(model), gradients(twin), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def test_under_autocast_awp_takes_its_loss_at_the_moved_weights() -> None:
    """Autocast keeps copies of the weights in half precision; they would not move."""
    (x, y), found = batch(), []
    for cache in (True, False):
        model = network().train()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            with rattle.RobustLoss("at-awp", epsilon=0.1, steps=2).awp(model, x, y) as loss:
                loss.backward()
            found.append((loss.detach(), model(x).detach()))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_loop_trains_and_its_state_resumes_the_draws() -> None:
    (x, y), model = batch(60), network()
    criterion = rattle.RobustLoss("trades-1st", epsilon=0.02, steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = criterion(model.train(), x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    again = rattle.RobustLoss("trades-1st", epsilon=0.02, steps=2)
    again.load_state_dict(criterion.state_dict())
    twin = copy.deepcopy(model)
    assert torch.equal(again(twin, x, y), criterion(model, x, y))
    assert again.calls == 31


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")  # torchmetrics says so too
def test_the_accuracy_is_that_of_evaluate_whatever_the_batches_and_the_mode() -> None:
    (x, y), model = batch(90), network().eval()
    with torch.no_grad():
        y = model(x).argmax(1)
    result = rattle.evaluate(model, x, y, "pgd10", epsilon=0.05)
    metric = rattle.RobustAccuracy("pgd10", epsilon=0.05)
    with torch.inference_mode():
        for part, labels in zip(x.split(40), y.split(40), strict=True):
            metric.update(model.train(), part * 1, labels)
    found = metric.compute()
    assert 0 < result.robust_accuracy < 1
    assert {name: round(float(value), 6) for name, value in found.items()} == {
        "clean": 1.0,
        "robust": round(result.robust_accuracy, 6),
        "low": round(wilson(sum(result.worst_case), 90).low, 6),
        "high": round(wilson(sum(result.worst_case), 90).high, 6),
        "n": 90.0,
    }
    assert model.training
    metric.reset()
    with pytest.raises(RattleError, match="has seen no images"):
        metric.compute()


def test_what_cannot_be_is_refused() -> None:
    for method, words in {"free": "needs a run", "lbgat": "needs a run", "tradez": "did you mean 'trades'"}.items():
        with pytest.raises(RattleError, match=words):
            rattle.RobustLoss(method)
    with pytest.raises(RattleError, match="a name such as 'trades' or an objective, got CrossEntropyLoss"):
        rattle.RobustLoss(nn.CrossEntropyLoss())  # type: ignore[arg-type]
    with pytest.raises(RattleError, match="has no AWP"), rattle.RobustLoss("at").awp(network(), *batch()):
        pass
    with pytest.raises(RattleError, match=r"must lie in \[0, 1\]"):
        rattle.RobustLoss("at")(network(), batch()[0] * 2, batch()[1])
