"""rattle transfer: adversarial examples of one model tried on another (the paper's black-box attacks)."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.evaluate import AttackOptions, attack_settings, chosen_attacks, parse_attacking, print_result
from rattle.cli.options import check_exists, given
from rattle.errors import RattleError
from rattle.recipes.schema import epsilon_text


@dataclass(frozen=True, kw_only=True)
class Options(AttackOptions):
    """Attack a surrogate and measure the defended model's accuracy on its adversarial images."""

    from_: Annotated[str, tyro.conf.arg(name="from")]  # the surrogate: a run folder or a checkpoint
    to: str  # the defended model: a run folder or a checkpoint
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a run names as its model


def main(args: list[str]) -> None:
    options, changes = parse_attacking(Options, args, "transfer")
    check_exists(options.from_, options.to)
    from rattle.attacks.transfer import Transfer
    from rattle.evaluation.evaluate import evaluate
    from rattle.evaluation.target import target_from_checkpoint

    how = {"device": options.device, "trust_code": options.trust_code}
    surrogate, target = (target_from_checkpoint(path, **how) for path in (options.from_, options.to))
    if surrogate.classes != target.classes or surrogate.test.shape[1:] != target.test.shape[1:]:
        raise RattleError(f"{options.from_} and {options.to} were not trained on the same kind of images and classes")
    settings, threat = attack_settings(options, target), options.threat.over(target.threat)
    settings["metadata"]["surrogate"] = surrogate.metadata["checkpoint"]
    images = target.images(settings["index"])
    attacks = {}
    for name, attack in chosen_attacks(options.attacks, changes, threat).items():
        attacks[f"transfer-{name}"] = Transfer(attack=attack, surrogate=surrogate.model, name=surrogate.name)
    settings |= given(options, "within", "minutes")
    result = evaluate(target.model, images.x, images.y, attacks, **settings)
    if options.json:
        print(json.dumps(result.to_plain()))
        return
    print_result(
        target.name, result, f"{threat.norm} epsilon {epsilon_text(threat.epsilon)}", f"made on {surrogate.name}"
    )
    say(f"results are in {settings['out']}")
