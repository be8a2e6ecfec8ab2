"""What studies share: one list of work for several processes, the attacks on a trained network, packed flags."""

import argparse
import base64
import json
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from rattle.attacks import PGD, AutoAttack
from rattle.data import Images
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.recipes.recipe import Recipe
from rattle.runs.lock import Held, locked
from rattle.runs.paths import Run
from rattle.runs.source import environment
from rattle.threat import Threat
from rattle.training.loop import fit

TEST_IMAGES, AUTOATTACK_IMAGES = 10_000, 1_000
NEAR = Threat(epsilon=0.031)  # of PGD-20 and CW-20, as in the paper's Table 2
WEAK = {
    "pgd20": PGD(threat=NEAR, steps=20, step_size=0.003, start="uniform"),
    "cw20": PGD(threat=NEAR, steps=20, step_size=0.003, start="uniform", loss="cw"),
}
Job = TypeVar("Job", bound=Hashable)
WAIT = 30  # seconds until another look at what other processes have finished


def share_work(
    missing: Callable[[], Sequence[Job]], folder: Callable[[Job], Path], measure: Callable[[Job], None]
) -> None:
    """Measure one missing job after the other; wait while other processes have all of them.

    missing: the jobs that are not done, in order; folder: where a job's files are. A run that diverges is left.
    """
    diverged = set()
    while left := [job for job in missing() if job not in diverged]:
        for job in left:
            place = folder(job)
            try:
                with locked(place.with_name(f"{place.name}.lock")):  # also held while the run is attacked
                    measure(job)
                break
            except Held:
                continue
            except RattleError as refusal:
                diverged.add(job)
                print(f"{place.name}: {refusal}", flush=True)
        else:
            sleep(WAIT)


def gathered(results: Path, out: Path, key: Sequence[str], file: str = "found.json") -> dict[str, Any]:
    """All finished runs by their key: those of the folder, and those of the results whose folders may be gone."""
    found = json.loads(results.read_text())["runs"] if results.exists() else []
    found += [json.loads(path.read_text()) for path in out.glob(f"*/{file}")]
    runs = {tuple(run[name] for name in key): run for run in found}
    return {"environment": environment(), "runs": [runs[each] for each in sorted(runs)]}


def command(
    doc: str | None,
    results: Path,
    key: Sequence[str],
    *,
    missing: Callable[[Path], Sequence[Job]],
    folder: Callable[[Job, Path], Path],
    measure: Callable[[Job, argparse.Namespace], None],
    report: Callable[[], None],
) -> None:
    """The command line of a study: train and attack what is missing, gather it, or compare what was gathered."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs") / results.stem)
    parser.add_argument("--gather", action="store_true", help=f"write results/{results.name}, train nothing")
    parser.add_argument("--report", action="store_true", help="compare what was gathered")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        report()
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        results.write_text(json.dumps(gathered(results, options.out, key)) + "\n")
        return
    share_work(lambda: missing(options.out), lambda job: folder(job, options.out), lambda job: measure(job, options))


def train(recipe: Recipe, folder: Path) -> Run:
    """Train a run, which may be there in part."""
    return fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")


def attacked(model: nn.Module, images: Images, store: Path | None = None) -> dict[str, Any]:
    """Accuracies in %, and one flag for each image: PGD-20 and CW-20 of all images, AutoAttack of the first 1,000.

    AutoAttack is run on images that PGD-20 and CW-20 left correct: what those broke, at a smaller epsilon, is broken.
    """
    weak = evaluate(model, images.x, images.y, WEAK, out=store)
    flags = {"clean": weak.clean} | {name: attack.flags for name, attack in weak.attacks.items()}
    few = min(AUTOATTACK_IMAGES, len(images.y))
    attack = {"autoattack": AutoAttack(threat=Threat(epsilon=8 / 255))}
    left = list(map(bool, weak.worst_case[:few]))
    strong = evaluate(model, images.x[:few], images.y[:few], attack, mask=left, out=store, batch_size=few)
    flags["autoattack"] = strong.attacks["autoattack"].flags
    found: dict[str, Any] = {name: 100 * sum(each) / len(each) for name, each in flags.items()}
    found["flags"] = {name: packed(each) for name, each in flags.items()}
    return found


def packed(flags: Sequence[float]) -> str:
    """One bit for each image, as base64."""
    return base64.b64encode(np.packbits(np.array(flags, bool)).tobytes()).decode()


def unpacked(text: str, n: int) -> np.ndarray:
    """The flags of n images."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:n].astype(bool)
