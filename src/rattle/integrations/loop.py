"""A method and a robust accuracy in a loop of your own: Lightning, transformers, accelerate, timm or plain torch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rattle.attacks import Attack
from rattle.errors import RattleError
from rattle.evaluation.inputs import as_attack, as_threat
from rattle.inputs import check_batch, images_checked, is_correct
from rattle.objectives.base import Objective, StepContext
from rattle.objectives.loss import compute_loss
from rattle.objectives.registry import METHODS
from rattle.randomness import ImageStreams, derive_seed
from rattle.recipes.catalog import make_recipe
from rattle.runs import distributed
from rattle.stats import wilson
from rattle.threat import Norm
from rattle.weights import Noise, eval_mode, frozen_bn_stats, perturbed

try:
    from torchmetrics import Metric
except ImportError:
    Metric = None

FOR_WEIGHTS, FOR_ATTACK = range(2)  # purposes of a seed


class RobustLoss(nn.Module):
    """The loss of a method, called as `loss = criterion(model, x, y)`: draws u, attacks, computes (Algorithm 1).

    method: the end of a recipe's name, such as trades-2nd, or an objective. norm, epsilon: the perturbations to
    resist; steps, step_size: of the inner attack, the method's when not given. head: the name of the linear head that
    Taylor terms use, if it is not the last linear layer. seed: of u and the attacks' noise, which differ from call to
    call; the number of calls is in the state_dict. The images are in [0, 1]: normalise inside the model.

    >>> criterion = RobustLoss("trades", epsilon=4 / 255)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> criterion(model, torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])).backward()
    """

    def __init__(
        self,
        method: str | Objective = "trades",
        *,
        norm: Norm = "linf",
        epsilon: float | None = None,
        steps: int | None = None,
        step_size: float | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        name = method if isinstance(method, str) else name_of(method)
        recipe = make_recipe(name, norm=norm, epsilon=epsilon, step_size=step_size)
        self.objective, self.noise, self.moved = recipe.objective, recipe.noise, recipe.awp
        if isinstance(method, Objective):
            order = getattr(getattr(method, "taylor", None), "order", 0)
            self.objective, self.noise = method, Noise() if order else Noise(sigma=0)
        if self.objective.needs_run or self.objective.replays > 1:
            raise RattleError(f"{self.objective.title} needs a run: train it with rattle.fit")
        self.attack = recipe.attack if steps is None else replace(recipe.attack, steps=steps)
        self.head, self.seed, self.calls = head, seed, 0

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss, a scalar to call `.backward()` on; x in [0, 1], y classes or, for some methods, soft labels."""
        return self.loss(model, *self.attacked(model, x, y))

    @contextmanager
    def awp(self, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """`with criterion.awp(model, x, y) as loss: loss.backward()`: the loss at w + v, for methods that end in -awp,
        -sam or -asam. The weights are w again when the block ends, before the optimizer steps."""
        moved = self.moved
        if moved is None:
            raise RattleError("this RobustLoss has no AWP: name a method that ends in -awp, such as trades-awp")
        inputs, own = self.attacked(model, x, y), bare(model)
        v = moved(own, distributed.mean_over_ranks(moved.gradients(own, lambda: self.loss(own, *inputs))))
        try:
            with perturbed(own, v), frozen_bn_stats(own) if moved.holds_statistics else nullcontext():
                yield self.loss(model, *inputs)
        finally:
            torch.clear_autocast_cache()

    def attacked(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
        """x, x', y and what u is drawn from in the outer step."""
        x, y = check_batch(x, y, soft=True)
        own, n = bare(model), len(x)
        shared = torch.Generator().manual_seed(
            derive_seed(self.seed, FOR_WEIGHTS, self.calls)
        )  # the same u on every rank
        place = torch.arange(n, device=x.device) + n * distributed.rank()
        draws = ImageStreams(derive_seed(self.seed, FOR_ATTACK, self.calls), place)
        attack = self.objective.attack(self.attack, StepContext(draws=draws))
        with perturbed(own, self.noise.at("inner")(own, generator=shared)), images_checked():
            x_adv = attack(own, x, y, generator=draws)
        self.calls += 1
        return x, x_adv, y, shared

    def loss(self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, shared: torch.Generator) -> Tensor:
        """The outer minimisation, from images that were attacked already."""
        torch.clear_autocast_cache()  # copies of the weights in half precision do not move along with them
        draw = self.objective.needs.draw
        u = () if draw is None else (draw(self.noise.at("outer"), model, generator=shared.clone_state()),)
        with torch.inference_mode(False), torch.enable_grad():
            return compute_loss(self.objective, model, x, x_adv, y, head=self.head, u=u)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: Tensor) -> None:
        self.calls = int(state)


def name_of(objective: object) -> str:
    """The method whose inner attack goes with an objective."""
    for name, method in METHODS.items():
        if type(method.objective) is type(objective):
            return name
    raise RattleError(f"the method must be a name such as 'trades' or an objective, got {type(objective).__name__}")


def bare(model: nn.Module) -> nn.Module:
    """The module itself: attacks and AWP take gradients that ranks do not average."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class RobustAccuracy(Metric or nn.Module):  # type: ignore[misc]
    """Accuracy without and under an attack, over batches: a torchmetrics Metric where that is installed.

    attack: a name such as pgd20, or an attack. norm, epsilon: the threat of an attack given by name, linf 8/255 when
    not given. seed: of the attack's random draws. Works under `torch.inference_mode` and `no_grad`.

    >>> metric = RobustAccuracy("pgd5", epsilon=0.1)
    >>> metric.update(nn.Flatten(), torch.eye(3).view(3, 1, 3, 1), torch.arange(3))
    >>> {name: float(value) for name, value in metric.compute().items() if name in ("clean", "robust", "n")}
    {'clean': 1.0, 'robust': 1.0, 'n': 3.0}
    """

    full_state_update = False
    higher_is_better = True

    def __init__(
        self,
        attack: str | Attack = "pgd20",
        *,
        norm: Norm | None = None,
        epsilon: float | None = None,
        seed: int = 0,
        **metric: Any,  # settings of a torchmetrics Metric
    ) -> None:
        super().__init__(**metric)
        self.attack, self.seed = as_attack(attack, as_threat(None, norm, epsilon)), seed
        for name in ("clean", "robust", "n"):
            if Metric is not None:
                self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
            else:
                self.register_buffer(name, torch.tensor(0), persistent=False)

    def update(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Attack a batch; images in [0, 1], classes as labels."""
        x, y = check_batch(x, y)
        with eval_mode(model):
            correct = is_correct(model, x, y)
            robust = correct.clone()
            if correct.any():
                place = torch.arange(len(x), device=x.device)[correct] + int(self.n)
                x_adv = self.attack(model, x[correct], y[correct], generator=ImageStreams(self.seed, place))
                robust[correct] = is_correct(model, x_adv, y[correct])
        self.clean = self.clean + correct.sum().to(self.clean)
        self.robust = self.robust + robust.sum().to(self.clean)
        self.n = self.n + len(x)

    def compute(self) -> dict[str, Tensor]:
        """Clean and robust accuracy, the latter's 95 % interval (low, high), and n; over all ranks."""
        counts = torch.stack([self.clean, self.robust, self.n])
        if Metric is None:
            counts = distributed.sum_over_ranks(counts)
        clean, robust, n = counts.tolist()
        if not n:
            raise RattleError("RobustAccuracy has seen no images: call update(model, x, y) first")
        interval = wilson(robust, n)
        found = {"clean": clean / n, "robust": robust / n, "low": interval.low, "high": interval.high, "n": float(n)}
        return {name: torch.tensor(value) for name, value in found.items()}

    def reset(self) -> None:
        """Forget all batches."""
        if Metric is not None:
            super().reset()
        else:
            self.clean, self.robust, self.n = self.clean * 0, self.robust * 0, self.n * 0
