"""Calls of the public functions and classes with one or two arguments that are not as they should be."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import rattle
from support.tiny_runs import digits
from support.training import tiny

NUMBERS: list[Any] = [
    -1,
    0,
    1,
    3,
    0.5,
    10**6,
    10**9,
    10**30,
    float("nan"),
    float("inf"),
    "x",
    "0.1",
    None,
    [],
    True,
    torch.ones(2),
]
WORDS: list[Any] = ["", "x", "pgd3", "linf", "l2", "digits", "cnn", "../x", "a\x00b", "é", None, 3, b"x", ["cnn"]]


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Bends(nn.Module):
    """A network whose logits a function changes."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.body, self.change = network(), change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.body(x))


BENT: list[Callable[[torch.Tensor], Any]] = [
    lambda z: z * 1e39,  # infinite
    lambda z: z * float("nan"),
    lambda z: z.masked_fill(torch.arange(10) == 3, -torch.inf),
    lambda z: z.detach(),
    lambda z: z.round(),
    lambda z: z + torch.randn_like(z),
    lambda z: z - z.mean(0),  # depends on the batch
    lambda z: z[:1],
    lambda z: z.repeat(2, 1),
    lambda z: (z, z),
    lambda z: {"out": z},
    lambda z: z.long(),
]


def built_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return network()


