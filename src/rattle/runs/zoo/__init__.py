"""The zoo: small models of the embedded digits, trained by named recipes, with their results; they load offline.

NAME.safetensors holds the weights, zoo.json everything else. `python -m reproduction.make_zoo` makes them again.
"""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from rattle.errors import unknown
from rattle.runs.io import Plain

FOLDER = Path(str(files("rattle.runs.zoo")))


@cache
def index() -> dict[str, Plain]:
    """Every model by name: `config` (as in a published config.json), `commands` that made it and `results`."""
    return json.loads((FOLDER / "zoo.json").read_text(encoding="utf-8"))


def list_zoo() -> list[str]:
    """The names of the trained models in the package; `rattle.load("zoo:" + name)` loads one.

    >>> "digits-linf-cnn-trades-2nd" in list_zoo()
    True
    """
    return list(index())


def entry(name: str) -> Plain:
    """What is known of the model `zoo:NAME`, see `index`."""
    name = name.removeprefix("zoo:")
    if name not in index():
        raise unknown("model of the zoo", name, index())
    return index()[name]


def fetch(name: str) -> tuple[Path, Plain]:
    """The file of weights of `zoo:NAME`, and its config."""
    return FOLDER / f"{name.removeprefix('zoo:')}.safetensors", entry(name)["config"]
