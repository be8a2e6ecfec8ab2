"""rattle transfer: adversarial examples made on one model, tried on another (the paper's black-box attacks)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle.attacks.registry import get_attack
from rattle.attacks.transfer import Transfer
from rattle.cli.console import Console, print_table
from rattle.cli.evaluate import ThreatOptions
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import save_results
from rattle.evaluation.target import target_from_checkpoint
from rattle.report.tables import accuracy_row


@dataclass(frozen=True)
class Options:
    """Attack a surrogate and count how many of its adversarial images the defended model still classifies rightly."""

    from_: Annotated[str, tyro.conf.arg(name="from")]  # the surrogate: a run folder or a checkpoint
    to: str  # the defended model: a run folder or a checkpoint
    attacks: tuple[str, ...] = ("pgd20", "cw20")  # run on the surrogate
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # the first n test images; all when not given
    batch_size: int = 250
    seed: int = 0
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the defended run's own when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "transfer")
    if not options.attacks:
        raise RattleError("--attacks needs at least one name, such as pgd20 or cw20")
    surrogate, target = target_from_checkpoint(options.from_), target_from_checkpoint(options.to)
    if surrogate.classes != target.classes or surrogate.test.shape[1:] != target.test.shape[1:]:
        raise RattleError(f"{options.from_} and {options.to} were not trained on the same kind of images and classes")
    threat, images = options.threat.over(target.threat), target.images(options.n)
    attacks = {
        f"transfer-{name}": Transfer(attack=get_attack(name, threat), surrogate=surrogate.model, name=surrogate.name)
        for name in options.attacks
    }
    folder = Path(options.out) if options.out else target.results
    settings = {"batch_size": options.batch_size, "seed": options.seed, "store": folder}
    result = evaluate(target.model, images.x, images.y, attacks, console=Console(), **settings)
    told = target.about | {"surrogate": surrogate.about["checkpoint"], "seed": options.seed}
    save_results(result, told, folder)
    if options.json:
        print(json.dumps(told | result.to_plain()))
        return
    title = f"{len(images)} images, {threat.norm} epsilon {threat.epsilon:.4g}, made on {surrogate.name}"
    print_table(["model", "clean", *attacks], [accuracy_row(target.name, result)], title=title)
    print(f"verdicts are in {folder}")
