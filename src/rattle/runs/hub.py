"""Models on the Hugging Face hub, through huggingface_hub (extra `hub`)."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rattle.errors import RattleError
from rattle.runs.io import Plain
from rattle.runs.paths import CONFIG, WEIGHTS_FILE
from rattle.runs.published import check_config, read_config

REPOSITORY = r"[\w.-]+/[\w.-]+"


def fetch(name: str) -> tuple[Path, Plain]:
    """The file of weights of `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION` in the hub's cache, and its config.

    The config is downloaded first and refused if it does not describe a model that can be loaded.
    """
    repository, _, revision = name.removeprefix("hf:").partition("@")
    check_repository(repository)
    hub = package(name)
    with meaningful(name):
        path = Path(hub.hf_hub_download(repository, CONFIG, revision=revision or None))
        config = read_config(path, name)
        check_config(config, name)
        # The folder in the cache is named after the commit: both files are of one.
        return Path(hub.hf_hub_download(repository, WEIGHTS_FILE, revision=path.parent.name)), config


def check_repository(name: str) -> None:
    if not re.fullmatch(REPOSITORY, name):
        raise RattleError(f"a repository on the hub is written OWNER/NAME, got {name!r}")


def package(name: str) -> Any:
    """The module huggingface_hub; `name` is what it is needed for."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        message = f"{name} needs the package huggingface_hub: pip install 'rattle-robust[hub]'"
        raise RattleError(message) from error


@contextmanager
def meaningful(name: str) -> Iterator[None]:
    """Turn what huggingface_hub and the network raise into a RattleError about `name`."""
    try:
        yield
    except RattleError:
        raise
    except Exception as error:
        raise RattleError(f"{name}: the hub refused it: {' '.join(str(error).split())[:500]}") from error
