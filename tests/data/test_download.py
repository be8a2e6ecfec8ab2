"""Downloads and the contact sheet, against a server on this machine and generated files."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rattle.data import Dataset, Images, contact_sheet, describe_parts, get
from rattle.data.registry import Data
from rattle.data.show import balance
from rattle.data.sources import URLS, Remote
from rattle.errors import RattleError

BODY = bytes(range(256)) * 40


class Server(ThreadingHTTPServer):
    """Serves a body under any name but `missing`, and counts the requests."""

    daemon_threads = True
    body, requests = BODY, 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)

    def remote(self, file: str = "set.bin") -> Remote:
        md5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
        return Remote(f"http://127.0.0.1:{self.server_address[1]}/{file}", len(BODY), md5)


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.requests += 1
        if "missing" in self.path:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(self.server.body)
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
    def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
        assert (title, total) == ("set.bin", len(BODY))
        yield shown.append

    paths = get("toy", tmp_path, progress=progress)
    assert [p.read_bytes() for p in paths] == [BODY]
    assert paths == [tmp_path / "toy" / "set.bin"]
    assert sum(shown) == len(BODY)
    get("toy", tmp_path)
    assert server.requests == 1


@pytest.mark.parametrize("body", [BODY[:1000], b"<html>please log in</html>"], ids=["interrupted", "other"])
def test_a_wrong_checksum_is_refused_and_what_was_there_stays(tmp_path: Path, server: Server, body: bytes) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin").write_bytes(b"an earlier release")
    server.body = body
    with pytest.raises(RattleError, match=r"whose MD5 is \w+, not \w+"):
        get("toy", tmp_path)
    assert (tmp_path / "toy" / "set.bin").read_bytes() == b"an earlier release"
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["set.bin"]


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
    heading, train, val, test = describe_parts(data)
    assert heading[:3] == ("part", "images", "shape")
    assert train[:3] == ("train", "1,167", "1x8x8")
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
