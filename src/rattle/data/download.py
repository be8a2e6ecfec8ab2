"""Downloads from the official URLs: resumed where they stopped, moved to their final name once the MD5 is right."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rattle.data.files import data_root, md5
from rattle.data.sources import SOURCES, URLS, Remote
from rattle.errors import RattleError, unknown

# progress(title, total, done=...) is a context that yields advance(bytes), as the consoles' `progress` method is.
Progress = Callable[..., AbstractContextManager[Callable[[int], None]]]
TIMEOUT, CHUNK = 30, 2**18  # seconds, bytes


def get(name: str, root: str | Path | None = None, *, progress: Progress | None = None) -> list[Path]:
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
    return [fetch(remote, folder, shown) for remote in URLS[name]]


def fetch(remote: Remote, folder: Path, progress: Progress) -> Path:
    """Download one file. An existing file is replaced only by one whose checksum is right."""
    path, part = folder / remote.file, folder / f"{remote.file}.part"
    if path.exists() and md5(path) == remote.md5:
        return path
    try:
        receive(remote, part, progress)
    except urllib.error.HTTPError as error:
        error.close()
        raise RattleError(f"{remote.url} answers {error.code} {error.reason}; nothing was changed") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise RattleError(
            f"cannot download {remote.url} ({reason}); when online again, the same command resumes it, "
            f"or put {remote.file} into {folder} by hand"
        ) from error
    found = md5(part)
    if found != remote.md5:
        part.unlink()
        wrong = f"a file whose MD5 is {found}, not {remote.md5}"
        raise RattleError(f"{remote.url} gave {wrong}; it was deleted, nothing was changed")
    os.replace(part, path)
    return path


def receive(remote: Remote, part: Path, progress: Progress) -> None:
    """Append to the .part file what it lacks, or start over if the server cannot resume."""
    if part.is_symlink():
        part.unlink()
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: no bytes after `done`, so the file may be complete; the checksum decides
            raise
        error.close()
        return
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else remote.size
        with part.open("ab" if done else "wb") as file, progress(remote.file, total, done=done) as advance:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(len(chunk))
    if done < total:
        raise RattleError(f"{remote.url} stopped after {done:,} of {total:,} bytes; the same command resumes it")
