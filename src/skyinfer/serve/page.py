"""The page "Ask" beside the API: its files as routes, and the server's key as a password, the only way in which a
browser asks a person for one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from ..web.pages import HEADERS, PageFile, ask_files
from .exchange import Exchange

# what a refusal of the page asks the browser for
CHALLENGE = b'Basic realm="skyinfer: any name, and the API key as the password", charset="UTF-8"'

Handler = Callable[[Exchange], Awaitable[bytes]]


def page_routes(models: Iterable[str]) -> dict[str, dict[str, Handler]]:
    """A GET route for each file of the page; "/" is the page itself. `models`: the names that it offers."""
    return {path: {"GET": partial(_file, file)} for path, file in ask_files(models).items()}


async def _file(file: PageFile, exchange: Exchange) -> bytes:
    exchange.extra.append((b"content-type", file.type.encode()))
    exchange.extra += [(name.encode(), value.encode()) for name, value in HEADERS]
    return file.data


def password(exchange: Exchange, is_page: bool) -> bytes | None:
    """The password of a browser that a person gave one to; None where there is none.

    A browser adds it to whatever is sent to this server, also by pages of others. So it counts for the page itself and
    for what the browser says comes from the page.
    """
    if not is_page and exchange.fetch_site != b"same-origin":
        return None
    scheme, _, token = (exchange.authorization or b"").partition(b" ")
    try:
        name_and_password = base64.b64decode(token.strip(), validate=True) if scheme.lower() == b"basic" else b""
    except binascii.Error:
        name_and_password = b""
    return name_and_password.partition(b":")[2] or None
