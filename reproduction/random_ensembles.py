"""Does averaging over draws of u at test time help networks that were trained with u? On CIFAR-10.

    python -m reproduction.random_ensembles cifar10.npz            # trains and attacks what is missing
    python -m reproduction.random_ensembles cifar10.npz --autoattack  # AutoAttack of the fixed ensembles
    python -m reproduction.random_ensembles cifar10.npz --gather   # writes results/random-ensembles.json
    python -m reproduction.random_ensembles --report               # the table of what was gathered

The networks are those of trade_off.py at 1/lambda 4, whose folder this study shares. The protocol, fixed before the
first run, is reproduction/studies/randomized-models.md. A killed run resumes, several processes share the work.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, PGD, AutoAttack
from rattle.attacks.ensemble import AttackSequence
from rattle.data import Images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.randomized import Randomized, log_mean
from rattle.report.writers import markdown_table
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.stats import mcnemar, seeds_interval, t_interval
from rattle.threat import Threat
from rattle.weights import Noise, perturbed
from reproduction import trade_off
from reproduction.study import gathered, packed, share_work, train, unpacked

VARIANTS, VALUE, SEEDS = ("trades", "head 0.2", "sampled filter 0.05"), 4, (0, 1, 2)
NOISES = {"sigma 0.01": Noise(sigma=0.01), "0.05 of each filter": Noise(sigma=0.05, scale="filter")}
DRAWS = (1, 4, 16)  # of the fixed ensembles
FIXED = [(title, draws) for title in NOISES for draws in DRAWS]
CLEAN_IMAGES, CLEAN_FRESH, ATTACKED = 10_000, 2_000, 250  # fresh draws are dearer
OF_A_RATE = 32  # fresh draws
THREAT = Threat(epsilon=8 / 255)
PGD20 = {"pgd20": PGD(threat=THREAT, steps=20, step_size=0.003, start="uniform")}
# The first two components of AutoAttack with three targets for nine: 16 draws are 16 times the passes.
APGD3 = {
    "apgd3": AttackSequence(
        {"apgd-ce": APGD(threat=THREAT), "apgd-t": APGD(threat=THREAT, loss="dlr-targeted", targets=3)}
    )
}
COLUMNS = ("clean", "autoattack", "apgd3", "pgd20")
RESULTS = Path(__file__).parent / "results" / "random-ensembles.json"
KEY, FILE = ("variant", "seed"), "ensembles.json"  # of a network


def of_fixed(model: nn.Module, images: Images, store: Path, attacks: dict[str, Any]) -> dict[str, str]:
    """The flags of a deterministic model: clean of all images, under attack of the first ones."""
    few = images[torch.arange(ATTACKED)]
    clean = evaluate(model, images.x, images.y, {}, check_model=False, quiet=True).clean
    found = evaluate(model, few.x, few.y, attacks, out=store, check_model=False, quiet=True).attacks
    return {"clean": packed(clean)} | {name: packed(attack.flags) for name, attack in found.items()}


def of_fresh(model: nn.Module, images: Images, store: Path) -> dict[str, Any]:
    """How many of 32 fresh draws are correct, image by image, and the standard errors by draws that images share."""
    first, few = images[torch.arange(CLEAN_FRESH)], images[torch.arange(ATTACKED)]
    clean = evaluate(model, first.x, first.y, {}, draws=OF_A_RATE, check_model=False, quiet=True)
    found = evaluate(model, few.x, few.y, PGD20, draws=OF_A_RATE, out=store, check_model=False, quiet=True)
    attack = found.attacks["pgd20"]
    return {
        "clean": [round(rate * OF_A_RATE) for rate in clean.clean],
        "pgd20": [round(rate * OF_A_RATE) for rate in attack.flags],
        "errors": {"clean": clean.error, "pgd20": attack.error},
    }


def measure(variant: str, seed: int, options: argparse.Namespace) -> None:
    """Train one network unless the trade-off study did, and attack its mean weights and its ensembles."""
    folder = options.out / trade_off.name_of(variant, VALUE, seed)
    if not (folder / "found.json").exists():
        trade_off.measure((variant, VALUE, seed), options)
    start = time.process_time()
    model = load(Run(folder).checkpoint("last"))
    images = Data(name=str(options.data)).load().test[torch.arange(CLEAN_IMAGES)]
    store = folder / "ensembles"
    found: dict[str, Any] = {"mean weights": of_fixed(model, images, store / "mean", APGD3 | PGD20)}
    for title, noise in NOISES.items():
        for draws in DRAWS:
            ensemble = Randomized(model, noise, draws, seed=seed)
            place = store / f"{noise.scale}-{draws}"
            found[f"{title}, {draws} draws"] = of_fixed(ensemble, images, place, APGD3)
        fresh = Randomized(model, noise, 1, seed=None)
        found[f"{title}, fresh"] = of_fresh(fresh, images, store / f"{noise.scale}-fresh")
    known = json.loads((folder / "found.json").read_text())
    result = {
        "variant": variant,
        "seed": seed,
        "autoattack": known["flags"]["autoattack"],  # of the mean weights, the first 1,000 images
        "models": found,
        "cpu_seconds": {"training": known["cpu_seconds"], "ensembles": time.process_time() - start},
    }
    write_atomically(folder / FILE, json.dumps(result).encode())
    print(folder.name, result["cpu_seconds"], flush=True)


def known(folder: Path, variant: str, seed: int) -> dict[str, Any]:
    """What was measured of a network: in its folder, or in the results if the folder is gone."""
    if (folder / FILE).exists():
        return json.loads((folder / FILE).read_text())
    for run in json.loads(RESULTS.read_text())["runs"]:
        if (run["variant"], run["seed"]) == (variant, seed):
            return run
    raise RattleError(f"{folder.name} was not measured yet: run this without --autoattack first")


def network(folder: Path, variant: str, seed: int, options: argparse.Namespace, found: dict[str, str]) -> nn.Module:
    """A trained network; one whose folder is gone is trained again and must be right on the images it was right on."""
    recipe = trade_off.recipe_of(variant, VALUE, seed, str(options.data))
    run = train(recipe, folder)
    model = load(run.checkpoint("last"))
    images = Data(name=str(options.data)).load().test[torch.arange(CLEAN_IMAGES)]
    clean = evaluate(model, images.x, images.y, {}, check_model=False, quiet=True).clean
    if packed(clean) != found["clean"]:
        raise RattleError(f"{folder.name} is another network than the one whose results are stored")
    return model


class Drawn(nn.Module):
    """A fixed ensemble whose networks are made once: `Randomized` draws u again in every pass, of few images too."""

    def __init__(self, ensemble: Randomized) -> None:
        super().__init__()
        assert ensemble.seed is not None
        generator = torch.Generator().manual_seed(ensemble.seed)
        networks = []
        for _ in range(ensemble.draws):
            u = ensemble.noise(ensemble.model, generator=generator)
            with perturbed(ensemble.model, u):
                networks.append(copy.deepcopy(ensemble.model))
        self.networks = nn.ModuleList(networks).requires_grad_(False)
        self.networks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return log_mean([network(x).log_softmax(1) for network in self.networks])


def autoattack(variant: str, seed: int, options: argparse.Namespace) -> None:
    """AutoAttack of a network's fixed ensembles, on the images that their first attack left."""
    images = Data(name=str(options.data)).load().test[torch.arange(ATTACKED)]
    attack = {"autoattack": AutoAttack(threat=THREAT)}
    folder = options.out / trade_off.name_of(variant, VALUE, seed)
    result = known(folder, variant, seed)
    model = network(folder, variant, seed, options, result["models"]["mean weights"])
    for title, draws in FIXED:
        found = result["models"][f"{title}, {draws} draws"]
        if "autoattack" in found:
            continue
        start = time.process_time()
        ensemble = Drawn(Randomized(model, NOISES[title], draws, seed=seed))
        left = unpacked(found["apgd3"], ATTACKED).tolist()
        store = folder / "ensembles" / f"{NOISES[title].scale}-{draws}-autoattack"
        evaluation = evaluate(ensemble, images.x, images.y, attack, mask=left, out=store, check_model=False, quiet=True)
        found["autoattack"] = packed(evaluation.attacks["autoattack"].flags)
        result["cpu_seconds"]["autoattack"] = result["cpu_seconds"].get("autoattack", 0) + time.process_time() - start
        write_atomically(folder / FILE, json.dumps(result).encode())
        print(folder.name, title, draws, f"{time.process_time() - start:.0f} s", flush=True)


