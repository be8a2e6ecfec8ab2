"""rattle evaluate: attack a run, a checkpoint or any model, store the verdicts, print the table."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rattle.attacks import Attack
from rattle.attacks.registry import get_attack
from rattle.cli.console import Console, print_table
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.evaluation.evaluate import curve, curve_name, evaluate
from rattle.evaluation.results import Evaluation, clear, ints, save_results, share
from rattle.evaluation.target import Network, Target, target_from_checkpoint, target_from_weights
from rattle.evaluation.verify import load_images, verify
from rattle.report.tables import accuracy_row, percent
from rattle.runs import distributed
from rattle.runs.io import write_atomically
from rattle.runs.progress import NullConsole
from rattle.threat import Norm, Threat


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
    attacks: tuple[str, ...] = ("pgd20", "cw20")  # fgsm, pgdK, cwK, apgd-ce, fab-t, square, autoattack, rays ...
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # the first n test images; all when not given
    model: str = ""  # a network's name, or FILE.py:build, to evaluate without a run
    weights: str | None = None  # its weights, as rattle or other people's code saves them
    width: int | None = None  # of a named network; the published width when not given
    activation: Literal["relu", "silu"] = "relu"  # of a named network
    mean: tuple[float, ...] = ()  # of each channel, where its training normalised; read from --weights when it is there
    std: tuple[float, ...] = ()  # the deviations that go with --mean
    classes: int | None = None  # that --model tells apart; as many as the data have when not given
    data: str | None = None  # other images: a dataset's name, FILE.npz, a folder; cifar10 with --model
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilons: tuple[float, ...] = ()  # also a curve: robust accuracy at each of these, for the first attack
    save_adversarial: bool = False  # keep the images that broke the model, as results/ATTACK-adversarial.npz
    verify: str = ""  # check such a file against the model instead of attacking
    raw: bool = False  # the raw weights of a run that averages them
    batch_size: int = 250
    seed: int = 0  # of the attacks' random draws
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own, or WEIGHTS-results, when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "evaluate")
    with distributed.process_group():
        target = target_of(options)
        if options.verify:
            check_saved(options, target)
            return
        threat = options.threat.over(target.threat)
        if not options.attacks:
            raise RattleError("--attacks needs at least one name, such as pgd20 or autoattack")
        attack_target(options, target, {name: get_attack(name, threat) for name in options.attacks})


def target_of(options: Options) -> Target:
    if bool(options.path) == bool(options.model):
        raise RattleError("say what to evaluate: a run or checkpoint, or --model NAME --weights FILE --data NAME")
    if options.path:
        for name in ("weights", "width", "classes", "mean", "std"):
            if getattr(options, name):
                raise RattleError(f"--{name} belongs to --model; {options.path} knows its own")
        return target_from_checkpoint(options.path, data=options.data, root=options.data_root, averaged=not options.raw)
    given = {field.name: getattr(options, field.name) for field in fields(Network)}
    return target_from_weights(Network(**given), options.data or "cifar10", root=options.data_root)


def attack_target(options: Options, target: Target, attacks: dict[str, Attack]) -> None:
    """Evaluate, store, print."""
    images, folder = target.images(options.n), Path(options.out) if options.out else target.results
    first, attack = next(iter(attacks.items()))
    along = {
        e: get_attack(first, replace(attack.threat, epsilon=e)) for e in options.epsilons
    }  # refused before the work
    console = Console() if distributed.is_main() else NullConsole()
    settings = {"batch_size": options.batch_size, "seed": options.seed, "store": folder, "console": console}
    result = evaluate(
        target.model, images.x, images.y, attacks, advise=True, save_adversarial=options.save_adversarial, **settings
    )
    points = curve(target.model, images.x, images.y, along, name=first, **settings)
    if not distributed.is_main():
        return
    told = target.about | {"seed": options.seed}
    save_results(result, told, folder)
    for sentence in result.advice:
        print(f"advice: {sentence}", file=sys.stderr)
    drawn = {"curve": store_curve(first, points, told, folder)} if points else {}
    if options.json:
        print(json.dumps(told | result.to_plain() | drawn))
        return
    title = f"{len(images)} images, {describe_threats(attacks)}"
    print_table(["model", "clean", *attacks], [accuracy_row(target.name, result)], title=title)
    print_details(result)
    if points:
        rows = [[f"{epsilon:.4g}", percent(flags)] for epsilon, flags in points.items()]
        print_table(["epsilon", "robust"], rows, title=f"{first} against epsilon ({attack.threat.norm})")
    print(f"verdicts are in {folder}")


def print_details(result: Evaluation) -> None:
    """What an ensemble's parts did, and the distances that RayS found."""
    for name, verdict in result.verdicts.items():
        if verdict.parts:
            rows = [[part, percent(flags)] for part, flags in verdict.parts.items()]
            print_table(["after", "robust"], rows, title=f"{name}, part by part")
        if verdict.distances:
            print(f"{name}: ADBD {sum(verdict.distances) / len(verdict.distances):.4f} (mean l_inf distance found)")


def describe_threats(attacks: dict[str, Attack]) -> str:
    threat = next(iter(attacks.values())).threat
    return f"{threat.norm} epsilon {threat.epsilon:.4g}, % [95 % interval]"


def store_curve(attack: str, points: dict[float, list[bool]], told: dict[str, Any], folder: Path) -> dict[str, Any]:
    """ATTACK-curve.json: accuracy, interval and flags at each epsilon."""
    plain = {
        "attack": attack,
        "points": [{"epsilon": e, **share("robust", f), "flags": ints(f)} for e, f in points.items()],
    }
    write_atomically(folder / f"{attack}-curve.json", json.dumps(told | {"curve": plain}).encode())
    for epsilon in points:
        clear(folder, curve_name(attack, epsilon))
    return plain


def check_saved(options: Options, target: Target) -> None:
    """Look at saved adversarial images with fresh eyes."""
    path = Path(options.verify)
    if not path.is_file():
        raise RattleError(f"there is no file {path} to verify")
    saved = load_images(path)
    if len(saved.index) and not (int(saved.index.min()) >= 0 and int(saved.index.max()) < len(target.test)):
        raise RattleError(f"{path} was not made from these {len(target.test)} test images")
    images, threat = target.test[saved.index], options.threat.over(saved.threat)
    if saved.x_adv.shape != images.shape:
        raise RattleError(f"{path} holds images {list(saved.x_adv.shape[1:])}, the data {list(images.shape[1:])}")
    x, y, x_adv = (t.to(target.device) for t in (images.x, images.y, saved.x_adv))
    good = verify(target.model, x, y, x_adv, threat).cpu() & (images.y == saved.y)
    held, n, where = int(good.sum()), len(good), f"{threat.norm} {threat.epsilon:.4g}"
    if options.json:
        print(json.dumps(target.about | {"verified": str(path), "n": n, "held": held, "flags": ints(good.tolist())}))
    else:
        print(f"{held} of {n} saved images lie inside {where} and [0, 1] and are misclassified")
    if held < n:
        raise RattleError(f"{path} does not hold for this model, data and threat: {n - held} of {n} images fail")
