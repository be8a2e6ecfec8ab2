"""One attack on one batch, judged: no flag is lowered on an attack's word.

Its point must lie inside the ball and [0, 1] and be misclassified in a fresh forward pass.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack, RayS
from rattle.attacks.base import check_labels, finite, logits_of
from rattle.attacks.rows import spawn
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.randomness import ImageStreams
from rattle.runs.io import write_atomically
from rattle.threat import Threat
from rattle.weights import eval_mode


@runtime_checkable
class Ensemble(Protocol):
    """An attack made of others, each run on the images that the ones before it left (AutoAttack)."""

    def components(self) -> dict[str, Attack]: ...


def is_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model classifies rightly, [n] bool, in one fresh forward pass."""
    with torch.no_grad():
        logits = finite(logits_of(model, x))
    check_labels(logits, y)
    return logits.argmax(1) == y


def still_correct(model: nn.Module, attack: Attack, x_adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which images an attack's points leave robust: a point counts inside the ball and the box, and misclassified."""
    counts = attack.threat.contains(x_adv, x)
    return is_correct(model, torch.where(counts.view(-1, *[1] * (x.ndim - 1)), x_adv, x), y) | ~counts


@dataclass(frozen=True, slots=True)
class AttackOutcome:
    """An attack on one batch of rightly classified images."""

    robust: Tensor  # [n] bool
    x_adv: Tensor
    parts: dict[str, Tensor]
    distance: Tensor | None = None


def run_and_verify(model: nn.Module, attack: Attack, x: Tensor, y: Tensor, draws: ImageStreams) -> AttackOutcome:
    """Run an attack and check every point it returns."""
    kept = x.clone()  # attacks that write into their input are measured from the image as it was
    if isinstance(attack, RayS):
        found = attack.search(model, kept, y)
        robust = still_correct(model, attack, found.x_adv, x, y)
        return AttackOutcome(robust, found.x_adv, {}, found.distance)
    if not isinstance(attack, Ensemble):
        x_adv = attack(model, kept, y, generator=draws)
        return AttackOutcome(still_correct(model, attack, x_adv, x, y), x_adv, {})
    robust, x_adv, parts = torch.ones(len(x), dtype=torch.bool, device=x.device), x.clone(), {}
    for number, (name, component) in enumerate(attack.components().items()):
        live = robust.nonzero().squeeze(1)
        if len(live):
            part = run_and_verify(model, component, x[live], y[live], spawn(draws[live], number))
            x_adv[live], robust[live] = part.x_adv.to(x_adv), part.robust
        parts[name] = robust.clone()
    return AttackOutcome(robust, x_adv, parts)


def verify(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor, threat: Threat) -> Tensor:
    """Which saved images are what they claim: inside the ball and [0, 1], and misclassified in a fresh forward pass."""
    wrong = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    if len(x) == 0:
        return wrong
    x = x if x.is_floating_point() else to_float(x)
    sound = x_adv.isfinite().flatten(1).all(1) & threat.contains(x_adv, x)
    with eval_mode(model):
        for part in torch.arange(len(x), device=x.device).split(250):
            here = part[sound[part]]
            if len(here):
                wrong[here] = ~is_correct(model, x_adv[here], y[here])
    return wrong & sound


MOST_UNPACKED = 100  # times its packed size; floats of images do not shrink to a hundredth


def save_images(path: Path, index: Tensor, x_adv: np.ndarray, y: Tensor, threat: Threat) -> None:
    """Adversarial images as .npz: index into the test set, x_adv float32 in [0, 1], y, and the threat they keep to."""
    buffer = io.BytesIO()
    ball = {"norm": np.array(threat.norm), "epsilon": np.array(threat.epsilon)}
    np.savez_compressed(buffer, index=index.cpu().numpy(), x_adv=x_adv, y=y.cpu().numpy(), **ball)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def check_unpacked_size(path: Path) -> None:
    """Refuse an archive that would fill the memory before it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        packed = sum(member.compress_size for member in archive.infolist())
    if size > MOST_UNPACKED * max(packed, 2**20):
        raise RattleError(f"{path} would unpack to {size:,} bytes: that is not a file of images")


@dataclass(frozen=True, slots=True)
class SavedImages:
    """What save_images wrote."""

    index: Tensor  # into the test set, [n]
    x_adv: Tensor
    y: Tensor
    threat: Threat


def load_images(path: Path) -> SavedImages:
    """Open and check a file that save_images wrote; nothing in it can run."""
    try:
        check_unpacked_size(path)
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            index, x_adv, y = (torch.from_numpy(file[key]) for key in ("index", "x_adv", "y"))
            norm, epsilon = str(file["norm"]), float(file["epsilon"])
    except RattleError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
    ) as reason:
        raise RattleError(f"{path} is not a file of adversarial images, or is damaged") from reason
    whole_numbers = index.dtype == y.dtype == torch.int64 and index.ndim == y.ndim == 1
    if not whole_numbers or x_adv.dtype != torch.float32 or not len(index) == len(x_adv) == len(y):
        raise RattleError(f"{path} is not a file of adversarial images: index, x_adv and y do not belong together")
    return SavedImages(index, x_adv, y, Threat(norm=norm, epsilon=epsilon))  # type: ignore[arg-type]
