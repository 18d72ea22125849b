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
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from ..runtime.cpus import available_cpus
from ..runtime.windows import long_response
from . import refusals
from .catalog import Catalog
from .compression import decompressed
from .exchange import Exchange, Header, Message, Receive, Uploads, disconnected
from .metrics import Metrics
from .openapi import description
from .options import Options
from .page import CHALLENGE, page_routes, password
from .parsing import LARGE_BODY, ParsedRequest, RequestParser, TakesLong
from .parsing_pool import PARSED_PER_SECOND, ParsingPool
from .refusals import ClientDisconnected, Refusal, too_large, too_slow
from .request_log import RequestLog, state_text
from .scheduling import MERGE_FROM, Admission, ModelWorker

Send = Callable[[Message], Awaitable[None]]
Handler = Callable[["Exchange"], Awaitable[bytes]]
_Read = Callable[..., ParsedRequest]  # as RequestParser.single
_Encode = Callable[[ParsedRequest, np.ndarray], bytes]

# Bytes of a body up to which it is parsed and tokenized in the event loop: a millisecond or so for new questions, much
# less for those seen before.
_SMALL_BODY = 1 << 11
# From so many probabilities on building the answers takes too long for the event loop: about a microsecond each.
_MANY_PROBABILITIES = 1 << 10

_VALID_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
_HEADER_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
# What may be in a Host header, which may be empty (RFC 9110, section 7.2).
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
# With allowed origins: what caches must tell apart, and the headers that a page may read.
_VARY = (b"vary", b"origin, access-control-request-headers")
_EXPOSED = (b"access-control-expose-headers", b"retry-after, x-request-id, x-typesafe-request-id")
_JSON = (b"content-type", b"application/json")
# the status in the log where the client disconnected before its answer (as nginx logs it; nothing is sent)
_CLIENT_CLOSED = 499

