"""rattle evaluate: attack a run, a checkpoint or any model, store the results, print a table."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
from torch import Tensor

from rattle.attacks import Attack
from rattle.attacks.registry import counted, get_attack, list_attacks
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse, take_attack_settings, typed
from rattle.data.dataset import check_count, choose_images
from rattle.errors import RattleError, unknown
from rattle.evaluation.caveats import caveats_of
from rattle.evaluation.evaluate import Points, curve, evaluate
from rattle.evaluation.results import Evaluation, curve_to_plain
from rattle.evaluation.target import Network, Target, target_from_checkpoint, target_from_weights
from rattle.evaluation.verify import load_images, verify
from rattle.models.registry import find_builder
from rattle.recipes.catalog import resolve
from rattle.report.tables import accuracy_row, percent
from rattle.runs import distributed
from rattle.runs.load import open_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole
from rattle.settings import Count, check_settings
from rattle.threat import Norm, Threat

T = TypeVar("T", bound="AttackOptions")


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

    # fgsm, pgdK, cwK, apgd-ce, fab-t, square, autoattack, rays ...; settings of one: --pgd20.step-size 0.01
    attacks: tuple[str, ...] = ("pgd20", "cw20")
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # a sample of n test images, classes in proportion; all when not given
    first: bool = False  # take the first n test images instead of a sample, as the reference does
    sample_seed: int = 0  # draws the sample; the n images of one seed are among those of every larger n
    within: Points | None = None  # end each attack once its accuracy is known to +- this many points, at most n images
    batch_size: Count | None = None  # 250 on a GPU, on a CPU fewer for large networks, when not given
    jobs: Count = 1  # processes that attack batches side by side: as many as there are cores, where networks are small
    seed: int = 0  # of the attacks' random draws
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own, or WEIGHTS-results, when not given
    changes: tyro.conf.Suppress[dict[str, dict[str, str]]] = field(default_factory=dict)  # see `parse_attacking`

    def check(self, threat: Threat | None) -> None:
        """Refuse what takes no model to refuse; threat: that of the model, where it is known."""
        if not self.attacks:
            raise RattleError("--attacks needs at least one name, such as pgd20 or autoattack")
        if self.first and (self.n is None or self.within is not None):
            raise RattleError("--first goes with --n, and not with --within, which needs a random order")
        check_count(self.n)
        check_settings(self, "")
        asked = self.threat.over(threat or Threat())
        if threat is not None:
            self.chosen(asked)

    def chosen(self, threat: Threat) -> dict[str, Attack]:
        """The attacks on a threat, by the names of their results; one with other settings has them in its name."""
        for name in (name for name in self.changes if name not in self.attacks):
            if name not in list_attacks() and counted(name) is None:
                raise unknown("attack", name, [*self.attacks, "threat"])
            raise RattleError(f"--{name}.* changes {name}, but --attacks runs {', '.join(self.attacks)}")
        return dict(changed_attack(name, threat, self.changes.get(name, {})) for name in self.attacks)

    def settings(self, target: Target) -> dict[str, Any]:
        """The settings of `evaluate` and `curve` for a target."""
        return {
            "out": Path(self.out) if self.out else target.results,
            "metadata": target.metadata | {"seed": self.seed, **self.sampling(target)},
            "index": self.choose(target),
            "batch_size": self.batch_size,
            "jobs": self.jobs,
            "seed": self.seed,
            "console": Console() if distributed.is_main() else NullConsole(),
        }

    def choose(self, target: Target) -> Tensor:
        """The indices of the test images to attack."""
        sampled = {"first": self.first, "seed": self.sample_seed, "shuffled": self.within is not None}
        return choose_images(target.test.y, self.n, **sampled)

    def sampling(self, target: Target) -> dict[str, Any]:
        """How they were chosen, for the result files."""
        order = {"order": "first"} if self.first else {"order": "fair", "seed": self.sample_seed}
        within = {} if self.within is None else {"within": self.within}
        return {"sample": order, "test_images": len(target.test), **within}


def changed_attack(name: str, threat: Threat, changes: Mapping[str, str]) -> tuple[str, Attack]:
    """An attack with settings as they were written, and its name: `pgd40,step-size=0.01` where one is not the usual.

    So its result never replaces, nor is compared with, that of the attack people know by the name.
    """
    usual = get_attack(name, threat)
    hints = get_type_hints(type(usual))
    if any(key.partition(".")[0] == "threat" for key in changes):
        raise RattleError(f"the threat is the same for all attacks: --threat.epsilon, not --{name}.threat")
    values = {key: typed(text, hints.get(key), f"{name}.{key}") for key, text in changes.items()}
    attack = get_attack(name, threat, **values)
    other = {key: value for key, value in values.items() if value != getattr(usual, key)}
    texts = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in sorted(other.items())}
    return ",".join([name, *(f"{key.replace('_', '-')}={text}" for key, text in texts.items())]), attack


def parse_attacking(options: type[T], args: list[str], command: str) -> T:
    """The options of a command that attacks, with the settings of single attacks in `changes`."""
    rest, changes = take_attack_settings(args, options)
    return replace(parse(options, rest, command), changes=changes)


@dataclass(frozen=True, kw_only=True)
class Options(Network, AttackOptions):
    """Attack a trained model: results go to results/ATTACK.json of its run folder, a table to the terminal.
    After an interruption the same command resumes where it stopped."""

    path: Annotated[str, tyro.conf.Positional] = ""  # a run, a checkpoint, hf:OWNER/NAME or zoo:NAME; or use --model
    data: str | None = None  # other images: a dataset's name, FILE.npz, a folder; cifar10 with --model
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilons: tuple[float, ...] = ()  # also a curve: robust accuracy at each of these, for the first attack
    save_adversarial: bool = False  # store the images that broke the model, as results/ATTACK-adversarial.npz
    verify: str = ""  # check such a file against the model instead of attacking
    raw: bool = False  # the raw weights of a run that averages them
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def read(args: list[str]) -> Options:
    """The options; raises RattleError for what takes no model to refuse."""
    options = parse_attacking(Options, args, "evaluate")
    check_named(options)
    options.check(known_threat(options.path) if options.path else Threat())
    for epsilon in options.epsilons:
        Threat(epsilon=epsilon)  # refuses what is none
    if options.verify and not Path(options.verify).is_file():
        raise RattleError(f"there is no file {options.verify} to verify")
    return options


def known_threat(path: str) -> Threat | None:
    """What a run was trained for, by its recipe; None where its checkpoint has to be opened to know."""
    with suppress(RattleError):
        return resolve(path).attack.threat if Run(Path(path)).exists() else None


def main(args: list[str]) -> None:
    with distributed.process_group():
        with distributed.raise_on_all_ranks():
            options = read(args)
            target = target_of(options)
        run = check_saved if options.verify else attack_target
        run(options, target)


def check_named(options: Options) -> None:
    """Refuse options that do not say, or say twice, what is evaluated."""
    moved = bool(options.path) and ":" in options.model  # a run whose FILE.py is elsewhere now
    if bool(options.path) == bool(options.model) and not moved:
        raise RattleError("say what to evaluate: a run or checkpoint, or --model NAME --weights FILE --data NAME")
    if not options.path:
        if ":" not in options.model:
            find_builder(options.model)
        options.check_weights()
        return
    for name in ("weights", "width", "classes", "mean", "std", "resize", "crop"):
        if getattr(options, name):
            raise RattleError(f"--{name} belongs to --model; {options.path} knows its own")


def target_of(options: Options) -> Target:
    if options.path:
        saved = open_checkpoint(options.path, trust_code=options.trust_code)
        if options.model:  # the code is named by the user
            saved = replace(saved, recipe=replace(saved.recipe, model=options.model), trust_code=True)
        where = {"root": options.data_root, "device": options.device}
        return target_from_checkpoint(saved, data=options.data, averaged=not options.raw, **where)
    return target_from_weights(options, options.data or "cifar10", root=options.data_root, device=options.device)


def attack_target(options: Options, target: Target) -> None:
    """Evaluate, then print."""
    settings, threat = options.settings(target), options.threat.over(target.threat)
    images, attacks = target.images(settings["index"]), options.chosen(threat)
    first = next(iter(attacks))
    by_epsilon = {e: next(iter(options.chosen(replace(threat, epsilon=e)).values())) for e in options.epsilons}
    more = {"check_model": True, "save_adversarial": options.save_adversarial, "within": options.within}
    result = evaluate(target.model, images.x, images.y, attacks, **more, **settings)
    points = curve(target.model, images.x, images.y, by_epsilon, name=first, **settings)
    if not distributed.is_main():
        return
    for sentence in result.warnings:
        say(f"warning: {sentence}", stderr=True)
    if options.json:
        print(json.dumps(result.to_plain() | ({"curve": curve_to_plain(first, points)} if points else {})))
        return
    print_result(target.name, result, threat, "% [95 % interval]")
    if points:
        rows = [[f"{epsilon:.4g}", percent(flags)] for epsilon, flags in points.items()]
        print_table(["epsilon", "robust"], rows, title=f"{first} against epsilon ({threat.norm})")
    say(f"results are in {settings['out']}")
    say(caveats_of(result, classes=len(target.classes), test_images=len(target.test)))


def print_result(name: str, result: Evaluation, threat: Threat, note: str) -> None:
    """The table, accuracy after each part of an ensemble, and the mean distance of attacks that measure it."""
    sizes = {"clean": result.n} | {attack: len(found.flags) for attack, found in result.attacks.items()}
    same = len(set(sizes.values())) == 1
    columns = [attack if same else f"{attack} (n {n})" for attack, n in sizes.items()]
    images = f"{result.n} images, " if same else ""
    title = f"{images}{threat.norm} epsilon {threat.epsilon:.4g}, {note}"
    print_table(["model", *columns], [accuracy_row(name, result)], title=title)
    if "autoattack" in result.attacks and (more := broken_besides(result)):
        robust = percent(result.worst_case)
        say(f"best known: {robust}, as other attacks broke {more} of the images that autoattack did not")
    for attack, found in result.attacks.items():
        if found.parts:
            rows = [[part, percent(flags)] for part, flags in found.parts.items()]
            print_table(["after", "robust"], rows, title=f"{attack}, part by part")
        if found.distances:
            say(f"{attack}: ADBD {found.mean_distance:.4f} (mean {threat.norm} distance found)")


def broken_besides(result: Evaluation) -> int:
    """How many images other attacks broke that AutoAttack did not."""
    return sum(result.attacks["autoattack"].flags[: len(result.worst_case)]) - sum(result.worst_case)


def check_saved(options: Options, target: Target) -> None:
    """Check saved adversarial images against the model."""
    path = Path(options.verify)
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
        say(f"{held} of {n} saved images lie inside {where} and [0, 1] and are misclassified")
    if held < n:
        raise RattleError(f"{path} does not hold for this model, data and threat: {n - held} of {n} images fail")
