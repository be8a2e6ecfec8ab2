"""rattle evaluate: attack a run, a checkpoint or any model, store the results, print a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import tyro

from rattle.attacks.registry import list_attacks
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import RunPath, check_attacks, check_exists, given, parse, take_options
from rattle.errors import RattleError, unknown
from rattle.evaluation.network import Network
from rattle.models.registry import check_network_name
from rattle.recipes.reading import parse_yaml
from rattle.recipes.schema import ball_text, epsilon_text, parse_number
from rattle.report.tables import percent
from rattle.runs.io import Plain
from rattle.runs.progress import NullConsole
from rattle.settings import types_of
from rattle.stats import Interval

if TYPE_CHECKING:
    from rattle.attacks.base import Attack
    from rattle.evaluation.results import Evaluation
    from rattle.evaluation.target import Target
    from rattle.threat import Threat

T = TypeVar("T", bound="AttackOptions")
NormName = Literal["linf", "l2", "l1"]
Changes = Mapping[str, Mapping[str, str]]  # attack -> setting -> what was written for it
ATTACKS_HELP = f"{', '.join(list_attacks())}; pgd and cw take any number of steps; settings: --pgd20.step-size 0.01"


@dataclass(frozen=True)
class ThreatOptions:
    """The threat to evaluate under; when not given, that of the run's training, else linf 8/255."""

    norm: Annotated[NormName | None, tyro.conf.arg(aliases=["--norm"])] = None
    epsilon: Annotated[float | None, tyro.conf.arg(aliases=["--epsilon"])] = None

    def over(self, threat: Threat) -> Threat:
        if self.norm is not None:
            threat = replace(threat, norm=self.norm)
        return threat if self.epsilon is None else replace(threat, epsilon=self.epsilon)


