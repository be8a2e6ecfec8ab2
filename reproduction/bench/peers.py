"""Steps, PGD-20 and AutoAttack beside other packages, each as it comes, interleaved, in CPU seconds of one thread.

    pip install torchattacks foolbox adv-lib adversarial-robustness-toolbox pyautoattack
    OMP_NUM_THREADS=1 python -m reproduction.bench.peers --mair FOLDER --rounds 3

FOLDER is a checkout of MAIR (github.com/Harry24k/MAIR). Every ratio is a peer's time over ours in the same round, so
above 1 is slower than ours: median [quartiles]. ART's TRADES climbs the cross-entropy; the others climb the KL
divergence. Writes reproduction/results/bench-peers.json, in which parts that were not asked for stay.
"""

import argparse
import copy
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from rattle import load
from rattle.attacks import PGD, AutoAttack
from rattle.data.registry import Data
from rattle.inputs import floats_for, is_correct, to_float
from rattle.randomness import ImageStreams
from rattle.runs.io import write_atomically
from rattle.runs.source import environment
from rattle.threat import Threat
from reproduction.bench.cases import AUTHORS, PGD20, PUBLISHED, TEXTBOOK, evaluation, reference_step
from reproduction.bench.measure import Call, interleaved
from reproduction.bench.setup import Setup, Subject, library_step, prepare

RESULTS = Path(__file__).parents[1] / "results" / "bench-peers.json"
PACKAGES = ("torch", "torchattacks", "foolbox", "adv-lib", "adversarial-robustness-toolbox", "pyautoattack")
EPSILON, STEP = 8 / 255, 2 / 255
ZOO = ("digits-linf-cnn-at", "digits-linf-cnn-trades", "digits-linf-cnn-trades-2nd")
STAND_INS = (  # of MAIR's data sets, and of adv-lib's plots
    "torchvision",
    "torchvision.datasets",
    "torchvision.datasets.utils",
    "torchvision.transforms",
    "torchvision.utils",
    "visdom",
)


def stand_in() -> None:
    """Put empty modules in the place of missing ones that nothing measured here uses."""
    for name in STAND_INS:
        try:
            importlib.import_module(name)
        except Exception:  # torchvision for another torch raises at import
            sys.modules[name] = MagicMock()


def import_mair(folder: str) -> Any:
    sys.path.insert(0, folder)
    return importlib.import_module("mair")


def mair_step(subject: Subject, folder: str) -> Call:
    mair, setup = import_mair(folder), subject.setup
    model = mair.RobModel(copy.deepcopy(subject.plain), setup.classes)
    trainer = mair.TRADES(model, EPSILON, STEP, setup.steps, 6.0)
    trainer.setup(optimizer="SGD(lr=1e-6, momentum=0.9, weight_decay=5e-4)")
    batches = [(subject.x_plain, subject.y)]
    return lambda: trainer.fit(batches, 1, record_type=None, save_type=None)


def art_classifier(model: nn.Module, subject: Subject) -> Any:
    from art.estimators.classification import PyTorchClassifier

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4)
    about = {"input_shape": tuple(subject.x.shape[1:]), "nb_classes": subject.setup.classes, "clip_values": (0.0, 1.0)}
    return PyTorchClassifier(model, loss=nn.CrossEntropyLoss(), optimizer=optimizer, device_type="cpu", **about)


def art_step(subject: Subject) -> Call:
    from art.attacks.evasion import ProjectedGradientDescent
    from art.defences.trainer import AdversarialTrainerTRADESPyTorch

    classifier, n = art_classifier(copy.deepcopy(subject.plain), subject), len(subject.y)
    how = {"eps": EPSILON, "eps_step": STEP, "max_iter": subject.setup.steps, "num_random_init": 1}
    attack = ProjectedGradientDescent(classifier, **how, batch_size=n, verbose=False)
    trainer = AdversarialTrainerTRADESPyTorch(classifier, attack, beta=6.0)
    x, y = subject.x_plain.numpy(), subject.y.numpy()
    return lambda: trainer.fit(x, y, batch_size=n, nb_epochs=1)


def steps(subject: Subject, mair: str) -> dict[str, Call]:
    """A whole TRADES step; the authors' is compared with ours of the same terms."""
    found: dict[str, Call] = {"TRADES": library_step(subject, "trades")}
    found["TRADES 1st+2nd"] = library_step(subject, "trades-2nd")
    found["TRADES, bf16"] = library_step(replace(subject, setup=replace(subject.setup, precision="bf16")), "trades")
    found["TRADES, textbook"] = reference_step(subject, PUBLISHED)
    found["1st+2nd, authors' algorithm"] = reference_step(subject, AUTHORS)
    if mair:
        found["TRADES, MAIR"] = mair_step(subject, mair)
    found["TRADES, ART"] = art_step(subject)
    return found


