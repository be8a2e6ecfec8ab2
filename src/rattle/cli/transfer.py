"""rattle transfer: adversarial examples of one model tried on another (the paper's black-box attacks)."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.attacks.transfer import Transfer
from rattle.cli.console import say
from rattle.cli.evaluate import AttackOptions, known_threat, parse_attacking, print_result
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.target import target_from_checkpoint


@dataclass(frozen=True, kw_only=True)
class Options(AttackOptions):
    """Attack a surrogate and measure the defended model's accuracy on its adversarial images."""

    from_: Annotated[str, tyro.conf.arg(name="from")]  # the surrogate: a run folder or a checkpoint
    to: str  # the defended model: a run folder or a checkpoint
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a run names as its model


def read(args: list[str]) -> Options:
    """The options; raises RattleError for what takes no model to refuse."""
    options = parse_attacking(Options, args, "transfer")
    options.check(known_threat(options.to))
    return options


def main(args: list[str]) -> None:
    options = read(args)
    how = {"device": options.device, "trust_code": options.trust_code}
    surrogate, target = (target_from_checkpoint(path, **how) for path in (options.from_, options.to))
    if surrogate.classes != target.classes or surrogate.test.shape[1:] != target.test.shape[1:]:
        raise RattleError(f"{options.from_} and {options.to} were not trained on the same kind of images and classes")
    settings, threat = options.settings(target), options.threat.over(target.threat)
    images = target.images(settings["index"])
    attacks = {
        f"transfer-{name}": Transfer(attack=attack, surrogate=surrogate.model, name=surrogate.name)
        for name, attack in options.chosen(threat).items()
    }
    settings["metadata"]["surrogate"] = surrogate.metadata["checkpoint"]
    result = evaluate(target.model, images.x, images.y, attacks, within=options.within, **settings)
    if options.json:
        print(json.dumps(result.to_plain()))
        return
    print_result(target.name, result, threat, f"made on {surrogate.name}")
    say(f"results are in {settings['out']}")
