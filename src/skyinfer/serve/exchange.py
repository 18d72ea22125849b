"""One HTTP request until it is answered: its headers, its body, and what is logged of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from . import refusals
from .refusals import ClientDisconnected, too_large

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Header = tuple[bytes, bytes]

# Bytes of all bodies that are being received at one time, of all connections.
_UPLOAD_BYTES = 128 << 20


class Exchange:
    """A request. Attributes of its headers are None where it has no such header."""

    __slots__ = (
        "asked_headers", "asked_private_network", "authorization", "body_bytes", "coding", "content_length",
        "content_type", "extra", "fetch_site", "host", "id", "key", "method", "model", "n_hosts", "n_states",
        "n_tokens", "origin", "path", "receive", "scope", "state", "transfer_coding",
    )  # fmt: skip

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.asked_headers = self.asked_private_network = None  # of a preflight
        self.authorization = self.key = self.content_type = self.origin = self.content_length = self.fetch_site = None
        self.coding: bytes | None = None
        self.id: bytes | None = None
        self.extra: list[Header] = []  # headers of the answer
        self.model: str | None = None
        self.body_bytes = self.n_tokens = 0
        self.n_states: int | None = None
        self.state: Any = None
        self.host: bytes | None = None
        self.n_hosts = 0
        self.transfer_coding: bytes | None = None  # beside chunked
        for name, value in scope["headers"]:
            field = _HEADERS.get(name)
            if name == b"content-encoding" and self.coding is not None:
                self.coding += b"," + value  # one list, in several lines
            elif field is not None:
                setattr(self, field, value)
            elif name == b"host":
                self.host = value
                self.n_hosts += 1
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self.transfer_coding = value


_HEADERS = {
    b"access-control-request-headers": "asked_headers",
    b"access-control-request-private-network": "asked_private_network",
    b"authorization": "authorization",
    b"x-api-key": "key",
    b"content-encoding": "coding",
    b"content-type": "content_type",
    b"content-length": "content_length",
    b"origin": "origin",
    b"sec-fetch-site": "fetch_site",
    b"x-request-id": "id",
}


class Uploads:
    """The bodies that are being received: how many, and how many bytes of them have arrived."""

    def __init__(self) -> None:
        self.n_bodies = self.n_bytes = 0

    async def body(self, receive: Receive, limit: int) -> bytes:
        """A whole body.

        Raises:
            Refusal: it has more than `limit` bytes, or all bodies together have too many.
            ClientDisconnected: the client disconnected before its end.
        """
        parts: list[bytes] = []
        n_bytes = 0
        self.n_bodies += 1
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part: bytes = message.get("body", b"")
                n_bytes += len(part)
                self.n_bytes += len(part)
                if n_bytes > limit:
                    raise too_large(f"the body has more than {limit} bytes")
                if not message.get("more_body", False):
                    return b"".join([*parts, part]) if parts else part
                if self.n_bytes > _UPLOAD_BYTES:
                    raise refusals.overloaded("too many bytes are being received; try again", 1)
                parts.append(part)
        finally:
            self.n_bodies -= 1
            self.n_bytes -= n_bytes


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
