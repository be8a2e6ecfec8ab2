"""A stand-in for the Hugging Face hub on this machine: as much of its HTTP interface as huggingface_hub uses to make a
repository and a branch, commit a folder (small files in the commit, .safetensors by LFS) and download files."""

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

    def sha(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)

    def files(self, revision: str) -> Files | None:
        return self.commits.get(self.sha(revision) or "")


@dataclass
class Hub:
    """The server's state, for tests to look at and to change."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: Files = field(default_factory=dict)  # of LFS, by sha256
    requests: list[str] = field(default_factory=list)


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

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

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
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repositories:
            raise Answer(409, {"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"})
        made = Repository(private=bool(asked.get("private")) or asked.get("visibility") == "private")
        made.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        self.hub.repositories[name] = made
        raise Answer(200, {"url": f"{self.hub.address}/{name}", "id": name, "name": name})

    def info(self, name: str, revision: str | None = None) -> None:
        found, revision = self.repository(name), revision or "main"
        if found.files(revision) is None:
            raise missing("Revision")
        siblings = [{"rfilename": path} for path in found.files(revision) or {}]
        plain = {"_id": "1", "id": name, "modelId": name, "private": found.private, "sha": found.sha(revision)}
        raise Answer(200, plain | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def branch(self, name: str, branch: str) -> None:
        self.need_owner()
        found = self.repository(name)
        if branch in found.branches:
            raise Answer(409, {"error": "Reference already exists"})
        found.commit(branch, dict(found.files("main") or {}))
        raise Answer(200, {})

    def tree(self, name: str, revision: str) -> None:
        files = self.repository(name).files(revision)
        if files is None:
            raise missing("Revision")
        oids = {path: hashlib.sha1(content).hexdigest() for path, content in files.items()}
        rows = [{"type": "file", "path": path, "size": len(files[path]), "oid": oid} for path, oid in oids.items()]
        raise Answer(200, rows)

    def validate(self) -> None:
        text = json.loads(self.content)["content"]
        if "license: nonsense" in text:
            raise Answer(400, {"error": "bad", "errors": [{"message": '"license" must be one of [mit, ...]'}]})
        raise Answer(200, {"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        self.need_owner()
        paths = [file["path"] for file in json.loads(self.content)["files"]]
        modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
        raise Answer(200, {"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})

    def batch(self, name: str) -> None:
        self.need_owner()
        objects = json.loads(self.content)["objects"]
        for each in objects:
            each["actions"] = {"upload": {"href": f"{self.hub.address}/store/{each['oid']}"}}
        raise Answer(200, {"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        assert hashlib.sha256(self.content).hexdigest() == oid
        self.hub.objects[oid] = self.content
        raise Answer(200)

    def commit(self, name: str, revision: str) -> None:
        self.need_owner()
        found = self.repository(name)
        files = dict(found.files(revision) or {})
        for line in map(json.loads, self.content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = found.commit(revision, files)
        address = f"{self.hub.address}/{name}/commit/{sha}"
        raise Answer(200, {"success": True, "commitOid": sha, "commitUrl": address})

    def resolve(self, name: str, revision: str, path: str) -> None:
        found = self.repository(name)
        files, sha = found.files(revision), found.sha(revision)
        if files is None or sha is None:
            raise missing("Revision")
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
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", r"/store/(\w+)", Handler.store),
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
