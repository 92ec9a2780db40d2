"""A local stand-in for the hub: the part of its HTTP API that downloads, streams and uploads of small repositories use.

    with HubServer() as hub:
        hub.add("datasets/user/name", {"train.jsonl": b"..."})
        subprocess.run([sys.executable, "-c", code], env=hub.environment(cache_folder))

A repository is called `datasets/user/name` or, a model, `user/name`. It has one revision, which answers to any name.
Every file is sent and taken as itself (no LFS, no Xet), in the ranges that are asked for.
"""

import base64
import functools
import hashlib
import json
import os
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

CHUNK = 64 * 1024


@functools.lru_cache
def digest(data: bytes) -> str:
    """The SHA-1 of a file, of large ones once only."""
    return hashlib.sha1(data).hexdigest()


class HubServer:
    """Serves `repos` on 127.0.0.1 while its context lasts.

    Attributes:
        url (`str`): for `HF_ENDPOINT`.
        repos (`dict[str, dict[str, bytes]]`): the files of each repository, those uploaded too.
        sent (`Counter`): bytes sent of each file, by `repository/path`.
        requests (`list[str]`): method and path of each request.
    """

    def __init__(self):
        self.repos: dict[str, dict[str, bytes]] = {}
        self.sent: Counter = Counter()
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repo: str, files: dict[str, bytes]) -> None:
        """Adds a repository, or files to it."""
        self.repos.setdefault(repo, {}).update(files)

    def revision(self, repo: str) -> str:
        """The commit of a repository: a hash over its files."""
        files = sorted((path, digest(data)) for path, data in self.repos[repo].items())
        return digest(json.dumps([repo, files]).encode())

    def environment(self, cache: os.PathLike) -> dict[str, str]:
        """Environment variables of a process that takes this server for the hub and keeps its downloads in `cache`."""
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_test"}
        return {**os.environ, **variables, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *args) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        url = urlsplit(self.path)
        path = unquote(url.path).strip("/")
        file = re.fullmatch(r"((?:datasets/)?[^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        api = re.fullmatch(r"api/(models|datasets)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/[^/]+)?(?:/(.*))?)?", path)
        if file:
            self._send_file(*file.groups())
        elif api:
            kind, name, action, rest = api.groups()
            repo = name if kind == "models" else f"datasets/{name}"
            self._answer(repo, name, action or "revision", rest or "", body, parse_qs(url.query))
        elif path == "api/repos/create":
            wanted = json.loads(body)
            kind = "datasets/" if wanted.get("type") == "dataset" else ""
            name = "/".join([wanted.get("organization") or "user", wanted["name"].split("/")[-1]])
            self.hub.repos.setdefault(kind + name, {})
            self._send_json({"url": f"{self.hub.url}/{kind}{name}", "name": name})
        elif path == "api/whoami-v2":
            self._send_json({"name": "user", "type": "user", "orgs": [], "auth": {}})
        elif path == "api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        else:
            self._send_missing("EntryNotFound")

    do_HEAD = do_POST = do_GET

    def _answer(self, repo: str, name: str, action: str, rest: str, body: bytes, query: dict) -> None:
        if repo not in self.hub.repos:
            return self._send_missing("RepoNotFound")
        files = self.hub.repos[repo]
        if action == "revision":
            siblings = [{"rfilename": path, "size": len(data)} for path, data in sorted(files.items())]
            info = {"id": name, "sha": self.hub.revision(repo), "private": False, "tags": [], "siblings": siblings}
            return self._send_json({**info, "_id": "0" * 24, "downloads": 0, "likes": 0})
        if action == "tree":
            start = f"{rest}/" if rest else ""
            found = {path for path in files if path.startswith(start)}
            if not found and rest:
                return self._send_missing("EntryNotFound")
            if query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
                found = {start + path.removeprefix(start).split("/")[0] for path in found}
            return self._send_json([self._entry(repo, path) for path in sorted(found)])
        if action == "paths-info":
            wanted = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode()).get("paths", [])
            return self._send_json([entry for entry in (self._entry(repo, path) for path in wanted) if entry])
        if action == "preupload":
            modes = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            return self._send_json({"files": [{**mode, "shouldIgnore": False} for mode in modes]})
        if action == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    files.pop(line["value"]["path"], None)
            revision = self.hub.revision(repo)
            return self._send_json({"commitUrl": f"{self.hub.url}/{repo}/commit/{revision}", "commitOid": revision})
        return self._send_missing("EntryNotFound")

    def _entry(self, repo: str, path: str) -> dict | None:
        files = self.hub.repos[repo]
        if path in files:
            return {"type": "file", "path": path, "size": len(files[path]), "oid": digest(files[path])}
        is_folder = any(file.startswith(f"{path}/") for file in files)
        return {"type": "directory", "path": path, "oid": "0" * 40} if is_folder else None

    def _send_file(self, repo: str, path: str) -> None:
        data = self.hub.repos.get(repo, {}).get(path)
        if data is None:
            return self._send_missing("EntryNotFound" if repo in self.hub.repos else "RepoNotFound")
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first = int(span[1]) if span else 0
        last = min(int(span[2]), len(data) - 1) if span and span[2] else len(data) - 1
        self.send_response(206 if span else 200)
        self.send_header("ETag", f'"{digest(data)}"')
        self.send_header("X-Repo-Commit", self.hub.revision(repo))
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for start in range(first, last + 1, CHUNK):
                self.wfile.write(data[start : min(start + CHUNK, last + 1)])
                self.hub.sent[f"{repo}/{path}"] += min(start + CHUNK, last + 1) - start
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has enough of a stream

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
