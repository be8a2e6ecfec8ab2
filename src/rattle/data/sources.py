"""The names of datasets, known without torch, and the official URLs, sizes and checksums of those to download.

A source is a function load(root) -> Dataset. One file and one line of SOURCES add one, or one call of
`register_source` at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rattle.errors import RattleError, unknown
from rattle.registry import Entry, Registry

if TYPE_CHECKING:
    from rattle.data.dataset import Dataset

    Load = Callable[[Path], Dataset]


@dataclass(frozen=True, slots=True)
class Remote:
    """One file to download."""

    url: str
    size: int  # bytes
    md5: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ufldl.stanford.edu/housenumbers"
OSSCI = "https://ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

URLS: dict[str, tuple[Remote, ...]] = {
    "cifar10": (Remote(f"{TORONTO}/cifar-10-python.tar.gz", 170498071, "c58f30108f718f92721af3b95e74349a"),),
    "cifar100": (Remote(f"{TORONTO}/cifar-100-python.tar.gz", 169001437, "eb9058c3a382ffc7106e4002c42a8d85"),),
    "svhn": (
        Remote(f"{STANFORD}/train_32x32.mat", 182040794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote(f"{STANFORD}/test_32x32.mat", 64275384, "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "mnist": (
        Remote(f"{OSSCI}/train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Remote(f"{OSSCI}/train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
        Remote(f"{OSSCI}/t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
        Remote(f"{OSSCI}/t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": (
        Remote(f"{ZALANDO}/train-images-idx3-ubyte.gz", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{ZALANDO}/train-labels-idx1-ubyte.gz", 29515, "25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{ZALANDO}/t10k-images-idx3-ubyte.gz", 4422102, "bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{ZALANDO}/t10k-labels-idx1-ubyte.gz", 5148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


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
    points="rattle.data",
)
DECODED = {"imagenet": 224}  # found under the root, decoded on the fly; the side of the crops when not given


def register_source(name: str, load: Load) -> None:
    """Make `Data(name=name)` and `rattle ... --data.name NAME` load a dataset of your own.

    name: not a built-in one; registering a name again replaces it. load: given the folder of datasets, returns the
    Dataset.
    """
    SOURCES.add(name, load)


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
    raise unknown("dataset", name, [*SOURCES, *DECODED, "FILE.npz", "FOLDER", "hub:OWNER/NAME", "cifar10-c:FOLDER"])
