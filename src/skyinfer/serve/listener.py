"""HTTP for the application: uvicorn with httptools, on uvloop where it is available, and what uvicorn lacks.

That is: timeouts for a request's head and for a client that does not read, limits on connections and on a head's size,
errors as JSON, responses that reach a client which is still sending, and signals: the first SIGINT or SIGTERM finishes
the active requests and stops, the next one stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .app import Application
from .binding import address_of

# A body that is being received when the server is told to stop gets so many more seconds.
_LAST_UPLOADS = 1.0
# What a client still sends after its last response is read and discarded, up to so many bytes and seconds.
_LINGER_BYTES, _LINGER_SECONDS = 16 << 20, 2.0
# A request line that is well-formed but for a method that the parser does not know.
_UNKNOWN_METHOD = re.compile(
    rb"^(?!(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE) )[!#-'*+.^_`|~0-9A-Za-z-]{1,64} [!-~]+ HTTP/1\.[01]\r?$",
    re.MULTILINE,
)


class Protocol(HttpToolsProtocol):
    """One connection.

    uvicorn's `cycle` is the newest request, whose body may still be received; `_running` is the one that is being
    answered, behind which others may wait in `pipeline` (tests/test_serve_pipelining.py).
    """

    app: Application
    transport: asyncio.Transport
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # event loops set it as well; without it (Nagle's algorithm) a kept-alive connection can stall for 40 ms
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in_head = False
        self._head_bytes = 0
        self._n_heads = 0  # that have begun
        self._head_timer: asyncio.TimerHandle | None = None  # runs until the next request's head is complete
        self._send_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None  # set once the last response is written
        self._discarded = 0
        self._n_body_parts = 0
        self._framing_bytes = 0  # since the last part of a body
        self._refusal: tuple[int, str, str] | None = None  # to be sent after the responses to earlier requests
        self._received = b""  # the bytes that are being parsed
        self._upgrade_head = b""  # a head to be parsed again
        self._response_transport = _ResponseTransport(self)
        self.app.connections, self.app.active = len(self.connections), self.tasks
        if len(self.connections) > self.app.limits.connections and not self._close_an_idle_connection():
            self._refuse(503, "overloaded_error", "the server has too many open connections; try again")
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.app.connections = len(self.connections)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._send_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        # breaks the reference cycles, so that everything is freed at once
        self.pipeline.clear()
        for cycle in (self.cycle, self._running):
            if cycle is not None:
                cycle.transport = self.transport
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
        self._running = None
        del self._response_transport

    def data_received(self, data: bytes) -> None:
        if self._linger_timer is not None or self._refusal is not None:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.close()
            return
        n_heads, n_body_parts = self._n_heads, self._n_body_parts
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error)
        self._received = b""
        if self._linger_timer is not None or self._refusal is not None or self.transport.is_closing():
            return
        if self._in_head:
            # else a part of `data` belongs to the request before; a whole head is measured in on_headers_complete
            if self._n_heads == n_heads:
                self._head_bytes += len(data)
            if self._head_bytes > self.app.limits.head_bytes:
                self._refuse_head()
                return
        elif self.cycle is not None and self.cycle.more_body:
            # what is no body: sizes and extensions of chunks, and trailers, which the parser keeps
            self._framing_bytes = self._framing_bytes + len(data) if self._n_body_parts == n_body_parts else 0
            if self._framing_bytes > self.app.limits.head_bytes:
                self._refuse_head()
                return
        # Any byte ends uvicorn's keep-alive timeout. So where no request is being answered now, this was a part of a
        # head, an empty line, or the rest of a body that was refused: each needs a timeout.
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_head_timer()

    def _parse(self, data: bytes) -> None:
        """Feed the parser.

        The parser takes what follows a head with `Connection: Upgrade` for the new protocol: it skips the body and ends
        there. A server may ignore an upgrade (RFC 9110, section 7.8), and this one speaks nothing but HTTP/1.1. So the
        same head without the upgrade goes to a new parser, and after it what came behind the head.
        """
        while True:
            self._received = data
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                head, self._upgrade_head = self._upgrade_head, b""
                data = head + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._n_heads += 1

    def on_headers_complete(self) -> None:
        # a head that arrived in one piece was not counted in data_received
        most = self.app.limits.head_bytes
        if self._head_bytes + len(self._received) > most and _size(self.url, self.headers) > most:
            raise _HeadTooLarge
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise _MethodUnknown
        if version not in ("1.1", "1.0"):
            raise _VersionUnknown
        if self.parser.should_upgrade():
            self._upgrade_head = _head(method, self.url, version, self.headers)
            return
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()
        self.cycle.transport = self._response_transport  # type: ignore[assignment]
        self._framing_bytes = 0
        self.headers = []  # trailers, of which on_header is told as well, are no headers (RFC 9110, section 6.5.1)

    def on_body(self, body: bytes) -> None:
        self._n_body_parts += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._upgrade_head:  # else the request is parsed once more
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._linger_timer is not None:  # no further request is answered
            self.server_state.total_requests += 1
            return
        refusal = self._refusal
        if refusal is not None and not self.pipeline and not self.transport.is_closing():
            self.server_state.total_requests += 1
            self._send_refusal(*refusal)
            return
        super().on_response_complete()
        if self.pipeline:  # resumed by each response, reading would run ahead of the responses without an end
            self.flow.pause_reading()
        if self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._start_head_timer()

    def _close_an_idle_connection(self) -> bool:
        """Make room for a new one: of those that wait for their next request, the one that has waited longest."""
        idle = [
            one for one in self.connections if isinstance(one, Protocol) and one.timeout_keep_alive_task is not None
        ]
        if not idle:
            return False
        longest = min(idle, key=lambda one: one.timeout_keep_alive_task.when())  # type: ignore[union-attr]
        longest._unset_keepalive_if_required()  # it counts until the event loop has closed it, but not as idle
        longest.transport.close()
        return True

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.app.limits.head_seconds, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._in_head:
            seconds = self.app.limits.head_seconds
            self._refuse(408, "request_timeout", f"the head of the request was not received within {seconds:g} seconds")
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(self.app.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def shutdown(self) -> None:
        super().shutdown()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            self.loop.call_later(_LAST_UPLOADS, self._end_upload)

    def _end_upload(self) -> None:
        if self.pipeline and self.cycle.more_body:  # those before it are answered
            self._refuse(503, "overloaded_error", "the server is stopping; try again")
        elif self.cycle.more_body and not self.cycle.response_complete:
            self.transport.close()

    def _refuse_unparsed(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, _HeadTooLarge):
            self._refuse_head()
        elif isinstance(cause, _VersionUnknown) or self.parser.get_method() == b"PRI":
            self._refuse(505, "not_implemented", "this server speaks HTTP/1.1 and HTTP/1.0 only")
        elif isinstance(cause, _MethodUnknown) or (
            isinstance(error, httptools.HttpParserInvalidMethodError) and _UNKNOWN_METHOD.search(self._received)
        ):
            self._refuse(501, "not_implemented", "this method is not supported")
        else:
            self._refuse(400, "invalid_request_error", "this is not a valid HTTP/1.1 request")

    def _refuse_head(self) -> None:
        most = self.app.limits.head_bytes
        self._refuse(431, "request_too_large", f"the head of the request has more than {most} bytes")

    def _refuse(self, status: int, kind: str, message: str) -> None:
        """End the connection with an error response, which comes after the responses to earlier requests."""
        if self._linger_timer is not None or self._refusal is not None or self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body and self.pipeline:  # the faulty request itself waits there
            self.pipeline.popleft()
        elif cycle is None or cycle.response_complete or cycle.more_body:
            self._send_refusal(status, kind, message)
            return
        self._refusal = status, kind, message

    def _send_refusal(self, status: int, kind: str, message: str) -> None:
        self.transport.write(self.app.refused(status, kind, message, self.client, self.server_state.default_headers))
        self.linger()

    def linger(self) -> None:
        """Close, but not before the client could read its response (RFC 9112, section 9.6).

        A connection that is closed with unread data is reset, and then the response is lost to a client that sends its
        whole body before it reads. So only this side is closed, and the client, which sees that, closes the other.
        """
        if self.transport.is_closing() or self._linger_timer is not None:
            return
        # connections beyond the limit are closed at once, so that the limit holds
        if len(self.connections) > self.app.limits.connections or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        self._unset_keepalive_if_required()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write_eof()
        self.flow.resume_reading()


def _head(method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A request's head as it was received, without the protocol that it offers to upgrade to."""
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version.encode())]
    lines += [b"%s: %s\r\n" % header for header in headers if header[0] != b"upgrade"]
    return b"".join([*lines, b"\r\n"])


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum([len(name) + len(value) + 4 for name, value in headers])


