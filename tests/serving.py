"""Servers for tests, in a thread of this process or as a process of their own, and clients that speak plain HTTP.

Everything is on 127.0.0.1 and has a bound on time and number. Without the extra `skyinfer[serve]` the tests that import
this are skipped, and fail in CI.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

if os.environ.get("CI"):
    import uvicorn
else:
    uvicorn = pytest.importorskip("uvicorn", reason="needs skyinfer[serve]")

from skyinfer.serve.app import Application
from skyinfer.serve.binding import bind
from skyinfer.serve.catalog import Catalog
from skyinfer.serve.listener import make_server
from skyinfer.serve.options import Limits, Options

ROOT = Path(__file__).parents[1]
PAINTED = ROOT / "examples" / "painted"
DRONE: dict[str, Any] = json.loads((ROOT / "examples" / "request.json").read_text("utf-8"))
SECONDS = 30  # that any single step of a test may take


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, data, headers or {})
        response = self.connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def post(self, body: Any, path: str = "/v1/systemone", **headers: str) -> Answer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def close(self) -> None:
        self.connection.close()


class Serving(NamedTuple):
    """A server in a thread of this process."""

    port: int
    app: Application
    server: Any

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        client = Client(self.port)
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def serving(
    models: tuple[str, ...] = (str(PAINTED),), limits: Limits | None = None, **options: Any
) -> Iterator[Serving]:
    """A running server; `options` are those of `skyinfer.serve.options.Options`."""
    options.setdefault("log", "none")
    chosen = Options(models=models, limits=limits or Limits(), **options)
    with bind("127.0.0.1", 0) as bound:
        catalog = Catalog.load(
            models,
            threads=chosen.threads,
            temperature_clamp=chosen.temperature_clamp,
            strict=chosen.strict_models,
        )
        app = Application(catalog, chosen)
        server = make_server(app, bound)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: server.started, "the server to start")
            yield Serving(bound.getsockname()[1], app, server)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            app.close()
            assert not thread.is_alive()


class Process:
    """`skyinfer serve` as a process; its stderr, a JSON object per line, is read in a thread.

    With `reading` False only its first line is read, until `read` is called.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None, reading: bool = True) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skyinfer", "serve", *([] if "--uds" in arguments else ["--port", "0"]), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **({} if _is_installed() else {"PYTHONPATH": path}), **(environment or {})},
            cwd=ROOT,
        )
        self.lines: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reading:
            self._reader.start()
        else:
            assert self.process.stderr is not None
            while not self.event("listening"):
                self._take(self.process.stderr.readline())
        until(lambda: self.event("listening") or self.process.poll() is not None, "the process to listen")
        listening = self.event("listening")
        assert listening is not None, self.text
        self.address: str = listening["address"]
        self.port = -1 if self.address.startswith("unix:") else int(self.address.rpartition(":")[2])

    def read(self) -> None:
        """Begin to read stderr, where that was left out."""
        self._reader.start()

    def event(self, name: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line.get("event") == name), None)

    def requests(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == "request"]

    def memory(self) -> int:
        """Bytes of physical memory that it has."""
        pages = (Path("/proc") / str(self.process.pid) / "statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            self._take(raw)

    def _take(self, raw: bytes) -> None:
        assert raw, "stderr was closed"
        self.text.append(raw.decode())
        with contextlib.suppress(ValueError):
            self.lines.append(json.loads(raw))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        if self._reader.ident is not None:
            self._reader.join(SECONDS)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _is_installed() -> bool:
    import skyinfer

    return not Path(skyinfer.__file__).is_relative_to(ROOT / "src")


def until(true: Any, what: str, seconds: float = SECONDS) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


def head(length: int | None, *more: str, path: str = "/v1/systemone") -> bytes:
    """The head of a POST whose body is `length` bytes long."""
    lines = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json", *more]
    if length is not None:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def is_quiet(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side neither says anything nor closes for so long."""
    return not select.select([connection], [], [], seconds)[0]