class Endless(IterableDataset):
    """Images without end, and without a length."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while True:
            yield torch.zeros(1, 8, 8), 0


def odd_loader(rng: random.Random, x: torch.Tensor, y: torch.Tensor) -> Any:
    pairs: Any = list(zip(x, y.tolist(), strict=True))
    text: Any = [(image, "cat") for image in x]
    ragged: Any = [(image[:, : 4 + i], 0) for i, image in enumerate(x)]
    made = [Endless(), pairs, text, ragged, [], x.tolist()]
    given = rng.choice(made)
    return rng.choice([given, DataLoader(given, batch_size=rng.choice((1, 3, None)))])


def odd_model(rng: random.Random) -> Any:
    made: list[Any] = [
        network().half(),
        network().double(),
        network().to(torch.bfloat16),
        network().to("meta"),
        Bends(rng.choice(BENT)),
        Bends(rng.choice(BENT)),
        built_in_inference_mode(),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
        nn.Sequential(nn.Flatten(), nn.Linear(63, 10)),
        nn.Conv2d(1, 10, 3),
        nn.Flatten(),
        nn.Identity(),
        None,
        network,
        network().state_dict(),
        "cnn",
    ]
    return rng.choice(made)


def odd_images(rng: random.Random, x: torch.Tensor) -> Any:
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.uint8, torch.complex64]
    made: list[Any] = [
        *[x.to(kind) for kind in kinds],
        x[None],
        x[:0],
        x[:2],
        x - 2,
        x * float("nan"),
        x.numpy(),
        x.tolist(),
        None,
        x.to("meta"),
        x.to_sparse(),
        x.reshape(-1),
        x[:, :, :4],
        x.permute(0, 2, 3, 1),
        torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8),
        "images",
        {"x": x},
    ]
    return rng.choice(made)


def odd_labels(rng: random.Random, y: torch.Tensor) -> Any:
    made: list[Any] = [
        y.int(),
        y.short(),
        y.to(torch.uint8),
        y.bool(),
        y.float(),
        y[:, None],
        y[:2],
        y + 10,
        y - 20,
        y + 2**40,
        nn.functional.one_hot(y, 10),
        nn.functional.one_hot(y, 10).float(),
        nn.functional.one_hot(y, 12).float(),
        y.numpy(),
        y.tolist(),
        None,
        y.to("meta"),
        y.to_sparse(),
        "labels",
    ]
    return rng.choice(made)


def odd_delta(rng: random.Random, delta: dict[str, torch.Tensor]) -> Any:
    made: list[Any] = [
        {"x": torch.zeros(2)},
        {name: d[:1] for name, d in delta.items()},
        None,
        [],
        3,
        {"1.weight": 0.1},
    ]
    made += [{name: d.double() for name, d in delta.items()}, {name: d.to("meta") for name, d in delta.items()}, {}]
    made += [{name: d.half() for name, d in delta.items()}, {1: torch.zeros(1)}, torch.zeros(2)]
    return rng.choice(made)


ODD: dict[str, Callable[[random.Random, Any], Any]] = {
    "model": lambda rng, _: odd_model(rng),
    "x": odd_images,
    "x_adv": odd_images,
    "y": odd_labels,
    "delta": odd_delta,
    "gradients": odd_delta,
    "u": lambda rng, u: rng.choice([(), (odd_delta(rng, u[0]),), None, u[0]]),
    "data": lambda rng, d: rng.choice(
        [(odd_images(rng, d[0]), d[1]), (d[0], odd_labels(rng, d[1])), odd_loader(rng, *d), d[:1], "gone", 3, None]
    ),
}


def odd(rng: random.Random, name: str, value: Any) -> Any:
    """Something else in the place of an argument."""
    if name in ODD:
        return ODD[name](rng, value)
    return rng.choice(WORDS if isinstance(value, str) else NUMBERS)


def perturb(model: Any, delta: Any) -> None:
    with rattle.perturbed(model, delta):
        pass


def descend(value: torch.Tensor) -> None:
    if value.requires_grad:  # not of a model without weights
        value.backward()


def loss(objective: type, model: Any, x: Any, x_adv: Any, y: Any, **more: Any) -> None:
    descend(rattle.compute_loss(objective(), model, x, x_adv, y, **more))


def sampled_loss(model: Any, x: Any, x_adv: Any, y: Any, u: Any, mode: str) -> None:
    taylor = rattle.Taylor(order=2, mode=mode)  # type: ignore[arg-type]
    descend(rattle.compute_loss(rattle.Trades(taylor=taylor), model, x, x_adv, y, u=u))


def attack_of(rng: random.Random) -> Callable[..., Any]:
    """A short attack of any kind."""
    name, few = rng.choice(
        [("pgd2", {}), ("cw2", {}), ("apgd-ce", {"steps": 2}), ("fab-t", {"steps": 2}), ("square", {"queries": 2})]
    )
    return rattle.get_attack(name, rattle.Threat(epsilon=0.1), **few)


def climbing(kind: type) -> Callable[..., Any]:
    """AWP, SAM or ASAM made with settings and called with a model and its gradients."""
    return lambda model, gradients, **settings: kind(**settings)(model, gradients)


def python(rng: random.Random) -> None:
    """A public function or class is given arguments that it cannot take."""
    x, y, model = torch.rand(4, 1, 8, 8), torch.randint(10, (4,)), network()
    delta = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    batch = {"model": model, "x": x, "x_adv": x.clone(), "y": y}
    objectives = [
        rattle.AT,
        rattle.Trades,
        rattle.Mart,
        rattle.ALP,
        rattle.LabelSmoothing,
        rattle.S2OAT,
        rattle.S2OTrades,
    ]
    chosen = rng.choice(objectives)
    few = {"attacks": "fgsm", "epsilon": 0.1, "n": 4, "norm": "linf", "batch_size": 2, "seed": 0, "jobs": 1}
    recipe = tiny("at", batch_size=2, epochs=1)
    doors: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        *[(lambda **given: loss(chosen, **given), batch | {"head": "1"})] * 3,
        (
            sampled_loss,
            batch | {"u": (delta,), "mode": rng.choice(["exact", "sampled", "head"])},
        ),
        (perturb, {"model": model, "delta": delta}),
        (
            lambda model, sigma, scale: rattle.Noise(sigma=sigma, scale=scale)(model),
            {"model": model, "sigma": 0.1, "scale": "filter"},
        ),
        (climbing(rattle.AWP), {"model": model, "gradients": delta, "gamma": 0.1}),
        (climbing(rattle.SAM), {"model": model, "gradients": delta, "rho": 0.1}),
        (climbing(rattle.ASAM), {"model": model, "gradients": delta, "rho": 0.1}),
        (rattle.EMA, {"decay": 0.9, "start": 0.5}),
        (rattle.SWA, {"start": 0.5}),
        (rattle.Threat, {"norm": "linf", "epsilon": 0.1}),
        (rattle.Taylor, {"order": 2, "eta": 0.1, "mode": "head"}),
        (chosen, {}),
        (rattle.PGD, {"steps": 2, "step_size": 0.1, "restarts": 1, "loss": "ce", "start": "none"}),
        (
            lambda name, epsilon, **more: rattle.get_attack(name, rattle.Threat(epsilon=epsilon), **more),
            {"name": "apgd-ce", "epsilon": 0.1, "steps": 2, "rho": 0.5},
        ),
        *[(attack_of(rng), {"model": model, "x": x, "y": y})] * 3,
        (
            lambda model, x, y, **more: rattle.evaluate(model, x, y, **more),
            {
                "model": model,
                "x": x,
                "y": y,
                **{k: few[k] for k in ("attacks", "epsilon", "norm", "batch_size", "seed", "jobs")},
            },
        ),
        (lambda model, data, **more: rattle.benchmark(model, data, **more), {"model": model, "data": (x, y), **few}),
        (
            lambda model, data: rattle.fit(recipe, "fitted", model=model, data=data),
            {"model": model, "data": tuple(part[:8] for part in digits()[:2])},
        ),
        (
            lambda threads, batch_size: rattle.fit(replace(recipe, threads=threads, batch_size=batch_size), "fitted"),
            {"threads": 1, "batch_size": 64},
        ),
        (rattle.create_model, {"name": "cnn", "classes": 10, "channels": 1, "width": 4, "activation": "relu"}),
        (rattle.get_recipe, {"name": "digits-linf-cnn-at"}),
        (rattle.make_recipe, {"method": "trades-2nd", "epsilon": 0.1}),
        (rattle.load, {"path": "run", "averaged": True, "device": "cpu"}),
        (rattle.register_attack, {"name": "mine", "make": 3}),
        (rattle.register_model, {"name": "mine", "make": 3}),
    ]
    door, given = rng.choice(doors)
    for name in rng.sample(sorted(given), min(len(given), rng.choice((1, 1, 2)))):
        given[name] = odd(rng, name, given[name])
    door(**given)
