"""Downloads from the official URLs, moved to their final name once the MD5 is right."""

import http.client
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rattle.data.files import atomic_write, data_root, md5
from rattle.data.sources import SOURCES, URLS, Remote
from rattle.errors import RattleError, first_line, unknown

# progress(title, total) is a context that yields advance(bytes), as the consoles' `progress` method is.
ProgressBar = Callable[..., AbstractContextManager[Callable[[int], None]]]
TIMEOUT, CHUNK = 30, 2**18  # seconds, bytes


def get(name: str, root: str | Path | None = None, *, progress: ProgressBar | None = None) -> list[Path]:
    """Download a dataset to root/name, except files that are there already; returns the paths of its files.

    name: a registered dataset. root: folder of all datasets; RATTLE_DATA, or ./data, by default.
    progress: shows the progress of each file, such as a console's `progress` method.
    """
    if name in SOURCES and name not in URLS:
        return []  # needs no download, such as digits
    if name not in URLS:
        raise unknown("dataset to download", name, URLS)
    folder = data_root(root) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RattleError(f"cannot make the folder {folder}: {error.strerror}") from error
    shown = progress or (lambda *_, **__: nullcontext(lambda _: None))
    return [download_file(remote, folder, shown) for remote in URLS[name]]


def download_file(remote: Remote, folder: Path, progress: ProgressBar) -> Path:
    """Download one file. An existing file is replaced only by one whose checksum is right."""
    path = folder / remote.file
    if path.exists() and md5(path) == remote.md5:
        return path
    with atomic_write(path) as part:
        try:
            with (
                urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer,
                part.open("wb") as file,
                progress(remote.file, remote.size) as advance,
            ):
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
        except (http.client.HTTPException, OSError) as error:
            raise RattleError(
                f"cannot download {remote.url} ({first_line(error)}); try again, "
                f"or put {remote.file} into {folder} by hand"
            ) from error
        found = md5(part)
        if found != remote.md5:
            wrong = f"a file whose MD5 is {found}, not {remote.md5}"
            raise RattleError(f"{remote.url} gave {wrong}; it was deleted, nothing was changed")
    return path
