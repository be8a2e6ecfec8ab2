"""What `rattle doctor --device` checks: that a device computes what the CPU does, resumes, and how fast it trains."""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from rattle.attacks import get_attack
from rattle.data.registry import Data
from rattle.errors import first_line
from rattle.forward import PairedForward
from rattle.inputs import is_correct, to_float
from rattle.models import find_head
from rattle.objectives.base import StepContext
from rattle.paper.cost import new_state, one_step, seconds_of
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import digest, read_checkpoint
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole
from rattle.threat import Threat
from rattle.training.loop import fit
from rattle.training.metrics import FlopCounter, peak_flops
from rattle.training.step import StepInputs, step
from rattle.weights import Noise

ZOO, RECIPE = "zoo:digits-linf-cnn-trades-2nd", "digits-linf-cnn-trades-2nd"
THREAT = Threat(epsilon=0.2)
VERDICTS = ("pgd20", "cw20", "apgd-ce", "fab-t")
STEP_TOLERANCE = 1e-2  # relative, of a step's gradient: rounding moves a few pixels of x' by a whole step
CLOSE = 1e-3  # relative, of weights trained on one and on two ranks
STRENGTH = 0.02  # robust accuracy that an attack in bf16 may leave more


@dataclass(frozen=True)
class Finding:
    """What a check found; passed is None where it could not be made, or is no test."""

    passed: bool | None
    detail: str


class Stop(Exception):
    """Ends a run that will be resumed."""


class StopAfterOne(NullConsole):
    """Stops training after its first epoch."""

    def log(self, line: str) -> None:
        if line.startswith("epoch 1"):
            raise Stop


def findings(device: torch.device) -> Iterator[tuple[str, Finding]]:
    """Every check by its name, as it ends."""
    checks: dict[str, Callable[[torch.device], Finding]] = {
        "a step, beside the CPU's": check_step,
        "verdicts, beside the CPU's": check_verdicts,
        "no synchronisation in a step": check_waiting,
        "resume, bit for bit": check_resume,
        "attack in bf16": check_bf16,
        "AutoAttack, 50 images": check_autoattack,
        "two ranks": check_ranks,
    }
    for name, check in checks.items():
        try:
            yield name, check(device)
        except Exception as reason:  # a report names what fails and continues
            yield name, Finding(False, f"{type(reason).__name__}: {first_line(reason)}")
    yield from speeds(device)


