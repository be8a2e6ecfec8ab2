"""Models on the Hugging Face hub, through huggingface_hub (extra `hub`): downloads, and what its errors mean."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rattle.errors import RattleError
from rattle.runs.io import Plain
from rattle.runs.paths import CONFIG, WEIGHTS
from rattle.runs.published import check_config, read_config

REPOSITORY = r"[\w.-]+/[\w.-]+"
# What the hub's exceptions mean, by the name of the class, which has moved between the package's versions.
MEANINGS = {
    "GatedRepoError": "its owner must grant you access first; then set HF_TOKEN or log in with `hf auth login`",
    "RepositoryNotFoundError": "there is no such repository, or it is private and your token (HF_TOKEN) may not see it",
    "RevisionNotFoundError": "the repository has no such revision",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, so the hub is not asked",
    "LocalEntryNotFoundError": "the hub cannot be reached, and it is not in the cache",
    "EntryNotFoundError": f"it has no {CONFIG} and {WEIGHTS}: `rattle push` did not write it",
    "HFValidationError": "that is no name of a repository",
    **dict.fromkeys(("ConnectError", "ConnectionError", "TimeoutException", "Timeout"), "the hub cannot be reached"),
}
REFUSED = {
    401: "the hub does not know your token",
    403: "your token may not do this: it needs the right to write there",
}


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
        return Path(hub.hf_hub_download(repository, WEIGHTS, revision=path.parent.name)), config


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
        kinds = [kind.__name__ for kind in type(error).__mro__]
        code = getattr(getattr(error, "response", None), "status_code", None)
        meaning = next((MEANINGS[kind] for kind in kinds if kind in MEANINGS), REFUSED.get(code or 0))
        refused = f"the hub refused it: {' '.join(str(error).split())[:300]}"
        raise RattleError(f"{name}: {meaning or refused}") from error
