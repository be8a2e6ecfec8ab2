"""A stand-in for the Hugging Face hub on this machine: as much of its HTTP interface as huggingface_hub uses to make a
repository and a branch, commit a folder and download files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_owner"
Files = dict[str, bytes]


@dataclass
class Repository:
    private: bool
    commits: dict[str, Files] = field(default_factory=dict)  # by sha
    branches: dict[str, str] = field(default_factory=dict)  # name -> sha

    def commit(self, branch: str, files: Files) -> str:
        sha = hashlib.sha1(repr((sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def at(self, revision: str) -> tuple[str, Files]:
        """The sha and the files of a branch or a commit."""
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise missing("Revision")
        return sha, self.commits[sha]


@dataclass
class Hub:
    """The server's state, for tests to look at and to change."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def files(self, name: str) -> Files:
        return self.repositories[name].at("main")[1]


class Answer(Exception):
    def __init__(self, code: int, plain: Any = None, *, body: bytes = b"", **headers: str) -> None:
        self.code, self.body = code, json.dumps(plain).encode() if plain is not None else body
        self.headers = {key.replace("_", "-"): value for key, value in headers.items()}


def missing(what: str) -> Answer:
    return Answer(404, {"error": f"{what} not found"}, X_Error_Code=f"{what}NotFound")


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for method, pattern, reply in ROUTES:
                if self.command in method.split() and (match := re.fullmatch(pattern, path)):
                    reply(self, *match.groups())
            raise Answer(404, {"error": f"the stand-in has no {self.command} {path}"})
        except Answer as answer:
            self.send_response(answer.code)
            for key, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = handle_request

    @property
    def is_owner(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def need_owner(self) -> None:
        if not self.is_owner:
            raise Answer(401, {"error": "Invalid credentials in Authorization header"})

    def repository(self, name: str) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self.is_owner):
            raise missing("Repo")
        return found

    def create(self) -> None:
        self.need_owner()
        asked = json.loads(self.content)
        if asked["organization"] != "me":
            raise Answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        name = f"me/{asked['name']}"
        place = {"url": f"{self.hub.address}/{name}", "id": name, "name": name}
        if name in self.hub.repositories:
            raise Answer(409, {"error": "You already created this model repo"} | place)
        made = Repository(private=bool(asked.get("private")) or asked.get("visibility") == "private")
        made.commit("main", {})
        self.hub.repositories[name] = made
        raise Answer(200, place)

    def info(self, name: str, revision: str = "main") -> None:
        found = self.repository(name)
        sha, files = found.at(revision)
        siblings = [{"rfilename": path} for path in files]
        raise Answer(200, {"id": name, "private": found.private, "sha": sha, "siblings": siblings, "tags": []})

    def branch(self, name: str, branch: str) -> None:
        self.need_owner()
        found = self.repository(name)
        if branch in found.branches:
            raise Answer(409, {"error": "Reference already exists"})
        found.branches[branch] = found.branches["main"]
        raise Answer(200, {})

    def tree(self, name: str, revision: str) -> None:
        _, files = self.repository(name).at(revision)
        rows = []
        for path, content in files.items():
            oid = hashlib.sha1(content).hexdigest()
            rows.append({"type": "file", "path": path, "size": len(content), "oid": oid})
        raise Answer(200, rows)

    def validate(self) -> None:
        if "license: nonsense" in json.loads(self.content)["content"]:
            raise Answer(400, {"error": "bad", "errors": [{"message": '"license" must be one of [mit, ...]'}]})
        raise Answer(200, {"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        self.need_owner()
        paths = [file["path"] for file in json.loads(self.content)["files"]]
        raise Answer(200, {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})

    def commit(self, name: str, revision: str) -> None:
        self.need_owner()
        found = self.repository(name)
        files = dict(found.at(revision)[1])
        for line in map(json.loads, self.content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = found.commit(revision, files)
        raise Answer(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.address}/{name}/commit/{sha}"})

    def resolve(self, name: str, revision: str, path: str) -> None:
        sha, files = self.repository(name).at(revision)
        if path not in files:
            raise missing("Entry")
        etag = f'"{hashlib.sha256(files[path]).hexdigest()}"'
        raise Answer(200, body=files[path], ETag=etag, X_Repo_Commit=sha)


NAME = r"([\w.-]+/[\w.-]+?)"
ROUTES = [
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("GET", f"/api/models/{NAME}", Handler.info),
    ("GET", f"/api/models/{NAME}/revision/(.+)", Handler.info),
    ("POST", f"/api/models/{NAME}/branch/(.+)", Handler.branch),
    ("GET", f"/api/models/{NAME}/tree/(.+)", Handler.tree),
    ("POST", f"/api/models/{NAME}/preupload/(.+)", Handler.preupload),
    ("POST", f"/api/models/{NAME}/commit/(.+)", Handler.commit),
    ("GET HEAD", f"/{NAME}/resolve/([^/]+)/(.+)", Handler.resolve),
]


@contextmanager
def running() -> Iterator[Hub]:
    """The server, until the end of the `with`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