def jobs(out: Path, *, autoattacked: bool) -> list[tuple[str, int]]:
    """The networks that are missing, or whose ensembles AutoAttack is, whole seeds first."""
    done = set()
    for run in gathered(RESULTS, out, KEY, FILE)["runs"]:
        if not autoattacked or all("autoattack" in run["models"][f"{title}, {draws} draws"] for title, draws in FIXED):
            done.add((run["variant"], run["seed"]))
    return [(variant, seed) for seed in SEEDS for variant in VARIANTS if (variant, seed) not in done]


def rates(found: dict[str, Any], column: str) -> np.ndarray:
    """What a model has in a column, image by image: flags, or shares of fresh draws."""
    if isinstance(found[column], list):
        return np.array(found[column]) / OF_A_RATE
    return unpacked(found[column], CLEAN_IMAGES if column == "clean" else ATTACKED).astype(float)


def gap_text(own: np.ndarray, mean: np.ndarray, error: float, *, pooled: bool) -> str:
    """What a model has more than the mean weights, [networks, images], with its 95 % interval.

    pooled: over images, of these networks; else over seeds, and of a single one over images. error: by draws.
    """
    gaps = own - mean
    if len(gaps) > 1 and not pooled:
        interval = seeds_interval(gaps, error)
    elif len(gaps) > 1 or error:
        interval = t_interval(gaps.mean(0).tolist(), error)
    else:
        interval = mcnemar(mean[0].tolist(), own[0].tolist()).interval
    return f"{100 * gaps.mean():+.2f} [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"


