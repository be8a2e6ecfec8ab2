"""The official URLs, sizes and MD5 checksums of the datasets that `get` can download."""

from dataclasses import dataclass


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