_encode = msgspec.json.Encoder().encode


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
        self._uploads = Uploads()
        self.admission = Admission(options.limits.queue)
        self.metrics = Metrics(lambda: self.admission.waiting, lambda: self.connections)
        self._parser = RequestParser(
            catalog, options.limits, options.strict_length, keep_states=self.request_log.states
        )
        self._workers = {one.name: ModelWorker(one.model) for one in catalog}
        for one in catalog:
            self.metrics.loaded(one.name, one.load_seconds)
        self._key = None if options.api_key is None else options.api_key.encode()
        self._pool = ParsingPool(options.limits.body_bytes, available_cpus())
        self._n_parsing = 0  # requests that wait for the pool to parse them, or are parsed there
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
        self._page = page_routes(one.name for one in catalog) if options.page else {}
        self._routes |= self._page
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
        self._pool.close()

    def placements(self) -> dict[str, dict[str, Any]]:
        """Facts about each model for the log's first line."""
        return {
            one.name: {
                "parameters": one.n_parameters,
                "precision": one.model.precision,
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
        if exchange.host is not None and _HOST.fullmatch(exchange.host) is None:
            raise Refusal(400, "invalid_request_error", "the Host header is not a name or address and a port")
        if exchange.transfer_coding is not None:
            raise Refusal(501, "not_implemented", "the only supported Transfer-Encoding is chunked")
        if exchange.method == "OPTIONS" and self.options.cors and exchange.path in self._routes:
            exchange.extra += self._preflight(exchange)
            return b""
        if self._key is not None and exchange.path not in self._public:
            self._check_key(exchange, self._key)
        methods = self._routes.get(exchange.path)
        if methods is None:
            raise Refusal(404, "not_found_error", "there is nothing at this path")
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            allowed = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            headers = [(b"allow", allowed.encode())]
            raise Refusal(405, "method_not_allowed", f"this path takes {allowed}", headers=headers)
        return await handler(exchange)

    def _check_key(self, exchange: Exchange, key: bytes) -> None:
        is_page = exchange.path in self._page
        given: bytes | None = exchange.key
        if exchange.authorization is not None:
            scheme, _, token = exchange.authorization.partition(b" ")
            if scheme.lower() == b"bearer":
                given = token.strip()
            elif given is None:  # another scheme may come from a proxy; X-Api-Key may hold the key
                given = (password(exchange, is_page) if self._page else None) or b""
        challenge = CHALLENGE if is_page else b"Bearer"
        if given is None:
            raise refusals.unauthorized("a key is required; send it as Authorization: Bearer KEY", challenge)
        if not hmac.compare_digest(given, key):
            raise refusals.unauthorized("the key is wrong", challenge)

    def _with_extra(self, headers: list[Header], exchange: Exchange) -> list[Header]:
        named = {name for name, _ in exchange.extra}
        headers = [header for header in headers if header[0] not in named] + exchange.extra
        if not self.options.cors:
            return headers
        if "*" in self.options.cors:
            headers.append((b"access-control-allow-origin", b"*"))
        elif self._allows_origin(exchange) and exchange.origin is not None:
            headers.append((b"access-control-allow-origin", exchange.origin))
        return [*headers, _VARY, _EXPOSED]

    def _allows_origin(self, exchange: Exchange) -> bool:
        origin: bytes | None = exchange.origin
        return "*" in self.options.cors or (origin is not None and origin.decode("latin-1") in self.options.cors)

    def _preflight(self, exchange: Exchange) -> list[Header]:
        """Headers of the answer to a browser that asks what a page may send (the Fetch standard's CORS protocol)."""
        if not self._allows_origin(exchange):
            return []
        headers = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-max-age", b"600")]
        # whatever the page's client adds; a wildcard would leave out Authorization
        asked: bytes = exchange.asked_headers or b"authorization, content-encoding, content-type, x-api-key"
        if _HEADER_NAMES.fullmatch(asked) is not None:
            headers.append((b"access-control-allow-headers", asked))
        if exchange.asked_private_network == b"true":  # a page of another network, of a server on this one
            headers.append((b"access-control-allow-private-network", b"true"))
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
        return await self._decided(exchange, self._parser.single, _encode_single)

    async def _systemone_batch(self, exchange: Exchange) -> bytes:
        return await self._decided(exchange, self._parser.batch, _encode_batch)

    async def _models(self, exchange: Exchange) -> bytes:
        return self._listing

    async def _health(self, exchange: Exchange) -> bytes:
        return b'{"status":"ok"}'

    async def _metrics(self, exchange: Exchange) -> bytes:
        exchange.extra.append((b"content-type", self.metrics.content_type))
        return self.metrics.text()

    async def _decided(self, exchange: Exchange, read: _Read, encode: _Encode) -> bytes:
        """The JSON of the answers to a request that `read` parses."""
        body = await self._body(exchange)
        if len(body) > _SMALL_BODY:
            return await self._decided_off_loop(exchange, read, encode, body, len(body))
        try:
            asked = read(body, self._seconds)
        except TakesLong as work:
            return await self._decided_off_loop(exchange, read, encode, body, int(work.seconds * PARSED_PER_SECOND))
        worker = self._workers[asked.served.name]
        if not worker.runs_inline(asked.n_tokens) or asked.n_probabilities > _MANY_PROBABILITIES:
            return await self._decided_off_loop(exchange, read, encode, body, asked)
        self._record_model(exchange, asked)
        if len(self.active) - self._uploads.n_bodies - self._n_parsing < MERGE_FROM:
            return encode(asked, asked.scores())
        return encode(asked, await worker.scores(asked.prepared, asked.states, asked.n_tokens))

    async def _decided_off_loop(
        self, exchange: Exchange, read: _Read, encode: _Encode, body: bytes, asked: ParsedRequest | int
    ) -> bytes:
        """As `_decided`, with its parts in threads where they are long. Counts against the limit of waiting requests.

        `asked` is what was parsed, or how much there is to parse, as `ParsingPool.run` counts. Nothing more of it is
        begun once the client has disconnected.
        """
        seconds = sum([worker.pending_seconds for worker in self._workers.values()])
        is_large = len(body) > LARGE_BODY
        self.admission.admit(seconds, is_large)
        left = asyncio.ensure_future(disconnected(exchange.receive))
        try:
            if isinstance(asked, int):
                self._n_parsing += 1
                try:
                    asked = await self._pool.run(asked, partial(read, body), left)
                finally:
                    self._n_parsing -= 1
            self._record_model(exchange, asked)
            worker = self._workers[asked.served.name]
            if worker.runs_inline(asked.n_tokens):
                scores = asked.scores()
            else:
                scores = await worker.scores(asked.prepared, asked.states, asked.n_tokens, left)
            if asked.n_probabilities <= _MANY_PROBABILITIES:
                return encode(asked, scores)
            return await self._pool.run(asked.n_probabilities, partial(encode, asked, scores), left)
        finally:
            left.cancel()
            self.admission.release(is_large)

    def _seconds(self, model: str, n_tokens: int) -> float:
        return n_tokens * self._workers[model].seconds_per_token

    def _record_model(self, exchange: Exchange, asked: ParsedRequest) -> None:
        exchange.model, exchange.n_tokens = asked.served.name, asked.input_tokens
        if asked.is_batch:
            exchange.n_states = len(asked.states)
        if self.request_log.states:
            exchange.state = asked.state
        self.metrics.tokens(asked.served.name, asked.input_tokens)

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
        if exchange.content_type is not None and exchange.content_type.strip().lower().startswith(b"multipart/"):
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
            body = await self._pool.run(len(body), partial(decompressed, body, coding, limit))
        return body


def _encode_single(asked: ParsedRequest, scores: np.ndarray) -> bytes:
    if asked.scan is None:
        response = asked.prepared.answers(asked.states[0], scores[0])
    else:
        response = long_response(asked.prepared, asked.scan, asked.states, scores)
    if asked.thresholds is not None:
        asked.thresholds.mark(response)
    response["model"] = asked.served.name
    if asked.ignored:
        response["x_ignored"] = list(asked.ignored)
    return _encode(response)


def _encode_batch(asked: ParsedRequest, scores: np.ndarray) -> bytes:
    results = []
    for tokens, row in zip(asked.states, scores, strict=True):
        response = asked.prepared.answers(tokens, row)
        if asked.thresholds is not None:
            asked.thresholds.mark(response)
        results.append({"answers": response["answers"], "usage": response["usage"]})
    usage = {"input_tokens": asked.input_tokens, "output_tokens": 0}
    ignored = {"x_ignored": asked.ignored} if asked.ignored else {}
    return _encode({"model": asked.served.name, "results": results, "usage": usage, **ignored})


async def _constant(body: bytes, exchange: Exchange) -> bytes:
    return body
