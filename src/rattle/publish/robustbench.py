"""A submission to RobustBench: weights, model file, model-info JSON, the issue's text and the adversarial images."""

import json
import os
import re
import tempfile
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from rattle import __version__
from rattle.attacks.base import is_correct
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.evaluation.results import load_results
from rattle.evaluation.target import Target, target_from_checkpoint
from rattle.evaluation.verify import load_images
from rattle.models.export import check_logits
from rattle.models.robustbench import Architecture, find_architecture, model_file, robustbench_weights
from rattle.models.user import import_builder
from rattle.recipes.recipe import Recipe
from rattle.report.naming import epsilon_text
from rattle.runs.io import writing
from rattle.runs.load import open_checkpoint
from rattle.threat import Threat

# RobustBench's leaderboards of data that this library has, and their epsilon.
LEADERBOARDS = {("cifar10", "linf"): 8 / 255, ("cifar10", "l2"): 0.5, ("cifar100", "linf"): 8 / 255}
NORMS = {"linf": "Linf", "l2": "L2"}  # as RobustBench writes them
MOVED = 0.001  # the share of verdicts that may differ from the stored ones: another device rounds differently
BLANK = "(fill in)"
Info = dict[str, str | bool | int | None]
ZOO = "https://github.com/RobustBench/robustbench/tree/master/robustbench/model_zoo/architectures"
# RobustBench's issue template "New Model(s)".
ISSUE = """Title: [New Model] {name}

# Paper Information

- **Paper Title**: {title}
- **Paper URL**: {link}
- **Paper authors**: {authors}

# Leaderboard Claim(s)

## Model 1

- **Architecture**: {architecture}
- **Threat Model**: {norm}
- **eps**: {eps}
- **Clean accuracy**: {clean_acc}
- **Robust accuracy**: {autoattack_acc}
- **Additional data**: {additional_data}
- **Evaluation method**: AutoAttack (standard version, by rattle {version}) on all {n} test images of {dataset}
- **Checkpoint and code**: {checkpoint}

# Model Zoo:

- [ ] I want to add my models to the Model Zoo (check if true)
- [{known}] I use an architecture that is included among those [here]({zoo}) or in `timm`. If not, I added the link to \
the architecture implementation so that it can be added.
- [ ] I agree to release my model(s) under MIT license (check if true) **OR** under a custom license, located here: \
(put the custom license URL here if a custom license is needed. If no URL is specified, we assume that you are fine \
with MIT)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What RobustBench asks besides what the run and its results say; what is left out is yours to fill in."""

    name: str = ""  # in the model zoo: first author, year, first word of the title (Rice2020Overfitting)
    title: str = ""  # of the paper
    link: str = ""  # to the paper
    authors: str = ""  # of the paper, separated by commas
    venue: str = ""  # of the paper, such as CVPR 2023
    reported: float | None = None  # robust accuracy in the paper, in percent; the measured one when not given
    additional_data: bool = False  # trained on more images than the dataset's own
    checkpoint: str = ""  # where others can download weights and code

    def __post_init__(self) -> None:
        if self.name and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", self.name):
            rule = "begins with a letter and goes on with letters, digits, _ and -, as in Rice2020Overfitting"
            raise RattleError(f"submission.name {rule}; got {self.name!r}")
        if self.reported is not None and not 0 <= self.reported <= 100:
            raise RattleError(f"submission.reported is a percentage, from 0 to 100; got {self.reported}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The test set attacked, and what the model makes of it."""

    x_adv: Tensor  # float32 [n, C, H, W] in [0, 1], in the order of the test set; clean where the model was not broken
    clean: float  # accuracy in percent without the attack
    robust: float  # accuracy in percent on x_adv
    threat: Threat


def export_robustbench(
    path: str | Path,
    out: str | Path,
    submission: Submission | None = None,
    *,
    averaged: bool = True,
    data_root: str | None = None,
    trust_code: bool = False,
) -> tuple[list[Path], list[str]]:
    """Write what a submission to RobustBench takes into a folder: the files, and sentences to read before sending them.

    path: a run folder or checkpoint that AutoAttack was run on, see `measure_claim`. out: the folder; files of an
    earlier export are replaced. submission: what only its authors know. averaged: take the averaged weights if the run
    has them. data_root: where datasets are. trust_code: as for `load`.
    """
    submission, saved = submission or Submission(), open_checkpoint(path, trust_code=trust_code)
    recipe, shape = saved.recipe, saved.shape
    target = target_from_checkpoint(saved, root=data_root, averaged=averaged)
    options = {"width": recipe.width, "activation": recipe.activation}
    architecture = find_architecture(target.model, recipe.model, shape, **options)
    claim = measure_claim(target, f"{path}{'' if averaged else ' --raw'}")
    name = submission.name or default_name(recipe)
    dataset, norm = recipe.data.name, claim.threat.norm
    settings = {"weights": f"{name}.pt", "shape": shape, "classes": len(saved.classes), "method": recipe.method}
    info = model_info(submission, claim, dataset, architecture.title)
    texts = {
        "model.py": model_file(architecture, timm_name=timm_name(name, dataset, norm), **settings),
        f"{name}.json": json.dumps(info, indent=2) + "\n",
        "issue.md": issue_text(name, submission, info, claim, architecture),
    }
    tensors = {f"{name}.pt": robustbench_weights(target.model, architecture), f"{name}-adversarial.pt": claim.x_adv}
    files, notes = write_checked(Path(out), texts, tensors, target, architecture)
    return files, notes + open_questions(submission, dataset, claim.threat)


def measure_claim(target: Target, path: str) -> Claim:
    """AutoAttack's stored result and images of the whole test set, counted again; RattleError if they are not there.

    path: of the run, for the command that makes them.
    """
    command = f"run `rattle evaluate {path} --attacks autoattack --save-adversarial`"
    stored, file = load_results(target.results)[0].get("autoattack"), target.results / "autoattack-adversarial.npz"
    missing = file.with_name("autoattack.json") if stored is None else file
    if stored is None or not file.is_file():
        raise RattleError(f"RobustBench asks for AutoAttack's result and images, and {missing} is not there: {command}")
    images, n = load_images(file), len(target.test)
    if len(stored.flags) != n:
        raise RattleError(f"AutoAttack ran on {len(stored.flags)} images and RobustBench asks for all {n}: {command}")
    x, verdicts = (
        to_float(target.test.to("cpu").x).float().contiguous(),
        torch.tensor([stored.clean, stored.flags]).bool(),
    )
    fits = images.x_adv.shape[1:] == x.shape[1:] and bool(((images.index >= 0) & (images.index < n)).all())
    if fits:
        x_adv = x.index_copy(0, images.index, images.x_adv)
        found = torch.stack([correct(target, each) for each in (x, x_adv)])
        moved = float((found != verdicts).float().mean(1).max())
        if moved <= MOVED and bool(images.threat.contains(x_adv, x).all()):
            clean, robust = (100 * found.double().mean(1)).tolist()
            return Claim(x_adv=x_adv, clean=clean, robust=robust, threat=images.threat)
    raise RattleError(
        f"{file} does not hold for {target.metadata['checkpoint']} and these test images: {command} again"
    )


def correct(target: Target, x: Tensor) -> Tensor:
    """Which of the test images, given as x, the model classifies correctly, [n] bool."""
    rows = torch.arange(len(x)).split(250)
    each = (is_correct(target.model, x[i].to(target.device), target.test.y[i].to(target.device)) for i in rows)
    return torch.cat([flags.cpu() for flags in each])


def default_name(recipe: Recipe) -> str:
    """The recipe's name without data and norm, which RobustBench adds itself."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", recipe.name)
    name = name.removeprefix(f"{recipe.data.name}-{recipe.attack.threat.norm}-")
    return name if name[:1].isalpha() else f"rattle_{name}"


def timm_name(name: str, dataset: str, norm: str) -> str:
    """The name by which RobustBench's `load_model(name, dataset, norm)` looks for a timm model.

    >>> timm_name("Rice2020Overfitting-WRN", "cifar10", "linf")
    'rice2020overfitting_wrn_cifar10_linf'
    """
    return re.sub(r"\W", "_", f"{name}_{dataset}_{norm}".lower(), flags=re.ASCII)


def model_info(submission: Submission, claim: Claim, dataset: str, architecture: str) -> Info:
    """The twelve fields of RobustBench's model_info files; None where its own code leaves a blank."""
    return {
        "link": submission.link or None,
        "name": submission.title or None,
        "authors": submission.authors or None,
        "additional_data": submission.additional_data,
        "number_forward_passes": 1,
        "dataset": dataset,
        "venue": submission.venue or None,
        "architecture": architecture,
        "eps": epsilon_text(claim.threat.epsilon),
        "clean_acc": f"{claim.clean:.2f}",
        "reported": f"{claim.robust if submission.reported is None else submission.reported:.2f}",
        "autoattack_acc": f"{claim.robust:.2f}",
    }


def issue_text(name: str, submission: Submission, info: Info, claim: Claim, architecture: Architecture) -> str:
    """RobustBench's issue template, filled in as far as it is known."""
    norm = claim.threat.norm
    known = info | {"name": name, "title": submission.title, "checkpoint": submission.checkpoint, "zoo": ZOO}
    known |= {"norm": NORMS.get(norm, norm), "n": len(claim.x_adv), "version": __version__}
    known |= {"additional_data": str(submission.additional_data).lower()}
    known |= {"known": "x" if architecture.from_robustbench else " "}
    return ISSUE.format(**{key: BLANK if value in ("", None) else value for key, value in known.items()})


def write_checked(
    out: Path, texts: dict[str, str], tensors: dict[str, object], target: Target, architecture: Architecture
) -> tuple[list[Path], list[str]]:
    """Write the files aside, run model.py, and move them to `out` if it computes what the model does."""
    with writing(out / "model.py"), tempfile.TemporaryDirectory(dir=out, prefix=".export-") as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        for name, value in tensors.items():
            torch.save(value, Path(folder) / name)
        notes = check_model_file(Path(folder) / "model.py", target, architecture, out)
        for name in (*texts, *tensors):
            os.replace(Path(folder) / name, out / name)
    return [out / name for name in (*texts, *tensors)], notes


def check_model_file(file: Path, target: Target, architecture: Architecture, out: Path) -> list[str]:
    """Compare the logits of the generated file with the model's; a sentence if that is not possible here."""
    unchecked = "the weights' names were checked, the logits were not, since robustbench could not be imported here"
    if architecture.from_robustbench and find_spec("robustbench") is None:
        return [f"{unchecked}: pip install robustbench, and export again"]
    with warnings.catch_warnings(action="ignore"):  # robustbench and timm warn about each other
        try:
            load = import_builder(f"{file}:load")
        except RattleError as reason:
            if not architecture.from_robustbench:
                raise
            return [f"{unchecked}: {reason.__cause__ or reason}"]
    few = torch.arange(min(8, len(target.test)))
    check_logits(load().requires_grad_(False), target.model, to_float(target.test[few].x), "model.py", out)
    return []


def open_questions(submission: Submission, dataset: str, threat: Threat) -> list[str]:
    """What stands between these files and a leaderboard."""
    blank = [
        field for field in ("name", "title", "link", "authors", "venue", "checkpoint") if not getattr(submission, field)
    ]
    notes = [f"left for you to fill in, or give --submission.{blank[0]} ...: {', '.join(blank)}"] if blank else []
    radius, here = LEADERBOARDS.get((dataset, threat.norm)), f"{threat.norm} {epsilon_text(threat.epsilon)}"
    if radius is None:
        notes.append(f"RobustBench has no leaderboard for {dataset} {threat.norm}: model.py works with timm alone")
    elif abs(radius - threat.epsilon) > 1e-6:
        right = epsilon_text(radius)
        notes.append(
            f"AutoAttack ran at {here} and the leaderboard is at {right}: evaluate with --threat.epsilon {right}"
        )
    return notes
