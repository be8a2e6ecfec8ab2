"""rattle evaluate: attack a run, a checkpoint or any model, store the verdicts, print the table."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from rattle import distributed
from rattle.attacks import Attack, named
from rattle.checkpoint import write_atomically
from rattle.console import Console, Silent
from rattle.errors import RattleError
from rattle.evaluation import Evaluation, curve, evaluate, share, verify
from rattle.tables import accuracy_row, percent, print_table
from rattle.targets import Target, foreign_target, saved_target
from rattle.threat import Norm, Threat
from rattle.verbs.options import parse
from rattle.verdicts import clear, load_images


@dataclass(frozen=True)
class ThreatOptions:
    """The threat to evaluate under; what the run was trained for, else linf 8/255, when not given."""

    norm: Norm | None = None
    epsilon: float | None = None

    def over(self, threat: Threat) -> Threat:
        given = {"norm": self.norm, "epsilon": self.epsilon}
        return replace(threat, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Options:
    """Attack a trained model: verdicts go to results/ATTACK.json of its run folder, a table to the terminal.
    An interrupted evaluation goes on where it stopped when the same command is given again."""

    path: Annotated[str, tyro.conf.Positional] = ""  # a run folder or a checkpoint file; or use --model
    attacks: tuple[str, ...] = (
        "pgd20",
        "cw20",
    )  # fgsm, pgdK, cwK, apgd-ce, apgd-t, fab-t, square, autoattack, rays ...
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # the first n test images; all when not given
    model: str = ""  # a network's name, or FILE.py:build, to evaluate without a run
    weights: str | None = None  # its weights, as rattle or other people's code saves them
    width: int | None = None  # of a named network; the published width when not given
    data: str | None = None  # other images: a dataset's name, FILE.npz, a folder
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilons: tuple[float, ...] = ()  # also a curve: robust accuracy at each of these, for the first attack
    save_adversarial: bool = False  # keep the images that broke the model, as results/ATTACK-adversarial.npz
    verify: str = ""  # check such a file against the model instead of attacking
    raw: bool = False  # the raw weights of a run that averages them
    batch_size: int = 250
    seed: int = 0  # of the attacks' random draws
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "evaluate")
    with distributed.joined():
        target = target_of(options)
        threat = options.threat.over(target.threat)
        if options.verify:
            check_saved(options, target, threat)
        else:
            attack_target(options, target, {name: named(name, threat) for name in options.attacks})


def target_of(options: Options) -> Target:
    if bool(options.path) == bool(options.model):
        raise RattleError("say what to evaluate: a run or checkpoint, or --model NAME --weights FILE --data NAME")
    if options.path:
        return saved_target(options.path, data=options.data, averaged=not options.raw)
    data = options.data or "cifar10"
    return foreign_target(options.model, options.weights, data, root=options.data_root, width=options.width)


def attack_target(options: Options, target: Target, attacks: dict[str, Attack]) -> None:
    """Evaluate, store, print."""
    images, folder = target.images(options.n), Path(options.out) if options.out else target.results
    console = Console() if distributed.main() else Silent()
    settings = {"batch_size": options.batch_size, "seed": options.seed, "store": folder, "console": console}
    result = evaluate(
        target.model, images.x, images.y, attacks, advise=True, save_adversarial=options.save_adversarial, **settings
    )
    told = target.about | {"seed": options.seed}
    points = []
    if options.epsilons:
        first, attack = next(iter(attacks.items()))
        points = curve(target.model, images.x, images.y, first, attack.threat, options.epsilons, **settings)
        told["curve"] = {"attack": first, "points": [{"epsilon": e, **share("robust", f)} for e, f in points]}
    if not distributed.main():
        return
    store(result, told, folder)
    for sentence in result.advice:
        print(f"advice: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps(told | result.to_plain()))
        return
    title = f"{len(images)} images, {describe_threats(attacks)}"
    print_table(["model", "clean", *attacks], [accuracy_row(target.name, result)], title=title)
    for name, verdict in result.verdicts.items():
        if verdict.parts:
            rows = [[part, percent(flags)] for part, flags in verdict.parts.items()]
            print_table(["after", "robust"], rows, title=f"{name}, part by part")
        if verdict.distances:
            print(f"{name}: ADBD {sum(verdict.distances) / len(verdict.distances):.4f} (mean l_inf distance found)")
    if points:
        rows = [[f"{epsilon:.4g}", percent(flags)] for epsilon, flags in points]
        print_table(["epsilon", "robust"], rows, title=f"{options.attacks[0]} against epsilon")
    print(f"verdicts are in {folder}")


def describe_threats(attacks: dict[str, Attack]) -> str:
    threat = next(iter(attacks.values())).threat
    return f"{threat.norm} epsilon {threat.epsilon:.4g}, % [95 % interval]"


def store(result: Evaluation, told: dict[str, Any], folder: Path) -> Path:
    """One file an attack: the same object as for all of them, with that attack alone."""
    for name, verdict in result.verdicts.items():
        alone = replace(result, verdicts={name: verdict})
        write_atomically(folder / f"{name}.json", json.dumps(told | alone.to_plain()).encode())
        clear(folder, name)
    if "curve" in told:
        write_atomically(folder / "curve.json", json.dumps(told["curve"]).encode())
        clear(folder, f"{told['curve']['attack']}-*")
    return folder


def check_saved(options: Options, target: Target, threat: Threat) -> None:
    """Look at saved adversarial images with fresh eyes."""
    path = Path(options.verify)
    if not path.is_file():
        raise RattleError(f"there is no file {path} to verify")
    index, x_adv, y = load_images(path)
    images = target.test[index]
    good = verify(target.model, images.x, y, x_adv, threat) & (images.y == y)
    where = f"{threat.norm} {threat.epsilon:.4g}"
    print(f"{int(good.sum())} of {len(good)} saved images lie inside {where} and [0, 1] and are misclassified")
    if not bool(torch.all(good)):
        raise RattleError(f"{path} does not hold for this model, data and threat")