def attacks(subject: Subject) -> dict[str, Call]:
    """PGD-20 in l_inf from a random start, the same settings everywhere."""
    import foolbox
    import torchattacks
    from adv_lib.attacks import pgd_linf
    from art.attacks.evasion import ProjectedGradientDescent

    x, y = subject.x_plain, subject.y
    found = {PGD20: ours(subject), TEXTBOOK: evaluation(subject, short=False)[TEXTBOOK]}
    models = [copy.deepcopy(subject.plain).eval() for _ in range(4)]
    their = torchattacks.PGD(models[0], eps=EPSILON, alpha=STEP, steps=20)
    found["torchattacks"] = lambda: their(x, y)
    boxed, pgd = foolbox.PyTorchModel(models[1], bounds=(0, 1)), foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=20)
    found["foolbox"] = lambda: pgd(boxed, x, y, epsilons=EPSILON)
    found["adv-lib"] = lambda: pgd_linf(models[2], x, y, EPSILON, steps=20, absolute_step_size=STEP)
    how = {"eps": EPSILON, "eps_step": STEP, "max_iter": 20, "num_random_init": 1, "batch_size": len(y)}
    art = ProjectedGradientDescent(art_classifier(models[3], subject), **how, verbose=False)
    found["ART"] = lambda: art.generate(x.numpy(), y=y.numpy())
    return found


def ours(subject: Subject) -> Call:
    """As `evaluate` calls it: images in the layout that the network takes."""
    model, attack = subject.fast.eval(), PGD(threat=Threat(epsilon=EPSILON), step_size=STEP, steps=20)
    return lambda: attack(model, floats_for(model, subject.x_plain), subject.y, generator=subject.streams())


def whole_attacks(name: str, n: int) -> tuple[dict[str, Call], Callable[[], dict[str, int]]]:
    """AutoAttack on a network of the zoo, here and there, and what they agreed on when both have run."""
    from pyautoattack.autoattack import AutoAttack as Reference

    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    test, model = Data(name="digits").load().test, load(f"zoo:{name}")
    x, y, threat = to_float(test.x[:n]), test.y[:n], Threat(epsilon=0.2)
    points: dict[str, Tensor] = {}

    def here() -> None:
        draws = ImageStreams(0, torch.arange(n))
        points["ours"] = AutoAttack(threat=threat)(model, x, y, generator=draws)

    def there() -> None:
        reference = Reference(model, norm="Linf", eps=threat.epsilon, seed=0, version="standard")
        points["theirs"] = reference.run_standard_evaluation(x, y, batch_size=n)[0]

    def verdicts() -> dict[str, int]:
        robust = {side: is_correct(model, found, y) for side, found in points.items()}
        same = int((robust["ours"] == robust["theirs"]).sum())
        return {"n": n, "robust": int(robust["ours"].sum()), "same_verdict": same}

    return {"ours": here, "pyautoattack": there}, verdicts


def compared(cases: dict[str, Call], base: dict[str, str], rounds: int) -> dict[str, Any]:
    """Seconds of every case, and its ratio to the case of ours that `base` names, the first where it names none."""
    for call in cases.values():
        call()  # allocates
    seconds = interleaved(cases, rounds=rounds, advance=lambda: None)
    first, found = next(iter(cases)), {}
    for name, timing in seconds.items():
        own = seconds[base.get(name, first)]["processor"]
        ratio = (timing["processor"] / own).summary()
        found[name] = {"seconds": timing["processor"].median, "rounds": timing["processor"].values, "ratio": ratio}
        print(f"{name:<30} {timing['processor'].median:8.2f} s  {timing['processor'] / own}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mair", default="", help="a checkout of MAIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, help="of PreAct-ResNet-18; as published when not given")
    parser.add_argument("--n", type=int, default=50, help="images of AutoAttack")
    parser.add_argument("--parts", nargs="+", default=["steps", "pgd", "autoattack"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    stand_in()
    about = {"rounds": given.rounds, "batch": given.batch, "environment": environment()}
    about["packages"] = {name: version(name) for name in PACKAGES}

    def keep(part: str, cases: dict[str, Any], **settings: Any) -> None:
        found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        found[part] = {**about, **settings, "cases": cases}
        write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())

    preact = Setup(model="preact18", width=given.width, batch=given.batch, device="cpu")
    if "steps" in given.parts:
        print(f"a training step, PreAct-18 of width {given.width or 64}, batch {given.batch}")
        base = {"1st+2nd, authors' algorithm": "TRADES 1st+2nd"}
        keep("steps", compared(steps(prepare(preact), given.mair), base, given.rounds), width=given.width or 64)
    if "pgd" in given.parts:
        for setup in (preact, Setup(model="cnn-plain", batch=given.batch, device="cpu")):
            print(f"PGD-20, {setup.model}, batch {given.batch}")
            keep(f"pgd20 {setup.model}", compared(attacks(prepare(setup)), {}, given.rounds), width=setup.width)
    if "autoattack" in given.parts:
        for name in ZOO:
            print(f"AutoAttack, {name}, n {given.n}")
            cases, verdicts = whole_attacks(name, given.n)
            begun = time.process_time()
            measured = compared(cases, {}, given.rounds)
            print(verdicts(), f"{time.process_time() - begun:.0f} s")
            keep(f"autoattack {name}", measured, **verdicts())


if __name__ == "__main__":
    main()
