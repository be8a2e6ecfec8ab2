"""The names of datasets, known without torch.

A source is a function load(root) -> Dataset. One file and one line of SOURCES add one, or one call of
`register_source` at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rattle.data.urls import URLS, Remote
from rattle.errors import RattleError, unknown
from rattle.registry import Entry, Registry

if TYPE_CHECKING:
    from rattle.data.dataset import Dataset

    Load = Callable[[Path], Dataset]

SOURCES: Registry[Load] = Registry(
    "dataset",
    {
        "digits": Entry(".digits:digits", "8x8 handwritten digits of scikit-learn; nothing to download"),
        "cifar10": Entry(".cifar:cifar10", "32x32 photographs, 10 classes", "Krizhevsky 2009"),
        "cifar100": Entry(".cifar:cifar100", "32x32 photographs, 100 classes", "Krizhevsky 2009"),
        "svhn": Entry(".svhn:svhn", "32x32 house numbers", "Netzer et al. 2011"),
        "mnist": Entry(".idx:mnist", "28x28 handwritten digits", "LeCun et al. 1998"),
        "fashion-mnist": Entry(".idx:fashion_mnist", "28x28 clothes", "Xiao et al. 2017"),
    },
    package="rattle.data",
)
DECODED = {"imagenet": 224}  # found under the root, decoded on the fly; the side of the crops when not given


def register_source(name: str, load: Load, *, urls: Sequence[Remote] = ()) -> None:
    """Make `Data(name=name)` and `rattle ... --data.name NAME` load a dataset of your own.

    name: not a built-in one; registering a name again replaces it. load: given the folder of datasets, returns the
    Dataset. urls: files that `rattle data get NAME` downloads.
    """
    SOURCES.add(name, load)
    if urls:
        URLS[name] = tuple(urls)


def list_datasets() -> list[str]:
    """The names of all datasets, built-in and registered."""
    return list(SOURCES)


def check_source(name: str) -> None:
    """Raise RattleError for what is neither a dataset's name nor a file or folder that is there."""
    path = Path(name).expanduser()
    if name in SOURCES or name in DECODED or ":" in name or path.is_dir() or (path.suffix == ".npz" and path.is_file()):
        return
    if path.suffix == ".npz" or len(path.parts) > 1:
        kind = ".npz file" if path.suffix == ".npz" else ".npz file or folder of class folders"
        raise RattleError(f"there is no {kind} at {path} (looked from {Path.cwd()})")
    raise unknown("dataset", name, [*SOURCES, *DECODED, "FILE.npz", "FOLDER", "hub:OWNER/NAME"])
