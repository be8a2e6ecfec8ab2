"""Downloads: resumed where they stopped, checked, and moved into place only when right."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from rattle.data.files import data_root, md5
from rattle.data.urls import URLS, Remote
from rattle.errors import RattleError, unknown

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all
TIMEOUT, CHUNK = 30, 2**18


def get(
    name: str,
    root: str | Path | None = None,
    *,
    progress: Progress | None = None,
    urls: Mapping[str, tuple[Remote, ...]] = URLS,
) -> list[Path]:
    """The files of a dataset in root/name, downloaded from the official urls unless they are there and right."""
    if name == "digits":
        return []  # comes with scikit-learn
    if name not in urls:
        raise unknown("dataset to download", name, urls)
    folder = data_root(root) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RattleError(f"cannot make the folder {folder}: {error.strerror}") from error
    return [fetch(remote, folder, progress or (lambda *_: None)) for remote in urls[name]]


def fetch(remote: Remote, folder: Path, progress: Progress) -> Path:
    """One file. What was there before is replaced only by bytes whose checksum is right."""
    path, part = folder / remote.file, folder / f"{remote.file}.part"
    if path.exists() and md5(path) == remote.md5:
        progress(remote.file, remote.size, remote.size)
        return path
    try:
        receive(remote, part, progress)
    except urllib.error.HTTPError as error:
        error.close()
        raise RattleError(f"{remote.url} answers {error.code} {error.reason}; nothing was changed") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise RattleError(
            f"cannot download {remote.url} ({reason}); when online again, the same command goes on where it stopped, "
            f"or put {remote.file} into {folder} by hand"
        ) from error
    found = md5(part)
    if found != remote.md5:
        part.unlink()
        raise RattleError(
            f"{remote.url} gave a file whose MD5 is {found}, not {remote.md5}; it was thrown away, nothing was changed"
        )
    os.replace(part, path)
    return path


def receive(remote: Remote, part: Path, progress: Progress) -> None:
    """Append to the .part file what it lacks; a server that cannot resume starts it over."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: there is nothing after `done`; the checksum will tell whether that is the whole
            raise
        error.close()
        return
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else remote.size
        with part.open("ab" if done else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(remote.file, done, total)
    if done < total:
        raise RattleError(
            f"{remote.url} stopped after {done:,} of {total:,} bytes; the same command goes on from there"
        )