def table(title: str, models: Sequence[Mapping[str, Any]], *, pooled: bool = False) -> list[list[str]]:
    """Rows of networks: the mean weights' accuracies in %, and what each ensemble has more or less, in points."""
    rows = []
    for name in models[0]:
        row = [title, name, str(len(models))]
        for column in COLUMNS:
            if not all(column in each[name] for each in models):
                row.append("")
                continue
            own = np.stack([rates(each[name], column) for each in models])
            mean = np.stack([rates(each["mean weights"], column)[: own.shape[1]] for each in models])
            errors = [each[name].get("errors", {}).get(column, 0.0) for each in models]
            gap = gap_text(own, mean, math.hypot(*errors) / len(errors), pooled=pooled)
            row.append(f"{100 * own.mean():.2f} %" if name == "mean weights" else gap)
        rows.append(row)
    return rows


def report() -> None:
    """All networks together, over images; then each kind over seeds."""
    runs = json.loads(RESULTS.read_text())["runs"]
    for run in runs:
        run["models"]["mean weights"]["autoattack"] = run["autoattack"]
    headings = ["network", "model", "networks", *COLUMNS]
    print(markdown_table(headings, table("all", [run["models"] for run in runs], pooled=True), left=2))
    rows = []
    for variant in VARIANTS:
        rows += table(variant, [run["models"] for run in runs if run["variant"] == variant])
    print(markdown_table(headings, rows, left=2))
    cpu = [sum(run["cpu_seconds"].values()) for run in runs]
    print(f"{len(runs)} networks, {sum(cpu) / 60:.0f} CPU minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/trade-off"))
    parser.add_argument("--autoattack", action="store_true", help="AutoAttack of the ensembles of trained networks")
    parser.add_argument("--gather", action="store_true", help="write results/random-ensembles.json, train nothing")
    parser.add_argument("--report", action="store_true", help="compare what was gathered")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        report()
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        RESULTS.write_text(json.dumps(gathered(RESULTS, options.out, KEY, FILE)) + "\n")
        return
    step = autoattack if options.autoattack else measure
    share_work(
        lambda: jobs(options.out, autoattacked=options.autoattack),
        lambda job: options.out / trade_off.name_of(job[0], VALUE, job[1]),
        lambda job: step(*job, options),
    )


if __name__ == "__main__":
    main()
