"""A server that speaks as much of the Hugging Face hub's HTTP protocol as a download needs, for tests without network.

Repositories are directories of files. Large files are redirected to a second server, as the hub sends them to its CDN,
with the headers that `huggingface_hub` reads there: X-Repo-Commit, X-Linked-Etag, X-Linked-Size, X-Error-Code. Statuses
and headers are those that hf_raise_for_status of the library tells apart; ranges are answered as RFC 9110 has them.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

TOKEN = "hf_the-right-token"
_LARGE = 10_000  # bytes from which a file is stored as the hub stores large files


class Repo(NamedTuple):
    """Files by name, and the commit of each branch and tag; `access` is "public", "private" or "gated"."""

    files: dict[str, bytes]
    revisions: dict[str, str]
    access: str = "public"


def repo(files: dict[str, bytes] | Path, access: str = "public", **tags: str) -> Repo:
    """A repository of these files, or of those in a directory, with a branch main whose commit is made of them."""
    if isinstance(files, Path):
        found = sorted(path for path in files.rglob("*") if path.is_file())
        files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
    commit = hashlib.sha1(b"".join(name.encode() + data for name, data in files.items())).hexdigest()
    return Repo(files, {"main": commit, **tags}, access)


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class HubServer:
    """Attributes:
    repos: by "owner/name"; may be changed while the server runs.
    asked: every request so far, those for large files' bytes, too.
    broken: name of a large file -> how many bytes of each answer are sent before the connection breaks, in turn.
    damaged: names of files whose last byte is another one than the hub's digest is of.
    status: answer everything so, if set.
    extra_size: bytes that listings add to the size of each file.
    """

    def __init__(self) -> None:
        self.reset()
        self._hub, self._cdn = (ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, part)) for part in ("hub", "cdn"))
        self.endpoint, self.cdn = (f"http://127.0.0.1:{one.server_address[1]}" for one in (self._hub, self._cdn))

    def reset(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: list[Asked] = []
        self.broken: dict[str, list[int]] = {}
        self.damaged: set[str] = set()
        self.status: int | None = None
        self.extra_size = 0

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were asked for, each once."""
        return sorted(
            {one.path.rpartition("/-/")[2] for one in self.asked if one.method == "GET" and "/-/" in one.path}
        )

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in (self._hub, self._cdn)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server in (self._hub, self._cdn):
                server.shutdown()
                server.server_close()
            for thread in threads:
                thread.join()


def _handler(server: HubServer, part: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._respond()

        def do_GET(self) -> None:
            self._respond()

        def _respond(self) -> None:
            path = unquote(urlsplit(self.path).path)
            server.asked.append(Asked(self.command, path, {k.lower(): v for k, v in self.headers.items()}))
            if server.status is not None:
                return self._send(server.status, b"{}")
            if part == "cdn" or path.startswith("/api/resolve-cache/"):
                return self._bytes_of(path)
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
            if found:
                return self._api(found[1], found[2], found[3] or "main")
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+)", path)
            if found:
                return self._resolve(found[1], found[2])
            return self._send(404, b"{}")

        def _allowed(self, name: str, *, bytes_too: bool) -> Repo | None:
            given = self.headers.get("Authorization")
            if given is not None and given != f"Bearer {TOKEN}":
                self._fail(401, None, "Invalid credentials in Authorization header")
                return None
            repo = server.repos.get(name)
            if repo is None or (repo.access == "private" and given is None):
                self._fail(404 if given else 401, "RepoNotFound" if given else None, "Repository not found")
                return None
            if repo.access.startswith("gated") and bytes_too and (given is None or repo.access == "gated-refused"):
                self._fail(403 if given else 401, "GatedRepo", f"Access to model {name} is restricted")
                return None
            return repo

        def _commit(self, repo: Repo, revision: str) -> str | None:
            commit = repo.revisions.get(revision, revision if revision in repo.revisions.values() else None)
            if commit is None:
                self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return commit

        def _api(self, name: str, kind: str | None, revision: str) -> None:
            repo = self._allowed(name, bytes_too=False)
            commit = repo and self._commit(repo, revision)
            if repo is None or commit is None:
                return
            sizes = {file: len(data) + server.extra_size for file, data in repo.files.items()}
            content: Any
            if kind == "tree":
                content = [
                    {"type": "file", "path": file, "size": sizes[file], "oid": _oid(data), **_lfs(data, sizes[file])}
                    for file, data in repo.files.items()
                ]
            else:
                siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
                content = {"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings}
                content |= {"tags": [], "downloads": 0, "likes": 0}
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _resolve(self, name: str, rest: str) -> None:
            repo = self._allowed(name, bytes_too=True)
            if repo is None:
                return
            revision = next((r for r in (*repo.revisions, *repo.revisions.values()) if rest.startswith(f"{r}/")), "")
            file = rest[len(revision) + 1 :]
            commit = self._commit(repo, revision or rest.partition("/")[0])
            if commit is None:
                return
            if file not in repo.files:
                return self._fail(404, "EntryNotFound", "Entry not found")
            data = repo.files[file]
            place = f"/{name}/{commit}/-/{file}"
            headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"'}
            if len(data) >= _LARGE:
                headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
                headers["Location"] = server.cdn + place
                return self._send(302, b"", headers)
            headers["Location"] = f"/api/resolve-cache/models{place}"
            return self._send(307, b"", headers)

        def _bytes_of(self, path: str) -> None:
            place, _, file = path.partition("/-/")
            owner, name, commit = place.split("/")[-3:]
            data = server.repos[f"{owner}/{name}"].files[file]
            headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            if file in server.damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            status = 206 if start else 200
            if start:
                headers["Content-Range"] = f"bytes {start[1]}-{len(data) - 1}/{len(data)}"
                data = data[int(start[1]) :]
            broken = server.broken.get(file)
            self._send(status, data, headers, broken.pop(0) if broken and self.command == "GET" else None)

        def _fail(self, status: int, code: str | None, message: str) -> None:
            headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            self._send(status, json.dumps({"error": message}).encode(), headers)

        def _send(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


def _oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _lfs(data: bytes, size: int) -> dict[str, Any]:
    if len(data) < _LARGE:
        return {}
    return {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 134}}
