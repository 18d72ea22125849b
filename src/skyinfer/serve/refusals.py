"""Error responses: what went wrong, and its JSON in each of two styles.

typesafe  422 {"detail": [{"loc": ["body", ...], "msg", "type"}]} for a faulty body,
          else {"detail": {"error_type", "message"}}
llama     {"error": {"code", "message", "type"}}, and 400 for a faulty body
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import RequestError

_LONGEST = 300  # characters of a part of a path; a message has at most three times as many


class Refusal(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of the response.
        kind: the error's type in the response.
        message: for the client.
        loc: the path into a faulty body, else None.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        loc: Sequence[Any] | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(status, message)
        self.status, self.kind, self.message, self.loc = status, kind, message, loc
        self.headers = list(headers)


class ClientDisconnected(Exception):
    """The client disconnected, so there is nobody to answer."""


def invalid(loc: Sequence[Any], message: str, kind: str = "value_error") -> Refusal:
    return Refusal(422, kind, message, loc=loc)


def of_request_error(error: RequestError) -> Refusal:
    return invalid(error.loc, error.message, "missing" if error.message.startswith("is missing") else "value_error")


def too_large(message: str) -> Refusal:
    return Refusal(413, "request_too_large", message)


def too_slow(what: str, seconds: float) -> Refusal:
    return Refusal(408, "request_timeout", f"the {what} was not received within {seconds:g} seconds", headers=[CLOSE])


def overloaded(message: str, seconds: int) -> Refusal:
    return Refusal(503, "overloaded_error", message, headers=[(b"retry-after", str(seconds).encode())])


def unauthorized(message: str, challenge: bytes = b"Bearer") -> Refusal:
    return Refusal(401, "authentication_error", message, headers=[(b"www-authenticate", challenge)])


CLOSE = (b"connection", b"close")
INTERNAL = Refusal(500, "internal_error", "internal error; the server's log has the details")

_LLAMA_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
}


def encode(refusal: Refusal, style: str) -> tuple[int, bytes]:
    """(status, JSON) of a refusal, in the style "typesafe" or "llama"."""
    message = _short(refusal.message, 3 * _LONGEST)
    loc = None if refusal.loc is None else [_short(part) if isinstance(part, str) else part for part in refusal.loc]
    if style == "llama":
        status = 400 if loc is not None else refusal.status
        text = f"{'.'.join(map(str, loc))}: {message}" if loc else message
        kind = _LLAMA_KINDS.get(status, "invalid_request_error")
        return status, msgspec.json.encode({"error": {"code": status, "message": text, "type": kind}})
    if loc is not None:
        return refusal.status, msgspec.json.encode(
            {"detail": [{"loc": ["body", *loc], "msg": message, "type": refusal.kind}]}
        )
    return refusal.status, msgspec.json.encode({"detail": {"error_type": refusal.kind, "message": message}})


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
