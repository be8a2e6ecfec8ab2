"""Accuracy under common corruptions, by kind and severity: CIFAR-10-C's files, or corruptions of the test images."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data import Images
from rattle.data.cifar_c import SEVERITIES, read_corruptions
from rattle.data.corruptions import corrupt, kinds_for
from rattle.data.dataset import choose_images
from rattle.errors import RattleError
from rattle.evaluation.evaluate import classify, make_plan
from rattle.evaluation.target import Target
from rattle.runs.io import Plain, write_json
from rattle.runs.paths import Run
from rattle.stats import mean_interval
from rattle.weights import eval_mode

MADE = "made"  # instead of a folder: corruptions of the target's own test images
CORRUPTED_BATCH = 250
Parts = Mapping[str, Callable[[int, Tensor], Images]]  # kind -> its images at a severity from 1 on, by base image


def measure_corruptions(
    target: Target,
    source: str = MADE,
    *,
    n: int | None = None,
    sample_seed: int = 0,
    seed: int = 0,
    out: Path | None = None,
) -> Plain:
    """Measure every kind at every severity on the same images, and write corruptions.json.

    source: a folder of KIND.npy and labels.npy as CIFAR-10-C has them, or `made`. n: images, a sample, classes in
    proportion; all when not given. seed: of what is made. out: the folder of the file, the target's own when not given.
    """
    y, parts = made(target, seed) if source == MADE else stored_corruptions(target, Path(source).expanduser())
    index = choose_images(y, n, seed=sample_seed)
    correct = np.zeros((len(parts), SEVERITIES, len(index)), bool)
    for number, images_of in enumerate(parts.values()):
        for severity in range(1, SEVERITIES + 1):
            correct[number, severity - 1] = flags(target, images_of(severity, index))
    found: Plain = {
        "data": target.metadata["data"] if source == MADE else source,
        "made": source == MADE,
        "n": len(index),
        "seed": seed,
        "sample_seed": sample_seed,
        "severities": SEVERITIES,
        "mean": corruption_summary(correct),
        "kinds": {},
    }
    for kind, of_kind in zip(parts, correct, strict=True):
        found["kinds"][kind] = corruption_summary(of_kind) | {
            "by_severity": [corruption_summary(each) for each in of_kind]
        }
    if source == MADE:
        found["clean"] = corruption_summary(flags(target, target.test.subset(index)))
    folder = out or target.results
    write_json(folder / Run.corruptions.name, found, indent=1)
    return found


def corruption_summary(correct: np.ndarray) -> Plain:
    """Accuracy with its 95 % interval over images, of flags [..., n]: an image's mean over kinds and severities."""
    of_images = correct.reshape(-1, correct.shape[-1]).mean(0)
    return {"accuracy": float(of_images.mean()), **mean_interval(of_images.tolist())._asdict()}


def flags(target: Target, images: Images) -> np.ndarray:
    """Which images the model classifies correctly, [n] bool."""
    with eval_mode(target.model):
        return classify(make_plan(target.model, images.x, images.y, batch_size=CORRUPTED_BATCH))[0].numpy()


def made(target: Target, seed: int) -> tuple[Tensor, Parts]:
    """Labels of the target's test images, and what makes each kind of them."""
    test = target.test
    if test.x.dtype != torch.uint8 or test.decoded:
        raise RattleError("corruptions are made of uint8 images in memory: give a folder of corrupted ones")

    def images_of(kind: str, severity: int, index: Tensor) -> Images:
        x = corrupt(test.x[index].cpu().numpy(), kind, severity, index.numpy(), seed)
        return Images(torch.from_numpy(x), test.y[index])

    return test.y, {kind: partial(images_of, kind) for kind in kinds_for(test.shape[1])}


def stored_corruptions(target: Target, folder: Path) -> tuple[Tensor, Parts]:
    """Labels of the images that were corrupted, and each kind's part of its file."""
    kinds = read_corruptions(folder)
    first = next(iter(kinds.values()))
    base = len(first) // SEVERITIES
    if first.shape[1:] != target.test.shape[1:]:
        raise RattleError(f"{folder} has images {list(first.shape[1:])}, the model takes {list(target.test.shape[1:])}")
    if int(first.y.max()) >= len(target.classes):
        raise RattleError(
            f"{folder} has labels up to {int(first.y.max())}, the model has {len(target.classes)} classes"
        )

    def images_of(part: Images, severity: int, index: Tensor) -> Images:
        return part[index + (severity - 1) * base]

    return first.y[:base], {kind: partial(images_of, part) for kind, part in kinds.items()}
