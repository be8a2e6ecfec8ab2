"""AutoAttack, ours against the reference authors' pyautoattack: flags, robust accuracy, seconds and peak memory.

    python -m reproduction.autoattack CACHE --cifar10 cifar10.npz --n 200 --seeds 0 1 2 --out autoattack.json

CACHE holds the adversarially trained models (trained here when missing). cifar10.npz holds uint8 arrays x_train and
x_test [n, 32, 32, 3], y_train and y_test [n]. Every component of both runs right after the other, on the images that
its own predecessors left unbroken, so that whatever else the machine does falls on both. On a machine that others use
too, compare processor seconds, and set OMP_WAIT_POLICY=PASSIVE so that threads do not spin while they wait.

`--networks FILE.py:FUNCTION ... --epsilon 0.03` attacks networks of your own in place of these, what FUNCTION()
returns, on the test images of --cifar10. `--passes` runs ours once more, untimed, on a network that counts; the
reference's passes are always counted. `--apart` gives the reference a process of its own, with the memory allocator as
it comes, and ours the kept memory of its commands; otherwise both share this process and its settings. `--only apgd-t
apgd-t-linearised` runs these attacks of ours alone, counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pyautoattack.autoattack import AutoAttack as Reference
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD, AutoAttack
from rattle.attacks.base import attack_mode
from rattle.attacks.registry import get_attack
from rattle.attacks.rows import FlatModel, spawn
from rattle.cli.main import keep_memory
from rattle.data.registry import Data, batches
from rattle.inputs import to_float
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from reproduction import linearised as linearised  # registers apgd-t-linearised
from reproduction.bench.passes import Counted

EPSILON = {"digits": 0.2, "cifar10": 2 / 255, "cifar10-wide": 6 / 255}
COMPONENTS = ("apgd-ce", "apgd-t", "fab-t", "square")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """Three residual blocks; by default at half resolution and narrow, so that attacks, not convolutions, take time."""

    def __init__(self, classes: int = 10, width: int = 8, stride: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def train(model: nn.Module, x: Tensor, y: Tensor, attack: PGD, *, epochs: int, batch: int, rate: float) -> None:
    """Adversarial training (Madry et al. 2018), one cycle of the learning rate, random flips for colour images."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=len(x) // batch * epochs)
    for epoch in range(epochs):
        loss = torch.zeros(())
        for index in batches(len(x), batch, seed=0, epoch=epoch):
            images, labels = to_float(x[index]), y[index]
            if x.shape[1] == 3 and torch.rand(()) < 0.5:
                images = images.flip(3).contiguous(memory_format=torch.channels_last)
            x_adv = attack(model, images, labels)
            loss = F.cross_entropy(model.train()(x_adv), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cycle.step()
        print(f"  epoch {epoch + 1}/{epochs}: loss {loss.item():.3f}", flush=True)


def digits() -> tuple[nn.Module, Callable[[nn.Module], None], Tensor, Tensor]:
    data = Data().load()
    attack = PGD(threat=Threat(epsilon=0.2), steps=7, step_size=0.05)
    fit = lambda model: train(model, data.train.x, data.train.y, attack, epochs=30, batch=64, rate=0.1)  # noqa: E731
    return create_model("cnn", classes=10, channels=1, width=32), fit, data.test.x, data.test.y


def resnet(name: str) -> SmallResNet:
    """`cifar10`, and `cifar10-wide` of some fifteen times the work, where the network takes most of the time."""
    return SmallResNet() if name == "cifar10" else SmallResNet(width=16, stride=1)


def own_network(name: str, options: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """What the function of a file returns, and the first n test images."""
    file, _, function = name.rpartition(":")
    model = runpy.run_path(file)[function]()
    arrays = np.load(options.cifar10)
    x, y = torch.from_numpy(arrays["x_test"][: options.n]), torch.from_numpy(arrays["y_test"][: options.n])
    return model.eval(), to_float(x.permute(0, 3, 1, 2)).contiguous(), y.long()


def cifar10(name: str, path: Path) -> tuple[nn.Module, Callable[[nn.Module], None], Tensor, Tensor]:
    arrays = np.load(path)
    x, x_test = (torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2) for part in ("train", "test"))
    y, y_test = (torch.from_numpy(arrays[f"y_{part}"]).long() for part in ("train", "test"))
    attack = PGD(threat=Threat(epsilon=4 / 255), steps=2, step_size=3 / 255)
    fit = lambda model: train(model, x[:20000], y[:20000], attack, epochs=12, batch=128, rate=0.2)  # noqa: E731
    return resnet(name), fit, x_test, y_test


def load(name: str, options: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """The trained model, and the first n test images in [0, 1], contiguous as most users hold them."""
    torch.manual_seed(0)
    model, fit, x, y = digits() if name == "digits" else cifar10(name, options.cifar10)
    path = options.cache / f"{name}.pt"
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
    else:
        print(f"training {name}", flush=True)
        fit(model)
        options.cache.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    return model.eval(), to_float(x[: options.n]).contiguous(), y[: options.n]


def reference(model: nn.Module, threat: Threat, seed: int, *, short: bool = False) -> dict[str, Callable[..., Tensor]]:
    """The reference's standard components; `short` runs few steps, enough for its peak memory."""
    norm: Any = {"linf": "Linf", "l2": "L2", "l1": "L1"}[threat.norm]
    whole = Reference(model, norm=norm, eps=threat.epsilon, seed=seed, version="standard")
    whole.apgd.loss, whole.fab.targeted = "ce", True
    parts = {"apgd-ce": whole.apgd, "apgd-t": whole.apgd_targeted, "fab-t": whole.fab, "square": whole.square}
    for part in parts.values():
        part.seed = seed
        if short:
            part.n_iter, part.n_queries, part.n_target_classes = 3, 5, 2
    return {name: torch.no_grad()(part.perturb) for name, part in parts.items()}


def ours(threat: Threat, seed: int, index: Tensor, model: nn.Module) -> dict[str, Callable[..., Tensor]]:
    def runner(number: int, attack: Any) -> Callable[..., Tensor]:
        return lambda x, y, rows: attack(model, x, y, generator=spawn(ImageStreams(seed, index)[rows], number))

    return {name: runner(k, attack) for k, (name, attack) in enumerate(AutoAttack(threat=threat).components().items())}


def robust(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.contiguous()).argmax(1) == y


def ratio(seconds: dict[str, dict[str, float]], component: str | None = None) -> float:
    """How many times longer the reference took, for one component or all."""
    parts = [component] if component else list(COMPONENTS)
    return sum(seconds["reference"][p] for p in parts) / max(sum(seconds["ours"][p] for p in parts), 1e-9)


Timed = tuple[Tensor, float, float, dict[str, int]]  # adversarial images, wall seconds, processor seconds, passes


class Timer:
    """The reference's components on a network, timed and counted."""

    def __init__(self, model: nn.Module, threat: Threat, seed: int) -> None:
        self.model = Counted(model)
        self.parts = reference(self.model, threat, seed)

    def __call__(self, component: str, x: Tensor, y: Tensor) -> Timed:
        self.model.tally.forward = self.model.tally.backward = 0
        return *timed(self.parts[component], x, y), asdict(self.model.tally)


def timed(attack: Callable[..., Tensor], *args: Tensor) -> tuple[Tensor, float, float]:
    begin, begin_work = time.perf_counter(), time.process_time()
    x_adv = attack(*args)
    return x_adv, time.perf_counter() - begin, time.process_time() - begin_work


def begin_apart(name: str, options: argparse.Namespace, threat: Threat, seed: int) -> None:
    """In the reference's own process: load the network once."""
    global timer
    torch.set_num_threads(options.threads)
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    timer = Timer((own_network if options.networks else load)(name, options)[0], threat, seed)


def attack_apart(component: str, x: Tensor, y: Tensor) -> Timed:
    return timer(component, x, y)


def pass_seconds(model: nn.Module, x: Tensor, rounds: int = 9) -> tuple[float, float]:
    """Processor seconds of an image's pass, and of one forward and back to the image, as our attacks run them."""
    spent: tuple[list[float], list[float]] = ([], [])
    with attack_mode(model):
        network = FlatModel(model, x)
        rows = network.flat(x[:64])
        for _ in range(rounds):
            with torch.no_grad():
                spent[0].append(timed(network.logits, rows)[2] / len(rows))
            leaf = rows.clone().requires_grad_()
            back = lambda leaf: torch.autograd.grad(network.logits(leaf).sum(), leaf)[0]  # noqa: E731
            spent[1].append(timed(back, leaf)[2] / len(rows))
    return median(spent[0]), median(spent[1])


def compare(
    name: str, x: Tensor, y: Tensor, model: nn.Module, threat: Threat, seed: int, options: argparse.Namespace
) -> Any:
    """Both, component by component; each on what its own earlier components left."""
    if not options.apart:
        return compare_with(Timer(model, threat, seed), x, y, model, threat, seed, options)
    arguments = (name, options, threat, seed)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=begin_apart, initargs=arguments) as other:
        wait = lambda *args: other.submit(attack_apart, *args).result()  # noqa: E731
        return compare_with(wait, x, y, model, threat, seed, options)


def compare_with(
    theirs: Callable[[str, Tensor, Tensor], Timed],
    x: Tensor,
    y: Tensor,
    model: nn.Module,
    threat: Threat,
    seed: int,
    options: argparse.Namespace,
) -> Any:
    index, asked, sides = torch.arange(len(x)), Counted(model), ("ours", "reference")
    attacks, again = ours(threat, seed, index, model), ours(threat, seed, index, asked)
    clean = robust(model, x, y)
    flags = {who: clean.clone() for who in sides}
    seconds, work, accuracy, passes = ({who: {} for who in sides} for _ in range(4))
    for component in COMPONENTS:
        for who in sides:
            left = flags[who].nonzero().squeeze(1).split(options.batch)
            wall, processor, tally = 0.0, 0.0, {"forward": 0, "backward": 0}
            for rows in left:
                images, labels = x[rows].clone(), y[rows].clone()
                if who == "ours":
                    x_adv, *spent = timed(attacks[component], images, labels, rows)
                else:
                    x_adv, *spent, asked_for = theirs(component, images, labels)
                    tally = {kind: tally[kind] + asked_for[kind] for kind in tally}
                wall, processor = wall + spent[0], processor + spent[1]
                if not bool(threat.contains(x_adv, x[rows]).all()):
                    raise SystemExit(f"{who} {component}: a point left the ball")
                flags[who][rows] = robust(model, x_adv, y[rows])
            seconds[who][component], work[who][component] = wall, processor
            accuracy[who][component] = float(flags[who].double().mean())
            if who == "reference":
                passes[who][component] = tally
            elif options.passes:
                passes[who][component] = count(
                    asked, lambda rows, run=again[component]: run(x[rows], y[rows], rows), left
                )
        line = f"    {component:8s}"
        for who in sides:
            line += f" {who} {accuracy[who][component]:7.2%} {seconds[who][component]:6.1f} s"
            line += f" ({work[who][component]:6.1f} s of processor, {passes[who].get(component)})  "
        print(line + f"x{ratio(seconds, component):.2f} (x{ratio(work, component):.2f})", flush=True)
    agreement = float((flags["ours"] == flags["reference"]).double().mean())
    forward, both = pass_seconds(model, x[clean])
    passes_alone = {
        component: asked_for["backward"] * both + (asked_for["forward"] - asked_for["backward"]) * forward
        for component, asked_for in passes["reference"].items()
    }
    print(f"    the reference's passes alone, as fast as ours: {passes_alone}", flush=True)
    print(f"    all      x{ratio(seconds):.2f} (x{ratio(work):.2f}), same result on {agreement:.2%}", flush=True)
    return {
        "seed": seed,
        "clean": float(clean.double().mean()),
        "seconds": seconds,
        "processor_seconds": work,
        "accuracy": accuracy,
        "passes": passes,
        "processor_seconds_of_passes": passes_alone,
        "ratio": ratio(seconds),
        "processor_ratio": ratio(work),
        "agreement": agreement,
    }


def count(asked: Counted, attack: Callable[[Tensor], Tensor], left: tuple[Tensor, ...]) -> dict[str, int]:
    """What an attack on these images asks of the network."""
    asked.tally.forward = asked.tally.backward = 0
    for rows in left:
        attack(rows)
    return asdict(asked.tally)


def alone(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int, names: list[str]) -> dict[str, Any]:
    """Attacks of ours by name, each on all images and alone: robust accuracy, passes, flags against the first one's."""
    found: dict[str, Any] = {}
    first = torch.zeros_like(y, dtype=torch.bool)
    for name in names:
        asked = Counted(model)
        begin = time.process_time()
        x_adv = get_attack(name, threat)(asked, x, y, generator=ImageStreams(seed, torch.arange(len(x))))
        flags, work = robust(model, x_adv, y), time.process_time() - begin
        first = first if found else flags
        found[name] = {"robust": float(flags.double().mean()), **asdict(asked.tally), "processor_seconds": work}
        found[name]["agreement"] = float((flags == first).double().mean())
        print(f"    {name}: {found[name]}", flush=True)
    return found


def high_water() -> float:
    """This process's peak memory so far, in megabytes; ru_maxrss would begin at the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def peak(options: argparse.Namespace) -> None:
    """Print the megabytes that one short run of one component adds to this process's peak (Linux).

    Two images go first: what a first call imports and traces is a few megabytes, however many images follow.
    """
    who, name, component = options.peak
    model = create_model("cnn", classes=10, channels=1, width=32) if name == "digits" else resnet(name)
    model.eval().load_state_dict(torch.load(options.cache / f"{name}.pt", weights_only=True))
    x, y = torch.load(options.cache / f"{name}-images.pt", weights_only=True)
    threat = Threat(epsilon=EPSILON[name])
    rows = robust(model, x, y).nonzero().squeeze(1)
    attack: Any = AutoAttack(threat=threat).components()[component]
    short = replace(attack, queries=5) if component == "square" else replace(attack, steps=3)
    run = partial(short, model) if who == "ours" else reference(model, threat, 0, short=True)[component]
    run(x[rows[:2]], y[rows[:2]])
    before = high_water()
    run(x[rows], y[rows])
    print(high_water() - before)


def peaks(name: str, x: Tensor, y: Tensor, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Peak memory of each component in a process of its own, the whole set as one batch."""
    torch.save((x, y), options.cache / f"{name}-images.pt")
    common = [sys.executable, __file__, str(options.cache), "--threads", str(options.threads)]
    result: dict[str, dict[str, float]] = {"ours": {}, "reference": {}}
    for who, found in result.items():
        for component in COMPONENTS:
            command = [*common, "--peak", who, name, component]
            found[component] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"  peak megabytes: {result}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cache", type=Path, help="folder of the trained models")
    parser.add_argument("--cifar10", type=Path, help="cifar10.npz")
    parser.add_argument("--models", nargs="+", choices=tuple(EPSILON), default=["digits", "cifar10"])
    parser.add_argument("--networks", nargs="+", default=[], help="FILE.py:FUNCTION, in place of --models")
    parser.add_argument("--passes", action="store_true", help="count ours' passes too")
    parser.add_argument(
        "--only", nargs="+", default=[], help="names of our attacks to run alone and count, no reference"
    )
    parser.add_argument("--n", type=int, default=200, help="test images")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--norm", choices=("linf", "l2", "l1"), default="linf")
    parser.add_argument("--epsilon", type=float, help="instead of the model's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--apart", action="store_true", help="the reference in a process of its own, as it comes")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    if options.peak:
        peak(options)
        return
    if options.apart:
        keep_memory()
    results: dict[str, Any] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    results |= {"threads": options.threads, "n": options.n, "batch": options.batch, "norm": options.norm}
    results |= {"apart": options.apart, "models": {}}
    for name in options.networks or options.models:
        if name != "digits" and not options.cifar10:
            raise SystemExit(f"{name} needs --cifar10 FILE")
        model, x, y = own_network(name, options) if options.networks else load(name, options)
        path, name = name, name.rpartition(":")[2]
        threat = Threat(norm=options.norm, epsilon=options.epsilon or EPSILON[name])
        entry: dict[str, Any] = {"epsilon": threat.epsilon, "runs": []}
        results["models"][name] = entry
        if options.memory:
            entry["peak_megabytes"] = peaks(name, x, y, options)
        for seed in options.seeds:
            print(f"  {name}, {threat.norm} {threat.epsilon:.4f}, seed {seed}", flush=True)
            only = options.only
            run = alone(model, x, y, threat, seed, only) if only else compare(path, x, y, model, threat, seed, options)
            entry["runs"].append(run)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