class _HeadTooLarge(Exception):
    """Raised in a callback to stop the parser."""


class _MethodUnknown(Exception):
    """Raised in a callback to stop the parser."""


class _VersionUnknown(Exception):
    """Raised in a callback to stop the parser."""


class _ResponseTransport:
    """The transport that a response is written to: closed while more of requests may be received, it lingers."""

    __slots__ = ("_protocol", "_write", "is_closing")

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # event loops warn of what is written to a connection that was lost
            self._write(data)

    def close(self) -> None:
        protocol = self._protocol
        if protocol.pipeline or protocol._in_head or protocol.cycle.more_body:
            protocol.linger()
        else:
            protocol.transport.close()


class _Server(uvicorn.Server):
    """Logs when it listens. The first signal stops it gracefully, the second at once."""

    def __init__(self, config: uvicorn.Config, app: Application, address: str) -> None:
        super().__init__(config)
        self._app, self._address = app, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        models = self._app.placements()
        message = f"listening on {self._address}; models: {', '.join(models)}"
        self._app.request_log.event("listening", message=message, address=self._address, models=models)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True
        # the next one ends the process by the system's default action
        for either in (signal.SIGINT, signal.SIGTERM):
            signal.signal(either, signal.SIG_DFL)


class _UvicornLogHandler(logging.Handler):
    """Writes uvicorn's own messages, of which there are few, to the request log."""

    def __init__(self, app: Application) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._app.request_log.event("server", **fields)


def make_server(app: Application, bound: socket.socket) -> uvicorn.Server:
    """A server for the application on a bound socket; run it with ``run(sockets=[bound])``."""
    config = uvicorn.Config(
        app,
        loop=_loop(),
        http=Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=app.limits.idle_seconds,  # type: ignore[arg-type]
        backlog=2048,
    )
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_UvicornLogHandler(app)]
    logger.propagate = False
    return _Server(config, app, address_of(bound))


def _loop() -> str:
    try:
        import uvloop  # noqa: F401
    except ImportError:  # not available for Windows
        return "asyncio"
    return "uvloop"
