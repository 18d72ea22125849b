"""The files of the pages, by the path that a browser asks for, with the headers that they are to be sent with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".json": "application/json",
}
# Nothing from elsewhere, no script or style inside a page, no frame around it. 'wasm-unsafe-eval' lets a page compile
# WebAssembly and nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)
# What "Ask" alone loads where a server answers: no engine, no model.
_ASK = ("ask.html", "ask.js", "skyinfer.js", "style.css", "icon.svg")


class PageFile(NamedTuple):
    """A file: its media type, and its bytes."""

    type: str
    data: bytes


def page_files() -> dict[str, PageFile]:
    """Both pages and the engine by path; "/" is the drone. The models and `model_list` are the caller's to add."""
    files = {}
    for entry in resources.files(__package__).iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            files[f"/{entry.name}"] = PageFile(_TYPES[suffix], entry.read_bytes())
    files["/"] = files["/index.html"]
    return files


def ask_files(models: Iterable[str]) -> dict[str, PageFile]:
    """The page "Ask" by path, "/" among them, answered by a server that has these models."""
    files = page_files()
    asked = {f"/{name}": files[f"/{name}"] for name in _ASK}
    listing = {"server": True, "models": [{"name": name} for name in models]}
    return asked | {"/": asked["/ask.html"], "/models.json": _json(listing)}


def model_list(models: Iterable[tuple[str, str]]) -> PageFile:
    """What the pages ask for as "/models.json": (name, address) of each model that they offer."""
    return _json({"server": False, "models": [{"name": name, "url": url} for name, url in models]})


def _json(value: object) -> PageFile:
    return PageFile(_TYPES[".json"], json.dumps(value, ensure_ascii=False).encode())
