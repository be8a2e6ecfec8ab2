"""Downloads and the contact sheet, against a server on this machine and generated files."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rattle.data import Dataset, Images, contact_sheet, describe, get
from rattle.data.registry import Data
from rattle.data.show import balance
from rattle.data.sources import URLS, Remote
from rattle.errors import RattleError

BODY = bytes(range(256)) * 40


class Server(ThreadingHTTPServer):
    """Serves BODY, whole, from an offset or cut short, or another body; records the Range header of each request."""

    daemon_threads = True
    resumes, body = True, BODY
    cut_at: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []

    def remote(self, file: str = "set.bin") -> Remote:
        md5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
        return Remote(f"http://127.0.0.1:{self.server_address[1]}/{file}", len(BODY), md5)


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        range_ = self.headers.get("Range")
        self.server.ranges.append(range_)
        if "missing" in self.path:
            return self.send_error(404)
        start = int(re.sub(r"\D", "", range_)) if range_ and self.server.resumes else 0
        if start >= len(self.server.body):
            return self.send_error(416)
        rest = self.server.body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.server.body) - 1}/{len(self.server.body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.cut_at])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that holds the one file of the dataset `toy`."""
    with Server() as server:
        monkeypatch.setitem(URLS, "toy", (server.remote(),))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_with_progress_and_only_once(tmp_path: Path, server: Server) -> None:
    shown: list[int] = []

    @contextmanager
    def progress(title: str, total: int, *, done: int) -> Iterator[Callable[[int], None]]:
        assert (title, total, done) == ("set.bin", len(BODY), 0)
        yield shown.append

    paths = get("toy", tmp_path, progress=progress)
    assert [p.read_bytes() for p in paths] == [BODY]
    assert paths == [tmp_path / "toy" / "set.bin"]
    assert sum(shown) == len(BODY)
    get("toy", tmp_path)
    assert len(server.ranges) == 1


def test_an_interrupted_download_is_an_error_and_resumes_where_it_stopped(tmp_path: Path, server: Server) -> None:
    server.cut_at = 1000
    with pytest.raises(RattleError, match=r"stopped after 1,000 of 10,240 bytes"):
        get("toy", tmp_path)
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["set.bin.part"]
    server.cut_at = None
    (path,) = get("toy", tmp_path)
    assert server.ranges == [None, "bytes=1000-"]
    assert path.read_bytes() == BODY
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["set.bin"]


@pytest.mark.parametrize(("part", "resumes"), [(b"old", False), (BODY, True)], ids=["cannot resume", "whole"])
def test_a_part_is_started_over_where_the_server_cannot_resume_or_taken_if_whole(
    part: bytes, resumes: bool, tmp_path: Path, server: Server
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin.part").write_bytes(part)
    server.resumes = resumes
    (path,) = get("toy", tmp_path)
    assert path.read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_what_was_there_stays(tmp_path: Path, server: Server) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin").write_bytes(b"an earlier release")
    server.body = b"<html>please log in</html>"
    with pytest.raises(RattleError, match=r"whose MD5 is \w+, not \w+; it was deleted, nothing was changed"):
        get("toy", tmp_path)
    assert (tmp_path / "toy" / "set.bin").read_bytes() == b"an earlier release"
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["set.bin"]


def test_a_missing_file_on_the_server_is_an_error(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(URLS, "toy", (server.remote("missing"),))
    with pytest.raises(RattleError, match="answers 404 Not Found; nothing was changed"):
        get("toy", tmp_path)


def test_being_offline_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        nowhere = Remote(f"http://127.0.0.1:{taken.getsockname()[1]}/set.bin", 1, "")
        monkeypatch.setitem(URLS, "toy", (nowhere,))
        with pytest.raises(
            RattleError, match=r"cannot download .*Connection refused.* put set\.bin into .*toy by hand"
        ):
            get("toy", tmp_path)


def test_an_unknown_name_to_download_is_refused_and_digits_need_none(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="did you mean 'cifar10'"):
        get("cifar", tmp_path)
    assert get("digits", tmp_path) == []


def test_a_description_counts_images_and_classes() -> None:
    data = Data().load()
    heading, train, val, test = describe(data)
    assert heading[:3] == ("part", "images", "shape")
    assert train[:6] == ("train", "1,167", "1x8x8", "10 of 10", "111 (8)", "120 (3)")
    assert [val[0], test[0]] == ["val", "test"]
    assert balance(data)[:2] == [("class", "train", "val", "test"), ("0", "115", "13", "50")]


def test_a_contact_sheet_shows_a_row_for_each_class(tmp_path: Path) -> None:
    from PIL import Image

    classes = 30
    y = torch.arange(classes).repeat(2)
    x = (y * 7).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()
    data = Dataset(name="t", train=Images(x, y), test=Images(x, y), classes=tuple(f"class {i}" for i in range(classes)))
    path = contact_sheet(data, tmp_path / "deep" / "sheet.png", columns=4)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        values = set(picture.convert("L").tobytes())
    assert set((y * 7).tolist()) <= values
