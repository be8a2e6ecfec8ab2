"""rattle evaluate: attack a run, a checkpoint or any model, store the results, print a table."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from rattle.attacks.registry import get_attack
from rattle.cli.console import Console, print_table
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.evaluation.evaluate import curve, evaluate
from rattle.evaluation.results import Evaluation, curve_to_plain
from rattle.evaluation.target import Network, Target, target_from_checkpoint, target_from_weights
from rattle.evaluation.verify import load_images, verify
from rattle.report.tables import accuracy_row, percent
from rattle.runs import distributed
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


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What every command that attacks takes."""

    attacks: tuple[str, ...] = ("pgd20", "cw20")  # fgsm, pgdK, cwK, apgd-ce, fab-t, square, autoattack, rays ...
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # the first n test images; all when not given
    batch_size: int = 250
    seed: int = 0  # of the attacks' random draws
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own, or WEIGHTS-results, when not given

    def settings(self, target: Target) -> dict[str, Any]:
        """The settings of `evaluate` and `curve` for a target."""
        if not self.attacks:
            raise RattleError("--attacks needs at least one name, such as pgd20 or autoattack")
        return {
            "out": Path(self.out) if self.out else target.results,
            "metadata": target.metadata | {"seed": self.seed},
            "batch_size": self.batch_size,
            "seed": self.seed,
            "console": Console() if distributed.is_main() else NullConsole(),
        }


@dataclass(frozen=True, kw_only=True)
class Options(Network, AttackOptions):
    """Attack a trained model: results go to results/ATTACK.json of its run folder, a table to the terminal.
    After an interruption the same command goes on where it stopped."""

    path: Annotated[str, tyro.conf.Positional] = ""  # a run folder or a checkpoint file; or use --model
    data: str | None = None  # other images: a dataset's name, FILE.npz, a folder; cifar10 with --model
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilons: tuple[float, ...] = ()  # also a curve: robust accuracy at each of these, for the first attack
    save_adversarial: bool = False  # store the images that broke the model, as results/ATTACK-adversarial.npz
    verify: str = ""  # check such a file against the model instead of attacking
    raw: bool = False  # the raw weights of a run that averages them


def main(args: list[str]) -> None:
    options = parse(Options, args, "evaluate")
    with distributed.process_group():
        target = target_of(options)
        run = check_saved if options.verify else attack_target
        run(options, target)


def target_of(options: Options) -> Target:
    if bool(options.path) == bool(options.model):
        raise RattleError("say what to evaluate: a run or checkpoint, or --model NAME --weights FILE --data NAME")
    if options.path:
        for name in ("weights", "width", "classes", "mean", "std", "resize"):
            if getattr(options, name):
                raise RattleError(f"--{name} belongs to --model; {options.path} knows its own")
        return target_from_checkpoint(options.path, data=options.data, root=options.data_root, averaged=not options.raw)
    return target_from_weights(options, options.data or "cifar10", root=options.data_root)


def attack_target(options: Options, target: Target) -> None:
    """Evaluate, then print."""
    settings, threat, images = options.settings(target), options.threat.over(target.threat), target.images(options.n)
    first = options.attacks[0]
    by_epsilon = {e: get_attack(first, replace(threat, epsilon=e)) for e in options.epsilons}
    more = {"threat": threat, "check_model": True, "save_adversarial": options.save_adversarial}
    result = evaluate(target.model, images.x, images.y, options.attacks, **more, **settings)
    points = curve(target.model, images.x, images.y, by_epsilon, name=first, **settings)
    if not distributed.is_main():
        return
    for sentence in result.warnings:
        print(f"warning: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps(result.to_plain() | ({"curve": curve_to_plain(first, points)} if points else {})))
        return
    print_result(target.name, result, threat, "% [95 % interval]")
    if points:
        rows = [[f"{epsilon:.4g}", percent(flags)] for epsilon, flags in points.items()]
        print_table(["epsilon", "robust"], rows, title=f"{first} against epsilon ({threat.norm})")
    print(f"results are in {settings['out']}")


def print_result(name: str, result: Evaluation, threat: Threat, note: str) -> None:
    """The table, accuracy after each part of an ensemble, and the mean distance of attacks that measure it."""
    title = f"{result.n} images, {threat.norm} epsilon {threat.epsilon:.4g}, {note}"
    print_table(["model", "clean", *result.attacks], [accuracy_row(name, result)], title=title)
    for attack, found in result.attacks.items():
        if found.parts:
            rows = [[part, percent(flags)] for part, flags in found.parts.items()]
            print_table(["after", "robust"], rows, title=f"{attack}, part by part")
        if found.distances:
            print(f"{attack}: ADBD {found.mean_distance:.4f} (mean {threat.norm} distance found)")


def check_saved(options: Options, target: Target) -> None:
    """Check saved adversarial images against the model."""
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
        print(json.dumps(target.metadata | {"verified": str(path), "n": n, "held": held, "flags": good.int().tolist()}))
    else:
        print(f"{held} of {n} saved images lie inside {where} and [0, 1] and are misclassified")
    if held < n:
        raise RattleError(f"{path} does not hold for this model, data and threat: {n - held} of {n} images fail")