def zoo_digits(device: torch.device, n: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of the zoo, test images and their labels, on the device."""
    test = Data(name="digits").load().test
    return load(ZOO).to(device), to_float(test.x[:n]).to(device), test.y[:n].to(device)


def gradient_of_a_step(device: torch.device) -> Tensor:
    """The gradient of a TRADES 1st+2nd step on 32 images, as one vector on the CPU."""
    model, x, y = zoo_digits(device, 32)
    recipe = get_recipe(RECIPE)
    model.train()
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, recipe.objective.needs, find_head(model)),
        attack=recipe.attack,
        noise=Noise(sigma=0),  # each kind of device draws its own u
        objective=recipe.objective,
        context=StepContext(draws=ImageStreams(0, torch.arange(len(y), device=device))),
        shared=torch.Generator().manual_seed(0),
    )
    step(given)
    return torch.cat([p.grad.cpu().flatten() for p in model.parameters() if p.grad is not None])


def check_step(device: torch.device) -> Finding:
    here, there = gradient_of_a_step(torch.device("cpu")), gradient_of_a_step(device)
    error = float((here - there).norm() / here.norm())
    return Finding(
        error <= STEP_TOLERANCE, f"gradients differ by {error:.1e} of their length (at most {STEP_TOLERANCE:g})"
    )


def robust_flags(name: str, device: torch.device, n: int, *, bf16: bool = False) -> Tensor:
    """Which images of the digits an attack leaves correctly classified, [n] bool; bf16: it runs under autocast."""
    model, x, y = zoo_digits(device, n)
    draws = ImageStreams(0, torch.arange(n, device=device))
    with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
        x_adv = get_attack(name, THREAT)(model, x, y, generator=draws)
    return is_correct(model, x_adv.float(), y).cpu()


def check_verdicts(device: torch.device, n: int = 100, names: tuple[str, ...] = VERDICTS) -> Finding:
    counts = []
    for name in names:
        differ = robust_flags(name, torch.device("cpu"), n) != robust_flags(name, device, n)
        counts.append(int(differ.sum()))
    detail = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    return Finding(max(counts) <= 1, f"images of {n} whose verdict differs (rounding may move 1): {detail}")


def check_waiting(device: torch.device) -> Finding:
    if device.type != "cuda":
        return Finding(None, "torch reports it on CUDA alone")
    state = new_state(timed_recipe(device))
    run = one_step(state)
    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Finding(True, "none")


def short_run(device: torch.device) -> Recipe:
    recipe = get_recipe(RECIPE)
    data = replace(recipe.data, train_size=192, val_size=20)
    attack, val_attack = replace(recipe.attack, steps=2), replace(recipe.val_attack, steps=2)
    sizes = {"epochs": 2, "batch_size": 64, "width": 4}
    return replace(
        recipe, data=data, attack=attack, val_attack=val_attack, device=str(device), deterministic=True, **sizes
    )


def check_resume(device: torch.device) -> Finding:
    recipe = short_run(device)
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        fit(recipe, whole, log="none", quiet=True)
        try:
            fit(recipe, parts, log="none", console=StopAfterOne())
        except Stop:
            fit(recipe, parts, log="none", quiet=True, resume=True)
        equal = weights_digest(whole) == weights_digest(parts)
    return Finding(equal, "2 epochs, stopped after the first, beside a run never stopped")


def weights_digest(folder: Path) -> str:
    return digest(read_checkpoint(Run(folder).checkpoint("last")).tensors, {})


def check_bf16(device: torch.device) -> Finding:
    n = 300
    full, half = (float(robust_flags("pgd20", device, n, bf16=bf16).float().mean()) for bf16 in (False, True))
    detail = f"PGD-20 leaves {100 * half:.1f} % in bf16, {100 * full:.1f} % in float32 (n {n})"
    return Finding(half <= full + STRENGTH, detail)


def check_autoattack(device: torch.device) -> Finding:
    n = 50
    ours = robust_flags("autoattack", device, n)
    if find_spec("pyautoattack") is not None:
        from pyautoattack.autoattack import AutoAttack as Reference

        model, x, y = zoo_digits(device, n)
        logging.getLogger("auto-attack").setLevel(logging.ERROR)
        reference = Reference(model, norm="Linf", eps=THREAT.epsilon, seed=0, version="standard", device=device)
        x_adv, _ = reference.run_standard_evaluation(x, y, batch_size=n)
        theirs, name = is_correct(model, x_adv, y).cpu(), "pyautoattack"
    elif device.type == "cpu":
        return Finding(None, "needs pyautoattack to compare with: pip install 'rattle-robust[dev]'")
    else:
        theirs, name = robust_flags("autoattack", torch.device("cpu"), n), "the CPU"
    differ = int((ours != theirs).sum())
    detail = f"{differ} of {n} verdicts differ from those of {name}; robust {int(ours.sum())} and {int(theirs.sum())}"
    return Finding(differ <= 1, detail)


def check_ranks(device: torch.device) -> Finding:
    """A network without BatchNorm trained by two processes, beside one: the same weights up to rounding."""
    if device.type != "cpu" and torch.accelerator.device_count() < 2:
        return Finding(None, "there is one device")
    recipe = replace(short_run(device), model="cnn-plain", device="cpu" if device.type == "cpu" else "auto")
    with tempfile.TemporaryDirectory() as folder:
        file, one, two = (Path(folder) / name for name in ("recipe.yaml", "one", "two"))
        file.write_text(recipe.to_yaml())
        fit(recipe, one, log="none", quiet=True)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        train = ["-m", "rattle", "train", str(file), "--out", str(two)]
        done = subprocess.run([*torchrun, *train], capture_output=True, text=True)
        if done.returncode:
            return Finding(False, (done.stderr.strip().splitlines() or ["no message"])[-1])
        here, there = (vector(run) for run in (one, two))
    error = float((here - there).norm() / here.norm())
    return Finding(error <= CLOSE, f"weights differ by {error:.1e} of their length from one process's")


def vector(folder: Path) -> Tensor:
    """The weights that a run ended with."""
    return torch.cat(
        [value.float().flatten() for value in read_checkpoint(Run(folder).checkpoint("last")).part("model").values()]
    )


def timed_recipe(device: torch.device) -> Recipe:
    """What is timed: the paper's network and batch on an accelerator, a small one on a CPU."""
    if device.type == "cpu":
        return replace(get_recipe("cifar10-linf-cnn-trades-2nd"), width=8, batch_size=32, device="cpu")
    return replace(get_recipe("cifar10-linf-preact18-trades-2nd"), device=str(device))


def speeds(device: torch.device) -> Iterator[tuple[str, Finding]]:
    """Images a second of a TRADES 1st+2nd step, in each layout, precision and with torch.compile."""
    recipe = timed_recipe(device)
    flop = step_flop(recipe)
    network = f"{recipe.model}, batch {recipe.batch_size}"
    peak = peak_flops(device)
    for name, changes, layout in (
        ("channels last", {}, torch.channels_last),
        ("contiguous", {}, torch.contiguous_format),
        ("channels last, bf16", {"precision": "bf16"}, torch.channels_last),
        ("channels last, compiled", {"compile": True}, torch.channels_last),
    ):
        try:
            state = new_state(replace(recipe, **changes))
            state.layout = layout
            state.model.to(memory_format=layout)  # type: ignore[call-overload]
            run = one_step(state)
            taken = [seconds_of(run) for _ in range(7)]
            rate = recipe.batch_size / median(taken[2:])  # the first two compile and allocate
        except Exception as reason:  # no compiler, no bf16
            yield f"{network}, {name}", Finding(None, f"not here: {first_line(reason)}")
            continue
        done = rate * flop
        share = f", {100 * done / peak:.0f} % of the peak in bf16" if peak else ""
        yield f"{network}, {name}", Finding(None, f"{rate:.0f} images/s, {done / 1e12:.3g} TFLOP/s{share}")


def step_flop(recipe: Recipe) -> float:
    """Floating-point operations of a step, an image."""
    run = one_step(new_state(recipe))
    with FlopCounter() as counted:
        run()
    return counted.total / recipe.batch_size
