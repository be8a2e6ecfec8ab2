"""rattle transfer: adversarial examples of one model tried on another (the paper's black-box attacks)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle.attacks.registry import get_attack
from rattle.attacks.transfer import Transfer
from rattle.cli.console import Console
from rattle.cli.evaluate import ThreatOptions, print_result
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.target import target_from_checkpoint


@dataclass(frozen=True)
class Options:
    """Attack a surrogate and measure the defended model's accuracy on its adversarial images."""

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
    out = Path(options.out) if options.out else target.results
    metadata = target.metadata | {"surrogate": surrogate.metadata["checkpoint"], "seed": options.seed}
    settings = {"batch_size": options.batch_size, "seed": options.seed, "console": Console()}
    result = evaluate(target.model, images.x, images.y, attacks, out=out, metadata=metadata, **settings)
    if options.json:
        print(json.dumps(result.to_plain()))
        return
    print_result(target.name, result, threat, f"made on {surrogate.name}")
    print(f"results are in {out}")
