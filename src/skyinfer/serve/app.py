"""The ASGI application: routes, keys, bodies within their limits, answers, and one line in the log for each request.

It is plain ASGI, so any server can run it; `listener.py` adds what only a server can do (deadlines for heads, limits on
connections). Nothing of a path, a traceback or a state is ever in an answer.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable, MutableMapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from . import refusals
from .asking import Asked, Asker, decompressed
from .catalog import Catalog
from .deciding import CROWD, Decider, Line
from .journal import Journal, shown_state
from .metrics import Metrics
from .openapi import description
from .options import Options
from .refusals import ClientGone, Refusal, too_large, too_slow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[["Exchange"], Awaitable[bytes]]
Header = tuple[bytes, bytes]
_T = TypeVar("_T")

# Bytes of bodies that are on their way in at one time, of all connections.
_ARRIVING_BODIES = 128 << 20
# Bytes of a body up to which it is parsed and tokenized in the event loop: a millisecond or so for new questions, much
# less for those seen before.
_SMALL_BODY = 1 << 11
# From so many tokens on laying them out takes too long for the event loop.
_MANY_TOKENS = 1 << 14

_SANE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
_JSON = (b"content-type", b"application/json")
# what a client that went away is logged as (nginx's number; nothing is sent)
_GONE = 499

_encode = msgspec.json.Encoder().encode


class Exchange:
    """One request on its way to an answer, and what the log will say about it."""

    __slots__ = (
        "authorization", "body_bytes", "coding", "content_length", "content_type", "extra", "id", "key", "method",
        "model", "n_hosts", "n_states", "n_tokens", "origin", "path", "receive", "scope", "state", "transfer_coding",
    )  # fmt: skip

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.authorization = self.key = self.coding = self.content_type = self.origin = self.content_length = None
        self.id: bytes | None = None
        self.extra: list[Header] = []  # headers of the answer
        self.model: str | None = None
        self.body_bytes = self.n_tokens = 0
        self.n_states: int | None = None
        self.state: Any = None
        self.n_hosts = 0
        self.transfer_coding: bytes | None = None  # beside chunked
        for name, value in scope["headers"]:
            field = _HEADERS.get(name)
            if field is not None:
                setattr(self, field, value)
            elif name == b"host":
                self.n_hosts += 1
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self.transfer_coding = value


_HEADERS = {
    b"authorization": "authorization",
    b"x-api-key": "key",
    b"content-encoding": "coding",
    b"content-type": "content_type",
    b"content-length": "content_length",
    b"origin": "origin",
    b"x-request-id": "id",
}


class Application:
    """What is served, for an ASGI server.

    Attributes:
        catalog, options, journal, metrics: what it was made of.
        connections, at_hand: how many are open, and the requests that are being read or answered; the listener knows.
    """

    def __init__(self, catalog: Catalog, options: Options) -> None:
        self.catalog, self.options = catalog, options
        self.limits = options.limits
        self.journal = Journal(options.log)
        self.connections = 0
        self.at_hand: Sized = ()
        self._arriving = _Arriving()
        self.line = Line(options.limits.queue)
        self.metrics = Metrics(lambda: self.line.waiting, lambda: self.connections)
        self._asker = Asker(catalog, options.limits, options.strict_length)
        self._deciders = {one.name: Decider(one.model) for one in catalog}
        for one in catalog:
            self.metrics.loaded(one.name, one.load_seconds)
        self._key = None if options.api_key is None else options.api_key.encode()
        self._preparing = ThreadPoolExecutor(1, "skyinfer-preparing")
        self._id_prefix, self._n_requests = secrets.token_hex(4), 0
        self._listing = _encode(catalog.listing())
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/systemone": {"POST": self._systemone},
            "/v1/systemone/batch": {"POST": self._systemone_batch},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
        }
        if options.openapi:
            described = _encode(description(options))
            self._routes["/openapi.json"] = {"GET": partial(_constant, described)}
        self._open = {"/health"}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks http, not {scope['type']}")
        start = perf_counter()
        exchange = Exchange(scope, receive)
        if exchange.id is None or _SANE_ID.fullmatch(exchange.id) is None:
            exchange.id = self._new_id()
        status = 200
        try:
            body = await self._answer(exchange)
        except Refusal as refusal:
            status, body = refusals.encode(refusal, self.options.error_style)
            exchange.extra += refusal.headers
        except ClientGone:
            self._told(exchange, _GONE, perf_counter() - start)
            return
        except Exception:
            self.journal.event("failed", id=exchange.id.decode(), traceback=traceback.format_exc())
            status, body = refusals.encode(refusals.INTERNAL, self.options.error_style)
        headers = [
            _JSON,
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", exchange.id),
            (b"x-typesafe-request-id", exchange.id),
        ]
        if exchange.extra or self.options.cors:
            headers = self._with_extra(headers, exchange)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        # what was sent leaves when this turn of the event loop ends, and nobody should wait for the log
        asyncio.get_running_loop().call_soon(self._told, exchange, status, perf_counter() - start)

    def close(self) -> None:
        """End the threads, once nothing is being answered any more."""
        for decider in self._deciders.values():
            decider.close()
        self._preparing.shutdown(wait=False, cancel_futures=True)

    def placements(self) -> dict[str, dict[str, Any]]:
        """What the start-up line says of each model."""
        return {
            one.name: {
                "parameters": one.n_parameters,
                "isa": one.model.isa,
                "threads": one.model.threads,
                "microseconds_per_token": round(1e6 * self._deciders[one.name].seconds_per_token, 2),
            }
            for one in self.catalog
        }

    # ---- before and after a handler

    async def _answer(self, exchange: Exchange) -> bytes:
        if exchange.n_hosts != 1 and (exchange.n_hosts or exchange.scope["http_version"] == "1.1"):
            raise Refusal(400, "invalid_request_error", "a request of HTTP/1.1 has one Host header")
        if exchange.transfer_coding is not None:
            raise Refusal(501, "not_implemented", "chunked is the only Transfer-Encoding known here")
        if exchange.method == "OPTIONS" and self.options.cors and exchange.path in self._routes:
            exchange.extra += _PREFLIGHT
            return b""
        if self._key is not None and exchange.path not in self._open:
            _check_key(exchange, self._key)
        methods = self._routes.get(exchange.path)
        if methods is None:
            raise Refusal(404, "not_found_error", "there is nothing at this path")
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            allowed = ", ".join(methods)
            headers = [(b"allow", allowed.encode())]
            raise Refusal(405, "method_not_allowed", f"this path takes {allowed}", headers=headers)
        return await handler(exchange)

    def _with_extra(self, headers: list[Header], exchange: Exchange) -> list[Header]:
        named = {name for name, _ in exchange.extra}
        headers = [header for header in headers if header[0] not in named] + exchange.extra
        allowed, origin = self.options.cors, exchange.origin
        if "*" in allowed:
            headers.append((b"access-control-allow-origin", b"*"))
        elif allowed:
            headers.append((b"vary", b"origin"))
            if origin is not None and origin.decode("latin-1") in allowed:
                headers.append((b"access-control-allow-origin", origin))
        return headers

    def _told(self, exchange: Exchange, status: int, seconds: float) -> None:
        self.metrics.request(exchange.path if exchange.path in self._routes else "other", status, seconds)
        if not self.journal.requests:
            return
        client = exchange.scope.get("client")
        fields = {
            "id": exchange.id.decode(),  # type: ignore[union-attr]
            "client": client[0] if client else None,
            "method": exchange.method,
            "path": exchange.path[:200],
            "status": status,
            "ms": round(1000 * seconds, 3),
            "bytes": exchange.body_bytes,
        }
        if exchange.model is not None:
            fields["model"], fields["tokens"] = exchange.model, exchange.n_tokens
            if exchange.n_states is not None:
                fields["states"] = exchange.n_states
            if self.journal.states:
                fields["state"] = shown_state(exchange.state)
        self.journal.request(fields)

    def refused(self, status: int, kind: str, message: str, client: Any, headers: Sequence[Header]) -> bytes:
        """A refusal of the listener's, before there was a request: logged, counted, and as the bytes of a response."""
        self.metrics.request("none", status, 0.0)
        own_id, address = self._new_id(), client[0] if client else None
        self.journal.request({"id": own_id.decode(), "client": address, "status": status, "message": message})
        status, body = refusals.encode(Refusal(status, kind, message), self.options.error_style)
        lines = [
            *headers,
            _JSON,
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", own_id),
            (b"x-typesafe-request-id", own_id),
            refusals.CLOSE,
        ]
        if status == 503:
            lines.append((b"retry-after", b"1"))
        head = b"".join([b"%s: %s\r\n" % line for line in lines])
        return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, HTTPStatus(status).phrase.encode(), head, body)

    def _new_id(self) -> bytes:
        self._n_requests += 1
        return f"{self._id_prefix}-{self._n_requests:x}".encode()

    # ---- routes

    async def _systemone(self, exchange: Exchange) -> bytes:
        asked, rows = await self._decided(exchange, self._asker.single)
        response: dict[str, Any] = asked.compiled.answers(asked.states[0], rows)  # type: ignore[assignment]
        response["model"] = asked.served.name
        return _encode(response)

    async def _systemone_batch(self, exchange: Exchange) -> bytes:
        asked, rows = await self._decided(exchange, self._asker.batch)
        exchange.n_states = len(asked.states)
        results, n = [], len(asked.compiled.ids)
        for i, tokens in enumerate(asked.states):
            response = asked.compiled.answers(tokens, rows[i * n : (i + 1) * n])
            results.append({"answers": response["answers"], "usage": response["usage"]})
        usage = {"input_tokens": asked.n_tokens, "output_tokens": 0}
        return _encode({"model": asked.served.name, "results": results, "usage": usage})

    async def _models(self, exchange: Exchange) -> bytes:
        return self._listing

    async def _health(self, exchange: Exchange) -> bytes:
        return b'{"status":"ok"}'

    async def _metrics(self, exchange: Exchange) -> bytes:
        exchange.extra.append((b"content-type", self.metrics.content_type))
        return self.metrics.text()

    async def _decided(self, exchange: Exchange, read: Callable[[bytes], Asked]) -> tuple[Asked, list[list[float]]]:
        """What is asked, and the logits of each sequence."""
        body = await self._body(exchange)
        if len(body) > _SMALL_BODY:
            return await self._decided_in_line(exchange, read, body, None)
        asked = read(body)
        decider = self._deciders[asked.served.name]
        if not decider.runs_inline(asked.n_tokens):
            return await self._decided_in_line(exchange, read, body, asked)
        self._note(exchange, asked)
        if len(self.at_hand) - self._arriving.n_bodies < CROWD:
            return asked, asked.scores()
        return asked, await decider.rows(asked.work(), asked.n_tokens)

    async def _decided_in_line(
        self, exchange: Exchange, read: Callable[[bytes], Asked], body: bytes, asked: Asked | None
    ) -> tuple[Asked, list[list[float]]]:
        """As `_decided`, off the event loop and with a place in the line."""
        self.line.enter(sum(decider.pending_seconds for decider in self._deciders.values()))
        try:
            if asked is None:
                asked = await self._prepared(read, body)
            self._note(exchange, asked)
            decider = self._deciders[asked.served.name]
            if decider.runs_inline(asked.n_tokens):
                return asked, asked.scores()
            work = asked.work
            laid_out = work() if asked.n_tokens < _MANY_TOKENS else await self._prepared(work)
            return asked, await decider.rows(laid_out, asked.n_tokens, _gone(exchange.receive))
        finally:
            self.line.leave()

    async def _prepared(self, make: Callable[..., _T], *arguments: Any) -> _T:
        """What takes too long for the event loop, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, make, *arguments)

    def _note(self, exchange: Exchange, asked: Asked) -> None:
        exchange.model, exchange.n_tokens = asked.served.name, asked.n_tokens
        if self.journal.states:
            exchange.state = asked.state
        self.metrics.tokens(asked.served.name, asked.n_tokens)

    # ---- bodies

    async def _body(self, exchange: Exchange) -> bytes:
        """The whole body, decompressed.

        Raises:
            Refusal: 413, 408, 415 or 422.
            ClientGone: the client went away before its end.
        """
        limit, seconds = self.limits.body_bytes, self.limits.body_seconds
        stated: bytes | None = exchange.content_length
        if stated is not None and stated.isdigit() and int(stated[:20]) > limit:
            raise too_large(f"the body has {stated[:20].decode()} bytes; at most {limit} are read")
        if exchange.content_type is not None and exchange.content_type.startswith(b"multipart/"):
            raise Refusal(415, "unsupported_media_type", "images are not answered here; send the request as JSON")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        late = False

        def expire() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = loop.call_later(seconds, expire)
        try:
            body = await self._arriving.body(exchange.receive, limit)
        except asyncio.CancelledError:
            if not late:
                raise
            if hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()
            raise too_slow("body", seconds) from None
        finally:
            timer.cancel()
        exchange.body_bytes = len(body)
        if exchange.coding is not None and exchange.coding.strip().lower() != b"identity":
            coding: bytes = exchange.coding
            body = await self._prepared(decompressed, body, coding, limit)
        return body


def _check_key(exchange: Exchange, key: bytes) -> None:
    given: bytes | None = exchange.key
    if exchange.authorization is not None:
        scheme, _, token = exchange.authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        elif given is None:  # another scheme, which a proxy may have added, is no key; X-Api-Key may be one
            given = b""
    if given is None:
        raise refusals.unauthorized("this server asks for a key; send it as Authorization: Bearer KEY")
    if not hmac.compare_digest(given, key):
        raise refusals.unauthorized("this is not the key of this server")


class _Arriving:
    """The bodies that are on their way in: how many, and how many bytes of them are here."""

    def __init__(self) -> None:
        self.n_bodies = self.n_bytes = 0

    async def body(self, receive: Receive, limit: int) -> bytes:
        """A whole body.

        Raises:
            Refusal: it has more than `limit` bytes, or all of them together too many.
            ClientGone: it ends before its end.
        """
        parts: list[bytes] = []
        n_bytes = 0
        self.n_bodies += 1
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                n_bytes += len(part)
                self.n_bytes += len(part)
                if n_bytes > limit:
                    raise too_large(f"the body has more than {limit} bytes")
                if not message.get("more_body", False):
                    return b"".join([*parts, part]) if parts else part
                if self.n_bytes > _ARRIVING_BODIES:
                    raise refusals.overloaded("too much is being sent at once; try again", 1)
                parts.append(part)
        finally:
            self.n_bodies -= 1
            self.n_bytes -= n_bytes


async def _gone(receive: Receive) -> None:
    """Ends when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _constant(body: bytes, exchange: Exchange) -> bytes:
    return body


_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-encoding, content-type, x-api-key, x-request-id"),
    (b"access-control-max-age", b"600"),
]
