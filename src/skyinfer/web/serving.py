"""A server on the loopback interface for the pages, for one user of this machine; nothing is asked of it but files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..errors import faults_named
from ..files.whole_file import NotForcedError, refuse_inputs
from .pages import HEADERS, PageFile, model_list, page_files

HOST = "127.0.0.1"
# Names that a browser on this machine calls the server by. Any other is a page elsewhere whose name was pointed here,
# to read the models.
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


class PageServer(ThreadingHTTPServer):
    """Gives out the pages and some models.

    Attributes:
        url: the address to open.
    """

    daemon_threads = True

    def __init__(self, models: Sequence[tuple[str, Path]], port: int = 0) -> None:
        """`models`: (name, GGUF file), the first of which a page opens by itself. Port 0: one that is free.

        Raises:
            OSError: the port cannot be had.
        """
        addresses = [(name, f"models/{i}/{quote(path.name, safe='')}") for i, (name, path) in enumerate(models)]
        files = page_files() | {"/models.json": model_list(addresses)}
        large = {f"/{unquote(address)}": path for (_, address), (_, path) in zip(addresses, models, strict=True)}
        super().__init__((HOST, port), _handler(files, large))
        self.url = f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # a browser that leaves is no error


def export(directory: Path, models: Sequence[tuple[str, Path]], *, force: bool = False) -> int:
    """Writes the pages and the models into a directory, for any static host; gives how many files the pages are.

    Raises:
        NotForcedError: a file that would be written is there, and `force` is not set; nothing was written.
        OSError: it cannot be written, or a model would be copied onto itself.
    """
    if directory.exists() and not directory.is_dir():
        raise OSError(errno.ENOTDIR, "is a file; name a directory to write", str(directory))
    copies: dict[Path, Path] = {}
    addresses = []
    for i, (name, path) in enumerate(models):
        file = f"{i}-{path.name}" if path.name in {other.name for _, other in models[:i]} else path.name
        copies[directory / "models" / file] = path
        addresses.append((name, f"models/{quote(file, safe='')}"))
    files = page_files() | {"/models.json": model_list(addresses)}
    pages = {directory / address[1:]: page.data for address, page in files.items() if address != "/"}
    for target in (*copies, *pages):
        refuse_inputs(target, *copies.values())
        if not force and os.path.lexists(target):
            raise NotForcedError(errno.EEXIST, "exists already; it is replaced only when forced", str(target))
    for target, data in pages.items():
        with faults_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for target, path in copies.items():
        with faults_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return len(pages)


def _handler(files: Mapping[str, PageFile], models: Mapping[str, Path]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version, sys_version = "skyinfer", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            host = self.headers.get("host", "").rpartition(":")[0] or self.headers.get("host", "")
            path = urlsplit(self.path).path
            if host not in _OWN_NAMES:
                self._send(403, "text/plain", b"open this page as localhost or 127.0.0.1\n", with_body)
            elif path in files:
                self._send(200, *files[path], with_body)
            elif unquote(path) in models:
                self._send_model(models[unquote(path)], with_body)
            else:
                self._nothing_there(with_body)

        def _nothing_there(self, with_body: bool) -> None:
            self._send(404, "text/plain", b"there is nothing at this path\n", with_body)

        def _send(self, status: int, kind: str, data: bytes, with_body: bool) -> None:
            self._head(status, kind, len(data))
            if with_body:
                self.wfile.write(data)

        def _send_model(self, path: Path, with_body: bool) -> None:
            try:
                file = path.open("rb")
            except OSError:  # it was there when the server started
                self._nothing_there(with_body)
                return
            with file:
                self._head(200, "application/octet-stream", os.fstat(file.fileno()).st_size)
                if with_body:
                    shutil.copyfileobj(file, self.wfile, 1 << 20)

        def _head(self, status: int, kind: str, length: int) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(length))
            for name, value in HEADERS:
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
