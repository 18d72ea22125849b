"""The ASGI application: routes, keys, bodies within their limits, answers, and one line in the log for each request.

It is plain ASGI, so any server can run it; `listener.py` adds what only a server can do (timeouts for request heads,
limits on connections). No path, traceback or state is ever part of an error response.
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
from .catalog import Catalog
from .metrics import Metrics
from .openapi import description
from .options import Options
from .parsing import ParsedRequest, RequestParser, decompressed
from .refusals import ClientDisconnected, Refusal, too_large, too_slow
from .request_log import RequestLog, state_text
from .scheduling import MERGE_FROM, Admission, ModelWorker

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[["Exchange"], Awaitable[bytes]]
Header = tuple[bytes, bytes]
_T = TypeVar("_T")

# Bytes of all bodies that are being received at one time, of all connections.
_UPLOAD_BYTES = 128 << 20
# Bytes of a body up to which it is parsed and tokenized in the event loop: a millisecond or so for new questions, much
# less for those seen before.
_SMALL_BODY = 1 << 11
# From so many tokens on laying them out takes too long for the event loop.
_MANY_TOKENS = 1 << 14

_VALID_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
_JSON = (b"content-type", b"application/json")
# the status in the log where the client disconnected before its answer (as nginx logs it; nothing is sent)
_CLIENT_CLOSED = 499

_encode = msgspec.json.Encoder().encode


class Exchange:
    """One request until it is answered, and what is logged of it."""

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
    """The ASGI application.

    Attributes:
        catalog, options, request_log, metrics: its parts.
        connections: open connections; set by the listener.
        active: the requests that are being read or answered; set by the listener.
    """

    def __init__(self, catalog: Catalog, options: Options) -> None:
        self.catalog, self.options = catalog, options
        self.limits = options.limits
        self.request_log = RequestLog(options.log)
        self.connections = 0
        self.active: Sized = ()
        self._uploads = _Uploads()
        self.admission = Admission(options.limits.queue)
        self.metrics = Metrics(lambda: self.admission.waiting, lambda: self.connections)
        self._parser = RequestParser(catalog, options.limits, options.strict_length)
        self._workers = {one.name: ModelWorker(one.model) for one in catalog}
        for one in catalog:
            self.metrics.loaded(one.name, one.load_seconds)
        self._key = None if options.api_key is None else options.api_key.encode()
        self._parsing_thread = ThreadPoolExecutor(1, "skyinfer-parsing")
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
        self._public = {"/health"}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks http, not {scope['type']}")
        start = perf_counter()
        exchange = Exchange(scope, receive)
        if exchange.id is None or _VALID_ID.fullmatch(exchange.id) is None:
            exchange.id = self._new_id()
        status = 200
        try:
            body = await self._answer(exchange)
        except Refusal as refusal:
            status, body = refusals.encode(refusal, self.options.error_style)
            exchange.extra += refusal.headers
        except ClientDisconnected:
            self._record(exchange, _CLIENT_CLOSED, perf_counter() - start)
            return
        except Exception:
            self.request_log.event("failed", id=exchange.id.decode(), traceback=traceback.format_exc())
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
        # the answer leaves when this iteration of the event loop ends; logging should not delay it
        asyncio.get_running_loop().call_soon(self._record, exchange, status, perf_counter() - start)

    def close(self) -> None:
        """End the threads. Called when no request is being answered any more."""
        for worker in self._workers.values():
            worker.close()
        self._parsing_thread.shutdown(wait=False, cancel_futures=True)

    def placements(self) -> dict[str, dict[str, Any]]:
        """Facts about each model for the log's first line."""
        return {
            one.name: {
                "parameters": one.n_parameters,
                "isa": one.model.isa,
                "threads": one.model.threads,
                "microseconds_per_token": round(1e6 * self._workers[one.name].seconds_per_token, 2),
            }
            for one in self.catalog
        }

    # ---- before and after a route's handler

    async def _answer(self, exchange: Exchange) -> bytes:
        if exchange.n_hosts != 1 and (exchange.n_hosts or exchange.scope["http_version"] == "1.1"):
            raise Refusal(400, "invalid_request_error", "a request of HTTP/1.1 must have exactly one Host header")
        if exchange.transfer_coding is not None:
            raise Refusal(501, "not_implemented", "the only supported Transfer-Encoding is chunked")
        if exchange.method == "OPTIONS" and self.options.cors and exchange.path in self._routes:
            exchange.extra += _PREFLIGHT
            return b""
        if self._key is not None and exchange.path not in self._public:
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

    def _record(self, exchange: Exchange, status: int, seconds: float) -> None:
        self.metrics.request(exchange.path if exchange.path in self._routes else "other", status, seconds)
        if not self.request_log.requests:
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
            if self.request_log.states:
                fields["state"] = state_text(exchange.state)
        self.request_log.request(fields)

    def refused(self, status: int, kind: str, message: str, client: Any, headers: Sequence[Header]) -> bytes:
        """The bytes of an error response of the listener's, to something that is no request. Logs and counts it."""
        self.metrics.request("none", status, 0.0)
        own_id, address = self._new_id(), client[0] if client else None
        self.request_log.request({"id": own_id.decode(), "client": address, "status": status, "message": message})
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
        asked, rows = await self._decided(exchange, self._parser.single)
        response: dict[str, Any] = asked.compiled.answers(asked.states[0], rows)  # type: ignore[assignment]
        response["model"] = asked.served.name
        return _encode(response)

    async def _systemone_batch(self, exchange: Exchange) -> bytes:
        asked, rows = await self._decided(exchange, self._parser.batch)
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

    async def _decided(
        self, exchange: Exchange, read: Callable[[bytes], ParsedRequest]
    ) -> tuple[ParsedRequest, list[list[float]]]:
        """The parsed request, and the logits of each sequence."""
        body = await self._body(exchange)
        if len(body) > _SMALL_BODY:
            return await self._decided_off_loop(exchange, read, body, None)
        asked = read(body)
        worker = self._workers[asked.served.name]
        if not worker.runs_inline(asked.n_tokens):
            return await self._decided_off_loop(exchange, read, body, asked)
        self._record_model(exchange, asked)
        if len(self.active) - self._uploads.n_bodies < MERGE_FROM:
            return asked, asked.scores()
        return asked, await worker.rows(asked.work(), asked.n_tokens)

    async def _decided_off_loop(
        self, exchange: Exchange, read: Callable[[bytes], ParsedRequest], body: bytes, asked: ParsedRequest | None
    ) -> tuple[ParsedRequest, list[list[float]]]:
        """As `_decided`, with parsing and forward passes in threads; counts against the limit of waiting requests."""
        self.admission.admit(sum(worker.pending_seconds for worker in self._workers.values()))
        try:
            if asked is None:
                asked = await self._in_thread(read, body)
            self._record_model(exchange, asked)
            worker = self._workers[asked.served.name]
            if worker.runs_inline(asked.n_tokens):
                return asked, asked.scores()
            work = asked.work
            laid_out = work() if asked.n_tokens < _MANY_TOKENS else await self._in_thread(work)
            return asked, await worker.rows(laid_out, asked.n_tokens, _disconnected(exchange.receive))
        finally:
            self.admission.release()

    async def _in_thread(self, make: Callable[..., _T], *arguments: Any) -> _T:
        """Calls what takes too long for the event loop in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._parsing_thread, make, *arguments)

    def _record_model(self, exchange: Exchange, asked: ParsedRequest) -> None:
        exchange.model, exchange.n_tokens = asked.served.name, asked.n_tokens
        if self.request_log.states:
            exchange.state = asked.state
        self.metrics.tokens(asked.served.name, asked.n_tokens)

    # ---- bodies

    async def _body(self, exchange: Exchange) -> bytes:
        """The whole body, decompressed.

        Raises:
            Refusal: 413, 408, 415 or 422.
            ClientDisconnected: the client disconnected before the end of its body.
        """
        limit, seconds = self.limits.body_bytes, self.limits.body_seconds
        stated: bytes | None = exchange.content_length
        if stated is not None and stated.isdigit() and int(stated[:20]) > limit:
            raise too_large(f"the body has {stated[:20].decode()} bytes; at most {limit} are read")
        if exchange.content_type is not None and exchange.content_type.startswith(b"multipart/"):
            raise Refusal(415, "unsupported_media_type", "images are not supported; send the request as JSON")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        late = False

        def expire() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = loop.call_later(seconds, expire)
        try:
            body = await self._uploads.body(exchange.receive, limit)
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
            body = await self._in_thread(decompressed, body, coding, limit)
        return body


def _check_key(exchange: Exchange, key: bytes) -> None:
    given: bytes | None = exchange.key
    if exchange.authorization is not None:
        scheme, _, token = exchange.authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        elif given is None:  # another scheme may come from a proxy; X-Api-Key may hold the key
            given = b""
    if given is None:
        raise refusals.unauthorized("a key is required; send it as Authorization: Bearer KEY")
    if not hmac.compare_digest(given, key):
        raise refusals.unauthorized("the key is wrong")


class _Uploads:
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


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _constant(body: bytes, exchange: Exchange) -> bytes:
    return body


_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-encoding, content-type, x-api-key, x-request-id"),
    (b"access-control-max-age", b"600"),
]
