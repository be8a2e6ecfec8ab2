"""What an interrupted evaluation leaves: a line of JSON a batch, so that the same call goes on at the first missing.

Lines are in .NAME.RANK.partial, one file a rank, adversarial images in .NAME.FIRST.images.npy, one file a batch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import UsesModels, describe
from rattle.evaluation.results import check_name, ints
from rattle.runs import distributed
from rattle.runs.checkpoint import digest
from rattle.runs.io import append_line, atomic_file, read_intact_lines, writing


def cache_key(
    model: nn.Module, x: Tensor, y: Tensor, attack: Attack, *, seed: int, batch_size: int, mask: Sequence[bool] = ()
) -> str:
    """A checksum of all that the flags depend on: layers, weights, images, labels, the attack and these settings.

    `mask` says which images are attacked, if not all that are correct. Weights of an attack's own models count too.
    """
    settings = {"attack": describe(attack), "seed": seed, "batch_size": batch_size, "start": ints(mask)}
    if isinstance(attack, UsesModels):
        settings |= {name: model_digest(other, x[:0], y[:0], {}) for name, other in attack.models().items()}
    return model_digest(model, x, y, settings)


def model_digest(model: nn.Module, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> str:
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()} | {"x": x, "y": y}
    text = json.dumps({**settings, "layers": repr(model)}, sort_keys=True, default=str)
    return digest({key: value.detach().cpu() for key, value in tensors.items()}, {"settings": text})


class ResultCache:
    """The batches of one attack that are on disk already, and the file that the next ones go to.

    folder: where the results will be; name: of the attack; key: its cache_key, batches with another one are dropped.
    """

    def __init__(self, folder: Path, name: str, key: str) -> None:
        self.folder, self.name = folder, check_name(name)
        self.path = folder / f".{name}.{distributed.rank()}.partial"
        self.done: dict[int, dict[str, Any]] = {}  # by the index of the batch's first image
        header = {"mark": key}
        with writing(self.path):
            for path in self.files("partial"):
                first, *rows = read_intact_lines(path) or [{}]
                if first == header:
                    self.done |= {row["first"]: row for row in rows if "first" in row}
            distributed.barrier()  # every rank has read what the ranks of an earlier call wrote
            if read_intact_lines(self.path, repair=True)[:1] != [header]:
                self.path.unlink(missing_ok=True)
                append_line(self.path, header)
            if not self.done and distributed.is_main():  # the images belong to batches that were dropped
                self.remove("images.npy")
            distributed.barrier()

    def add(self, first: int, row: Mapping[str, Any], x_adv: Tensor | None = None) -> None:
        """Store the row of the batch that begins with image `first`, and its adversarial images if given."""
        if x_adv is not None:
            with atomic_file(self.image_file(first)) as file:
                np.save(file, x_adv.detach().cpu().float().numpy())
        append_line(self.path, {"first": first, **row})

    def image_file(self, first: int) -> Path:
        return self.folder / f".{self.name}.{first}.images.npy"

    def images(self, first: int) -> np.ndarray | None:
        return np.load(self.image_file(first)) if self.image_file(first).exists() else None

    def files(self, kind: str) -> list[Path]:
        """The files of this attack, by any rank; not those of attacks whose names begin with this one's."""
        pattern = re.compile(rf"\.{re.escape(self.name)}\.\d+\.{re.escape(kind)}")
        return sorted(path for path in self.folder.iterdir() if pattern.fullmatch(path.name))

    def remove(self, *kinds: str) -> None:
        for kind in kinds or ("partial", "images.npy"):
            for path in self.files(kind):
                path.unlink(missing_ok=True)