@dataclass(frozen=True)
class NoiseOptions:
    """u on the weights while evaluating, drawn once for the whole evaluation or again in every pass."""

    sigma: float | None = None  # std of u; no noise when not given
    scale: Literal["absolute", "filter"] = "absolute"  # sigma itself, or times the rms of each filter's weights
    fresh: bool = False  # u in every pass: the model then answers at random

    @property
    def label(self) -> str:
        return f"sigma={self.sigma:g}{'-of-filters' if self.scale == 'filter' else ''}"


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What every command that attacks takes."""

    attacks: Annotated[tuple[str, ...], tyro.conf.arg(help=ATTACKS_HELP)] = ("pgd20", "cw20")
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # a sample of n test images, classes in proportion; all when not given
    first: bool = False  # take the first n test images instead of a sample, as the reference does
    sample_seed: int = 0  # draws the sample; the n images of one seed are among those of every larger n
    within: float | None = None  # end each attack once its accuracy is known to +- this many points, at most n images
    minutes: float | None = None  # attack as many of the n images as fit into this time, in equal shares of the attacks
    batch_size: int | None = None  # 250 on a GPU, on a CPU fewer for large networks, when not given
    jobs: int = 1  # processes that attack batches in parallel; one per core for small networks
    seed: int = 0  # of the attacks' random draws
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own, or WEIGHTS-results, when not given


@dataclass(frozen=True, kw_only=True)
class Options(Network, AttackOptions):
    """Attack a trained model: results go to results/ATTACK.json of its run folder, a table to the terminal.
    After an interruption the same command resumes where it stopped."""

    path: RunPath = ""  # a run, a checkpoint, hf:OWNER/NAME or zoo:NAME; or use --model
    threats: tuple[str, ...] = ()  # such as linf:8/255 l2:0.5 l1:12: attack under each, and under their union
    data: str | None = None  # other images: a dataset's name, FILE.npz, a folder; cifar10 with --model
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilons: tuple[float, ...] = ()  # also a curve: robust accuracy at each of these, for the first attack
    save_adversarial: bool = False  # store the images that broke the model, as results/ATTACK-adversarial.npz
    corruptions: str = ""  # accuracy under common corruptions instead of attacks: a folder of CIFAR-10-C, or `made`
    verify: str = ""  # check a file of --save-adversarial against the model instead of attacking
    raw: bool = False  # use the raw weights of a run that averages them
    noise: NoiseOptions = NoiseOptions()  # evaluate the ensemble over draws of u on the weights
    draws: int | None = None  # draws of that ensemble, 16 when not given; of a random model draws per image, 32
    eot: int | None = None  # draws of a random model that every gradient averages, 16 when not given
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def main(args: list[str]) -> None:
    options, changes = parse_attacking(Options, args, "evaluate")
    check_named(options)
    named = [parse_threat(text) for text in options.threats]
    if named and (options.epsilons or options.verify or options.threat != ThreatOptions()):
        raise RattleError("--threats names every threat: leave out --threat, --epsilons and --verify")
    from rattle.runs import distributed

    with distributed.process_group():
        with distributed.raise_on_all_ranks():
            target = with_noise(options, target_of(options))
        if options.corruptions:
            print_corruptions(options, target)
        elif options.verify:
            check_saved(options, target)
        else:
            attack_target(options, changes, target, named)


def parse_attacking(kind: type[T], args: list[str], command: str) -> tuple[T, Changes]:
    """The options of a command that attacks, and the settings of single attacks: --pgd20.step-size 0.01.

    Raises RattleError for attacks that do not exist or are not run.
    """
    own = {field.name for field in fields(kind)}
    dotted = []
    for word in args:
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and "." in name and name.split(".")[0] not in own:
            dotted.append(name)
    changed, rest = take_options(args, {*dotted}, alone="true")
    options = parse(kind, rest, command)
    check_attacks(options.attacks)
    changes: dict[str, dict[str, str]] = {}
    for option, text in changed.items():
        name, _, setting = option.partition(".")
        if name not in options.attacks:
            raise unknown("attack of this evaluation", name, [*options.attacks, "threat"])
        if setting == "eot":
            raise RattleError(f"all attacks on a random model average over as many draws: --eot 16, not --{option}")
        if setting.startswith("threat"):
            raise RattleError(f"the threat is the same for all attacks: --threat.epsilon, not --{option}")
        changes.setdefault(name, {})[setting.replace("-", "_")] = text
    ended = options.within is not None or options.minutes is not None
    if options.first and (options.n is None or ended):
        raise RattleError("--first goes with --n, and not with --within or --minutes, which need a random order")
    return options, changes


def parse_threat(text: str) -> ThreatOptions:
    """A norm and its radius.

    >>> parse_threat("l2:0.5")
    ThreatOptions(norm='l2', epsilon=0.5)
    """
    name, colon, epsilon = text.partition(":")
    norms: dict[str, NormName] = {"linf": "linf", "l2": "l2", "l1": "l1"}
    if name not in norms:
        raise unknown("norm", name, list(norms))
    if not colon:
        raise RattleError(f"a threat is a norm and its radius, such as {name}:0.5, got {text!r}")
    return ThreatOptions(norms[name], parse_number(epsilon, text))


def check_named(options: Options) -> None:
    """Refuse options that do not say, or say twice, what is evaluated, and files that are not there."""
    moved = bool(options.path) and ":" in options.model  # a run whose FILE.py is elsewhere now
    if bool(options.path) == bool(options.model) and not moved:
        raise RattleError("give a run or checkpoint, or --model NAME --weights FILE --data NAME")
    if options.verify and not Path(options.verify).is_file():
        raise RattleError(f"there is no file {options.verify} to verify")
    if not options.path:
        check_network_name(options.model)
        options.check_weights()
        return
    for name in ("weights", "width", "classes", "mean", "std", "resize", "crop"):
        if getattr(options, name):
            raise RattleError(f"--{name} belongs to --model; {options.path} knows its own")
    check_exists(options.path)


def target_of(options: Options) -> Target:
    from rattle.evaluation.target import target_from_checkpoint, target_from_weights
    from rattle.runs.load import open_checkpoint

    if not options.path:
        return target_from_weights(options, options.data or "cifar10", root=options.data_root, device=options.device)
    saved = open_checkpoint(options.path, trust_code=options.trust_code)
    if options.model:  # the code is named by the user
        saved = replace(saved, recipe=replace(saved.recipe, model=options.model), trust_code=True)
    where = {"root": options.data_root, "device": options.device}
    return target_from_checkpoint(saved, data=options.data, averaged=not options.raw, **where)


def with_noise(options: Options, target: Target) -> Target:
    """The ensemble over draws of u in place of the model, with its own folder of results."""
    from rattle.randomized import Randomized
    from rattle.weights import Noise

    chosen = options.noise
    if chosen.sigma is None:
        if chosen != NoiseOptions():
            raise RattleError("--noise.scale and --noise.fresh need --noise.sigma, such as 0.01")
        return target
    noise = Noise(sigma=chosen.sigma, scale=chosen.scale)
    if chosen.fresh:
        model, label = Randomized(target.model, noise, 1, seed=None), f"{chosen.label}-fresh"
    else:
        draws = 16 if options.draws is None else options.draws
        model, label = Randomized(target.model, noise, draws, seed=options.seed), f"{chosen.label}-draws={draws}"
    name = f"{target.name} {label}"
    results = target.results.with_name(f"{target.results.name}-{label}")
    return replace(target, name=name, model=model.eval(), results=results, metadata=target.metadata | {"name": name})


def attack_target(options: Options, changes: Changes, target: Target, named: list[ThreatOptions]) -> None:
    """Evaluate, then print."""
    from rattle.evaluation.caveats import caveats_of
    from rattle.evaluation.curve import curve
    from rattle.evaluation.evaluate import evaluate
    from rattle.evaluation.inputs import under_threats
    from rattle.evaluation.results import curve_to_plain
    from rattle.runs.distributed import is_main
    from rattle.threat import Threat

    settings, threat = attack_settings(options, target), options.threat.over(target.threat)
    images, attacks = target.images(settings["index"]), chosen_attacks(options.attacks, changes, threat)
    if named:
        threats = [each.over(Threat()) for each in named]
        size = math.prod(target.test.shape[1:])
        attacks = under_threats(lambda each: chosen_attacks(options.attacks, changes, each), threats, size)
    first = next(iter(attacks))
    by_epsilon = {}
    for epsilon in options.epsilons:
        by_epsilon[epsilon] = chosen_attacks(options.attacks[:1], changes, replace(threat, epsilon=epsilon))[first]
    if ":" in options.path and not options.out and is_main():
        say(f"results go to {settings['out']} (--out chooses another folder)", stderr=True)
    more = given(options, "save_adversarial", "within", "minutes", "eot")
    if options.noise.sigma is None or options.noise.fresh:
        more |= given(options, "draws")
    result = evaluate(target.model, images.x, images.y, attacks, **more, **settings)
    points = curve(target.model, images.x, images.y, by_epsilon, name=first, **settings)
    if not is_main():
        return
    for sentence in result.warnings:
        say(f"warning: {sentence}", stderr=True)
    if options.json:
        print(json.dumps(result.to_plain() | ({"curve": curve_to_plain(first, points)} if points else {})))
        return
    under = f"{threat.norm} epsilon {epsilon_text(threat.epsilon)}" if not named else f"{len(named)} threats"
    print_result(target.name, result, under, "% [95 % interval]")
    print_beyond(result, target.classes)
    if points:
        rows = [[epsilon_text(epsilon), percent(flags)] for epsilon, flags in points.items()]
        print_table(["epsilon", "robust"], rows, title=f"{first} against epsilon ({threat.norm})")
    say(f"results are in {settings['out']}")
    say(caveats_of(result, classes=len(target.classes), test_images=len(target.test)))


def attack_settings(options: AttackOptions, target: Target) -> Plain:
    """The settings of `evaluate` and `curve` for a target: the images, how they were chosen, and the rest."""
    from rattle.data.dataset import choose_images
    from rattle.runs.distributed import is_main

    shuffled = options.within is not None or options.minutes is not None
    index = choose_images(target.test.y, options.n, first=options.first, seed=options.sample_seed, shuffled=shuffled)
    sample: Plain = {"order": "first"} if options.first else {"order": "fair", "seed": options.sample_seed}
    metadata = target.metadata | {"seed": options.seed, "sample": sample, "test_images": len(target.test)}
    metadata |= given(options, "within", "minutes")
    return {
        "out": Path(options.out) if options.out else target.results,
        "metadata": metadata,
        "index": index,
        "batch_size": options.batch_size,
        "jobs": options.jobs,
        "seed": options.seed,
        "console": Console() if is_main() else NullConsole(),
    }


def chosen_attacks(names: tuple[str, ...], changes: Changes, threat: Threat) -> dict[str, Attack]:
    """The attacks on a threat by the names of their results: `pgd40,step-size=0.01` where a setting is not the usual.

    So the result of a changed attack never replaces, nor is compared with, that of the attack people know by the name.
    """
    from rattle.attacks.registry import get_attack

    found = {}
    for name in names:
        usual, settings, label = get_attack(name, threat), {}, [name]
        hints = types_of(type(usual))
        for key, text in sorted(changes.get(name, {}).items()):
            value = parse_number(text, f"{name}.{key}") if hints.get(key) is float else parse_yaml(text)
            settings[key] = value
            if value != getattr(usual, key, None):
                label.append(f"{key.replace('_', '-')}={f'{value:.6g}' if isinstance(value, float) else value}")
        found[",".join(label)] = get_attack(name, threat, **settings)
    return found


def print_result(name: str, result: Evaluation, threat: str, note: str) -> None:
    """The table, accuracy after each part of an ensemble, and the mean distance of attacks that measure it."""
    sizes = {"clean": result.n}
    for attack, found in result.attacks.items():
        sizes[attack] = len(found.flags)
    if len(set(sizes.values())) == 1:
        columns, images = list(sizes), f"{result.n} images, "
    else:
        columns, images = [f"{attack} (n {n})" for attack, n in sizes.items()], ""
    row = [name, percent(result.clean, result.error)]
    row += [percent(found.flags, found.error) for found in result.attacks.values()]
    print_table(["model", *columns], [row], title=f"{images}{threat}, {note}")
    if len(result.attacks) > 1:
        say(f"under the strongest of these on each image: {percent(result.worst_case, result.worst_error)}")
    for attack, found in result.attacks.items():
        if found.parts:
            rows = [[part, percent(flags, found.error)] for part, flags in found.parts.items()]
            print_table(["after", "robust"], rows, title=f"{attack}, part by part")
        if found.draws:
            vote = percent(found.draws.majority)
            say(f"{attack}: expected accuracy over {found.draws.count} draws; by their majority vote {vote}")
        if found.distances:
            say(f"{attack}: ADBD {found.mean_distance:.4f} (mean {found.settings['threat']['norm']} distance found)")


def print_beyond(result: Evaluation, classes: Sequence[str]) -> None:
    """What the mean hides: the worst class, the best, and confidence against accuracy; nothing where all is unknown."""
    rows = []
    for name in ("clean", *result.attacks):
        worst, known = result.worst_class(name), result.calibration(name)
        cells = ["-", "-", "-", "-"]
        if worst:
            low = worst.interval.around(worst.accuracy)
            cells[:3] = [low, f"{classes[worst.label]} (n {worst.n})", f"{100 * worst.best:.1f}"]
        if known:
            cells[3] = known.interval.around(known.error)
        rows.append([name, *cells])
    if any(set(row[1:]) != {"-"} for row in rows):
        columns = ["", "worst class", "which", "best class", "calibration error"]
        print_table(columns, rows, title="what the mean hides, % [95 % interval]")


def print_corruptions(options: Options, target: Target) -> None:
    """Measure the accuracy under corruptions, and print it by kind and severity."""
    from rattle.evaluation.corruptions import measure_corruptions
    from rattle.runs.distributed import is_main

    if not is_main():
        return
    out = Path(options.out) if options.out else target.results
    seeds = {"sample_seed": options.sample_seed, "seed": options.seed}
    found = measure_corruptions(target, options.corruptions, n=options.n, **seeds, out=out)
    if options.json:
        print(json.dumps(found))
        return
    rows = []
    for kind, plain in {**found["kinds"], "mean": found["mean"]}.items():
        each = [f"{100 * one['accuracy']:.1f}" for one in plain.get("by_severity", [])]
        accuracy = Interval(plain["low"], plain["high"]).around(plain["accuracy"])
        rows.append([kind.replace("_", " "), accuracy, *(each or [""] * found["severities"])])
    columns = ["corruption", "accuracy", *map(str, range(1, found["severities"] + 1))]
    print_table(columns, rows, title=f"{target.name}, {found['n']} images, % [95 % interval], by severity")
    say(f"mean corruption error {100 * (1 - found['mean']['accuracy']):.1f} %; results are in {out}")


def check_saved(options: Options, target: Target) -> None:
    """Check saved adversarial images against the model."""
    from rattle.evaluation.verify import load_images, verify

    path = Path(options.verify)
    saved = load_images(path)
    outside = (saved.index < 0) | (saved.index >= len(target.test))
    if outside.any() or saved.x_adv.shape != (len(saved.index), *target.test.shape[1:]):
        raise RattleError(f"{path} was not made from these {len(target.test)} test images")
    images, threat = target.test[saved.index], options.threat.over(saved.threat)
    x, y, x_adv = (t.to(target.device) for t in (images.x, images.y, saved.x_adv))
    good = verify(target.model, x, y, x_adv, threat).cpu() & (images.y == saved.y)
    held, n, where = int(good.sum()), len(good), ball_text(threat)
    if options.json:
        print(json.dumps(target.metadata | {"verified": str(path), "n": n, "held": held, "flags": good.int().tolist()}))
    else:
        say(f"{held} of {n} saved images lie inside {where} and [0, 1] and are misclassified")
    if held < n:
        raise RattleError(f"{path} does not hold for this model, data and threat: {n - held} of {n} images fail")
