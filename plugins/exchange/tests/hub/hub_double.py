"""A double of the Hugging Face Hub's HTTP interface on loopback: what a push to a dataset needs."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE = 10_000
"""Bytes from which a file is sent to the storage of large files before the commit."""


class Hub:
    """What the server holds and was asked.

    Attributes:
        repositories: name -> settings of its creation.
        branches: branch -> path -> content; commits: the paths that each commit changed.
        storage: SHA-256 -> content of large files; uploads: how often one was sent.
        fail_commits: how many of the next commits are refused.
        busy: statuses that the next commits are answered with; after 504 they are there.
        most_files: of a commit; more are answered with 403.
        token: what clients get; accepted: what requests must show.
    """

    def __init__(self, token: str) -> None:
        self.token = self.accepted = token
        self.repositories: dict[str, dict[str, Any]] = {}
        self.branches: dict[str, dict[str, bytes]] = {"main": {}}
        self.commits: list[dict[str, list[str]]] = []
        self.storage: dict[str, bytes] = {}
        self.uploads = 0
        self.fail_commits = 0
        self.busy: list[int] = []
        self.most_files = 10**6
        self.url = ""


@contextmanager
def hub_double(token: str = "hf_secret_of_this_test") -> Iterator[Hub]:
    """Serve a new hub on a free port of loopback."""
    hub = Hub(token)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {self.hub.accepted}":
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/branch/(.+)", self.path):
            self.hub.branches.setdefault(found[2], dict(self.hub.branches["main"]))
            self._answer(200, {})
        elif re.fullmatch(r"/api/datasets/[^/]+/[^/]+/preupload/.+", self.path):
            files = json.loads(body)["files"]
            kinds = {True: "lfs", False: "regular"}
            answers = [
                {
                    "path": each["path"],
                    "uploadMode": kinds[each["size"] >= LARGE],
                    "shouldIgnore": False,
                }
                for each in files
            ]
            self._answer(200, {"files": answers})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif found := re.fullmatch(r"/api/datasets/[^/]+/[^/]+/commit/(.+)", self.path):
            self._commit(found[1], body.decode())
        else:
            self._answer(404, {"error": f"no {self.path}"})

    def do_PUT(self) -> None:
        content = self._body()
        digest = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == digest
        self.hub.storage[digest] = content
        self.hub.uploads += 1
        self._answer(200, {})

    def do_GET(self) -> None:
        if found := re.fullmatch(r"/api/datasets/[^/]+/[^/]+/tree/([^/?]+).*", self.path):
            files = self.hub.branches[found[1]].items()
            tree = [
                {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
                for path, content in files
            ]
            self._answer(200, tree)
        else:
            self._answer(404, {"error": f"no {self.path}"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        new = name not in self.hub.repositories
        self.hub.repositories.setdefault(name, asked)
        url = {"url": f"{self.hub.url}/datasets/{name}", "id": "1", "name": name}
        self._answer(200 if new else 409, url)

    def _batch(self, asked: dict[str, Any]) -> None:
        objects: list[dict[str, Any]] = []
        for each in asked["objects"]:
            known = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.hub.storage:
                href = f"{self.hub.url}/storage/{each['oid']}"
                known["actions"] = {"upload": {"href": href}}
            objects.append(known)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, branch: str, body: str) -> None:
        if self.hub.fail_commits:
            self.hub.fail_commits -= 1
            self._answer(400, {"error": "the commit is refused"})
            return
        busy = self.hub.busy.pop(0) if self.hub.busy else 0
        if body.count("\n") > self.hub.most_files + 1:
            self._answer(403, {"error": "too many files"})
            return
        if busy and busy != 504:
            self._answer(busy, {"error": "busy"}, {"Retry-After": "1"})
            return
        files = dict(self.hub.branches[branch])
        changed: dict[str, list[str]] = {"file": [], "lfsFile": [], "deletedFile": []}
        for line in map(json.loads, body.splitlines()):
            key, value = line["key"], line["value"]
            if key == "header":
                continue
            changed[key].append(value["path"])
            if key == "deletedFile":
                del files[value["path"]]
            elif key == "lfsFile":
                files[value["path"]] = self.hub.storage[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        self.hub.branches[branch] = files
        self.hub.commits.append(changed)
        if busy:
            self._answer(busy, {"error": "no answer in time"}, {"Retry-After": "1"})
            return
        oid = hashlib.sha1(body.encode()).hexdigest()
        [name] = self.hub.repositories
        url = f"{self.hub.url}/datasets/{name}/commit/{oid}"
        self._answer(200, {"commitUrl": url, "commitOid": oid})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, code: int, tree: Any, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(tree).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
