"""What an interrupted evaluation leaves: a line of JSON a batch, so that the same call resumes at the first missing.

Lines are in .NAME.RANK.partial, one file a rank, adversarial images in .NAME.FIRST.images.npy, one file a batch. What
the components of an ensemble found on a batch that is not done is in .NAME.FIRST.KEY.state, written after each.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.base import AttackExtras, describe_attack
from rattle.attacks.ensemble import Found
from rattle.data.decode import Pictures
from rattle.evaluation.results import check_name
from rattle.runs import distributed
from rattle.runs.checkpoint import digest
from rattle.runs.io import append_line, atomic_file, read_jsonl, write_atomically
from rattle.settings import Plain

STATE = r"[0-9a-f]+\.state"
ANY = rf"partial|images\.npy|{STATE}"  # the kinds of files that an interrupted evaluation leaves


def cache_key(
    model: nn.Module,
    x: Tensor | Pictures,
    y: Tensor,
    attack: Attack,
    *,
    seed: int,
    batch_size: int,
    mask: Sequence[bool] = (),
    index: Sequence[int] = (),
    draws: Sequence[int | None] = (),
) -> str:
    """A checksum of all that the flags depend on: layers, weights, images, labels, the attack and these settings.

    `mask` says which images are attacked, if not all that are correct; `index` is their numbers in the dataset, from
    which random draws follow; `draws` those of a random model. Weights of an attack's own models count too.
    """
    settings = {
        "attack": describe_attack(attack),
        "seed": seed,
        "batch_size": batch_size,
        "start": list(map(int, mask)),
    }
    if list(index) != list(range(len(index))):
        settings["index"] = list(index)
    if any(draws):
        settings["draws"] = list(draws)
    if isinstance(attack, AttackExtras) and attack.models():
        weights = [model_digest(other, x[:0], y[:0], {}) for other in attack.models().values()]
        settings["surrogate"] = weights[0] if len(weights) == 1 else weights
    return model_digest(model, x, y, settings)


def model_digest(model: nn.Module, x: Tensor | Pictures, y: Tensor, settings: Plain) -> str:
    x = x.fingerprint if isinstance(x, Pictures) else x
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()} | {"x": x, "y": y}
    text = json.dumps({**settings, "layers": repr(model)}, sort_keys=True, default=str)
    return digest(tensors, {"settings": text})


class ResultCache:
    """The batches of one attack that are on disk already, and the file that the next ones go to.

    folder: where the results will be; name: of the attack; key: its cache_key, batches with another one are dropped;
    images: drop also those whose adversarial images were not stored.
    """

    def __init__(self, folder: Path, name: str, key: str, *, images: bool = False) -> None:
        self.folder, self.name, self.key = folder, check_name(name), key
        self.path = folder / f".{name}.{distributed.rank()}.partial"
        self.done = {}  # by the batch's first image
        for path in cache_files(folder, name, "partial"):
            for row in read_jsonl(path, [], key="first"):
                if row.get("key") == key and (not images or self.image_file(row["first"]).exists()):
                    self.done[row["first"]] = row
        distributed.barrier()  # every rank has read what the ranks of an earlier call wrote
        distributed.on_main(self.drop_others)

    def drop_others(self) -> None:
        """Leave one file, of the batches that are done; if there are none, their images belong to another key."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.done.values()).encode())
        for path in cache_files(self.folder, self.name, rf"partial|{STATE}" if self.done else ANY):
            if path != self.path and not path.name.endswith(f".{self.key}.state"):
                path.unlink()

    def add(self, first: int, row: Plain, x_adv: Tensor | None = None) -> None:
        """Store the row of the batch that begins with image `first`, and its adversarial images if given."""
        if x_adv is not None:
            with atomic_file(self.image_file(first)) as file:
                np.save(file, x_adv.detach().cpu().float().numpy())
        append_line(self.path, {"first": first, "key": self.key, **row})
        self.state_file(first).unlink(missing_ok=True)

    def state_file(self, first: int) -> Path:
        return self.folder / f".{self.name}.{first}.{self.key}.state"

    def image_file(self, first: int) -> Path:
        return self.folder / f".{self.name}.{first}.images.npy"


def write_parts(path: Path, found: Found) -> None:
    """Store what the components of an ensemble found on a batch so far."""
    with atomic_file(path) as file:
        torch.save({"x_adv": found.x_adv, "correct": found.correct, "seconds": found.seconds}, file)


def read_batches(path: Path | None, x: Tensor, parts: int) -> Found | None:
    """What `write_parts` stored of an ensemble of so many parts on the images x; None if that is absent or damaged."""
    try:
        if path is None or path.is_symlink() or not path.is_file():
            return None
        stored = torch.load(path, weights_only=True, map_location="cpu")
        found = Found(stored["x_adv"].to(x), stored["correct"].to(x.device, torch.bool), stored["seconds"].float())
    except Exception:  # the readers of torch and pickle raise every kind on damaged bytes
        return None
    done = len(found.seconds)
    whole = found.x_adv.shape == x.shape and found.correct.shape == (1 + done, len(x)) and 1 <= done <= parts
    return found if whole else None


def cache_files(folder: Path, name: str, kind: str = ANY) -> list[Path]:
    """The cache files of an attack, by any rank; not those of attacks whose names begin with this one's."""
    pattern = re.compile(rf"\.{re.escape(name)}\.\d+\.({kind})")
    return sorted(path for path in folder.glob(".*") if pattern.fullmatch(path.name))


def finish(save: Callable[[], None], folder: Path, names: Iterable[str]) -> None:
    """Let the main rank write the final files and then remove the caches of these attacks; the others wait for it."""

    def write() -> None:
        save()
        for name in names:
            for path in cache_files(folder, name):
                path.unlink(missing_ok=True)

    distributed.on_main(write)
