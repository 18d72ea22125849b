"""The command line of `skyinfer serve`, and the options it gives. `skyinfer --help` imports this: keep it light."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from ..arguments import A_MODEL, add_precision_option, number_in
from ..runtime.precision import EXACT


class Limits(NamedTuple):
    """Limits of one request, of one connection and of all together. Sizes are in bytes, times in seconds."""

    body_bytes: int = 1 << 20
    questions: int = 128
    options: int = 255
    levels: int = 10
    states: int = 1024
    tokens: int = 65_536
    depth: int = 100
    queue: int = 128
    connections: int = 1024
    head_bytes: int = 1 << 16
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    send_seconds: float = 30.0
    idle_seconds: float = 65.0


class Options(NamedTuple):
    """The options of a server, one field for each flag."""

    models: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    uds_mode: int = 0o660
    api_key: str | None = None
    threads: int | None = None
    temperature_clamp: bool = True
    precision: str = EXACT
    strict_length: bool = False
    strict_models: bool = False
    error_style: str = "typesafe"
    openapi: bool = False
    page: bool = False
    cors: tuple[str, ...] = ()
    log: str = "requests"
    limits: Limits = Limits()


# scheme, host and an optional port; nothing after it, not even a slash
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")

# flag, field of Limits, least value, greatest value, help
_LIMIT_FLAGS: tuple[tuple[str, str, float, float, str], ...] = (
    ("--max-body", "body_bytes", 1, 1 << 30, "bytes of a body, also once it is decompressed (else 413)"),
    ("--max-questions", "questions", 1, 1 << 16, "questions of a request (else 422)"),
    ("--max-options", "options", 2, 1 << 16, "options of a choice (else 422)"),
    ("--max-levels", "levels", 2, 1 << 16, "levels of a score (else 422)"),
    ("--max-states", "states", 1, 1 << 20, "states of a batch (else 422)"),
    ("--max-tokens", "tokens", 1, 1 << 30, "tokens that a model reads for one request (else 413)"),
    ("--max-depth", "depth", 2, 500, "levels of nesting in a body (else 422)"),
    ("--max-queue", "queue", 1, 1 << 20, "requests that wait for a model or are being run there (else 503)"),
    ("--max-connections", "connections", 1, 1 << 20, "open connections (else 503)"),
    ("--max-head", "head_bytes", 1024, 1 << 24, "bytes of a request's line and headers (else 431)"),
    ("--head-seconds", "head_seconds", 0.05, 3600, "to receive a request's head in (else 408)"),
    ("--body-seconds", "body_seconds", 0.05, 3600, "to receive its body in (else 408)"),
    ("--send-seconds", "send_seconds", 0.05, 3600, "that a client may leave an answer unread before it is cut off"),
    ("--idle-seconds", "idle_seconds", 0.05, 86400, "that a connection is kept between two requests"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the subcommand its flags; `from_arguments` reads them."""
    add = parser.add_argument
    add(
        "-m", "--model", dest="models", metavar="[NAME=]MODEL", action="append", default=[],
        help=f"{A_MODEL}, under its own name or this one; several may be given, and the first answers requests that "
        "name none",
    )  # fmt: skip
    add("--host", help="address to listen on, such as 0.0.0.0 or [::1] (default: 127.0.0.1, this machine only)")
    add("--port", type=number_in(int, 0, 65535), metavar="N", help="default: 8080; 0 takes a free one")
    add("--uds", metavar="PATH", help="listen on a Unix-domain socket at this path, not on an address and port")
    add("--uds-mode", type=_mode, metavar="MODE", help="the permissions of that socket in octal (default: 660)")
    add("--api-key-env", metavar="NAME", help="ask for the key that is in this environment variable")
    add("--threads", type=number_in(int, 1, 256), metavar="N", help="that one forward pass may use (default: by model)")
    add(
        "--no-temperature-clamp", dest="temperature_clamp", action="store_false",
        help="take the models' raw temperatures, as llama.cpp does",
    )  # fmt: skip
    add_precision_option(parser)
    add(
        "--strict-models", action="store_true",
        help="refuse model names that are not served (404), also what clients send by default, such as jev-latest",
    )  # fmt: skip
    add("--strict-length", action="store_true", help="refuse a state that does not fit (413) and do not cut it")
    add(
        "--error-style", choices=["typesafe", "llama"], default="typesafe",
        help="the shape of error answers: TypeSafe's (default), or llama-server's",
    )  # fmt: skip
    add("--openapi", action="store_true", help="describe the API at /openapi.json")
    add("--page", action="store_true", help="a page at / to ask the models in a browser; the key is its password")
    add(
        "--cors", metavar="ORIGIN", type=_origin, action="append", default=[],
        help="let pages of this origin read answers, * for any; may be repeated (default: none)",
    )  # fmt: skip
    add(
        "--log", choices=["none", "requests", "states"], default="requests",
        help="one JSON line a request on stderr: none, without states (default), or with them",
    )  # fmt: skip
    limits = parser.add_argument_group("limits")
    for flag, field, least, most, what in _LIMIT_FLAGS:
        default = getattr(Limits(), field)
        limits.add_argument(
            flag, dest=field, metavar="N", type=number_in(type(default), least, most), default=default,
            help=f"{what} (default: {default:g})" if isinstance(default, float) else f"{what} (default: {default})",
        )  # fmt: skip


def from_arguments(arguments: argparse.Namespace, environment: dict[str, str]) -> Options:
    """The options that the flags give. The key comes from `environment`, so that no command line shows it.

    Raises:
        ValueError: the key's variable is not set, or its value cannot be sent in a header; or flags exclude each other.
    """
    key = None
    if arguments.api_key_env is not None:
        key = environment.get(arguments.api_key_env, "").strip()
        if not key:
            raise ValueError(f"--api-key-env: the environment variable {arguments.api_key_env} holds no key")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"--api-key-env: what {arguments.api_key_env} holds cannot be sent as a key")
    if arguments.uds is not None and (arguments.host is not None or arguments.port is not None):
        raise ValueError("--uds: a Unix-domain socket takes the place of --host and --port")
    if arguments.uds is None and arguments.uds_mode is not None:
        raise ValueError("--uds-mode: there is no --uds whose permissions it could be")
    if arguments.uds == "":
        raise ValueError("--uds: the path is empty")
    defaults = Options()
    return Options(
        models=tuple(arguments.models),
        host=defaults.host if arguments.host is None else arguments.host,
        port=defaults.port if arguments.port is None else arguments.port,
        uds=arguments.uds,
        uds_mode=defaults.uds_mode if arguments.uds_mode is None else arguments.uds_mode,
        api_key=key,
        threads=arguments.threads,
        temperature_clamp=arguments.temperature_clamp,
        precision=arguments.precision,
        strict_length=arguments.strict_length,
        strict_models=arguments.strict_models,
        error_style=arguments.error_style,
        openapi=arguments.openapi,
        page=arguments.page,
        cors=tuple(arguments.cors),
        log=arguments.log,
        limits=Limits()._replace(**{field: getattr(arguments, field) for _, field, *_ in _LIMIT_FLAGS}),
    )


def _origin(text: str) -> str:
    """An origin in the form that browsers send, since another form would never match."""
    if text not in ("*", "null") and _ORIGIN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"expected * or an origin such as https://pages.example, got {text!r}")
    return text


def _mode(text: str) -> int:
    if re.fullmatch("0?[0-7]{3}", text) is None:
        raise argparse.ArgumentTypeError(f"expected three octal digits such as 660, got {text!r}")
    return int(text, 8)
