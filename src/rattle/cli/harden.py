"""rattle harden: make a trained classifier robust and keep its clean accuracy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from rattle.cli.console import Console, say
from rattle.cli.options import check_attacks, given, parse
from rattle.data.sources import check_source
from rattle.errors import RattleError
from rattle.evaluation.network import Network
from rattle.models.registry import check_network_name
from rattle.recipes.names import split_method


@dataclass(frozen=True, kw_only=True)
class Options(Network):
    """Fine-tune a trained classifier against adversarial examples, from its weights, and measure it before and after.
    Rate, batch, epochs and the trade-off 1/lambda are chosen for the images; the result is a run like any other."""

    data: str = ""  # the images: a folder of class folders, FILE.npz, hub:OWNER/NAME or a dataset's name
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epsilon: float = 8 / 255  # size of the perturbations to resist; images are in [0, 1]
    norm: Literal["linf", "l2"] = "linf"
    clean_drop: float = 2.0  # points of clean accuracy that may be lost on held-out images
    method: str = "trades"  # a method with a trade-off 1/lambda: trades, trades-2nd, trades-awp, ...
    lr: float | None = None  # learning rate; 0.01 of SGD, 1e-4 of AdamW, or ten times that, when not given
    attacks: tuple[str, ...] = ("pgd20",)  # attacks that measure before and after
    n: int | None = 1000  # measure on a sample of n test images, classes in proportion
    epochs: int | None = None  # as many as make 500 steps, between 5 and 30, when not given
    batch_size: int | None = None  # 16 to 128, by the number of images, when not given
    seed: int = 0
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    out: str = "runs/hardened"  # run folder
    overwrite: bool = False  # replace the run in --out


def main(args: list[str]) -> None:
    options = parse(Options, args, "harden")
    if not options.model or not options.data:
        raise RattleError("give a model and images: --model FILE.py:build --weights w.pt --data FOLDER")
    check_network_name(options.model)
    check_source(options.data)
    options.check_weights()
    split_method(options.method)
    check_attacks(options.attacks)
    from rattle.recipes.catalog import usual_data
    from rattle.training.harden import harden

    changes = given(options, "seed", "device", "epochs", "batch_size")
    data = usual_data(options.data)
    result = harden(
        Network(**{field.name: getattr(options, field.name) for field in fields(Network)}),
        replace(data, root=options.data_root, resize=options.resize, crop=options.crop),
        options.epsilon,
        norm=options.norm,
        clean_drop=options.clean_drop,
        method=options.method,
        lr=options.lr,
        attacks=options.attacks,
        n=options.n,
        out=options.out,
        overwrite=options.overwrite,
        console=Console(),
        **changes,
    )
    say(str(result))
