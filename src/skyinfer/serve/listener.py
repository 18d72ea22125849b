"""HTTP for the application: uvicorn with httptools, on uvloop where there is one, and what uvicorn leaves open.

Deadlines for a request's head and for a client that does not read, limits on connections and on a head's size, errors
as JSON, answers that reach a client which is still sending, and signals: the first SIGINT or SIGTERM finishes what is
being answered and stops, the next one stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .app import Application

# An upload that has begun when the server is told to stop gets this much longer. Seconds.
_LAST_UPLOADS = 1.0
# What a client still sends after its last answer is read and thrown away, up to so many bytes and seconds.
_LINGER_BYTES, _LINGER_SECONDS = 16 << 20, 2.0
# A line that is well-formed but for a method that the parser does not know.
_REQUEST_LINE = re.compile(rb"^[!#-'*+.^_`|~0-9A-Za-z-]{1,64} [!-~]+ HTTP/1\.[01]\r?$", re.MULTILINE)


class Protocol(HttpToolsProtocol):
    """One connection."""

    app: Application
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # the loops set it as well; without it a kept connection can stall for 40 ms
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in_head = False
        self._head_bytes = 0
        self._n_begun = 0  # heads
        self._due: asyncio.TimerHandle | None = None  # of the next request's head
        self._unread: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None  # set once all is said
        self._discarded = 0
        self._received = b""  # what is being parsed
        self._answering = _Answering(self)
        self.app.connections, self.app.at_hand = len(self.connections), self.tasks
        if len(self.connections) > self.app.limits.connections:
            self._refuse(503, "overloaded_error", "this server has too many connections; try again")
        else:
            self._expect_a_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.app.connections = len(self.connections)
        self._unset_keepalive_if_required()
        for timer in (self._due, self._unread, self._lingering):
            if timer is not None:
                timer.cancel()
        if self.cycle is not None:  # nothing refers to itself, so all of it is freed here
            self.cycle.transport = self.transport
        del self._answering

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.close()
            return
        self._received, began = data, self._n_begun
        super().data_received(data)
        self._received = b""
        if self._lingering is not None or self.transport.is_closing():
            return
        if self._in_head:
            if (
                self._n_begun == began
            ):  # else a part of it belongs to the request before; a whole head is measured below
                self._head_bytes += len(data)
            if self._head_bytes > self.app.limits.head_bytes:
                self._refuse_head()
                return
        # Any byte ends uvicorn's wait for the next request. So if none is being answered now, this was a part of a
        # head, an empty line, or the rest of a body that was refused: whatever it is, it has to come to an end.
        if self._due is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_a_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._n_begun += 1

    def on_headers_complete(self) -> None:
        # a head that came at once was not counted on its way
        most = self.app.limits.head_bytes
        if self._head_bytes + len(self._received) > most and _size(self.url, self.headers) > most:
            raise _HeadTooLarge
        self._in_head = False
        if self._due is not None:
            self._due.cancel()
            self._due = None
        super().on_headers_complete()
        self.cycle.transport = self._answering  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        if self._lingering is None:
            super().on_response_complete()
        else:  # nothing more is answered
            self.server_state.total_requests += 1

    def _expect_a_head(self) -> None:
        self._due = self.loop.call_later(self.app.limits.head_seconds, self._overdue)

    def _overdue(self) -> None:
        self._due = None
        if self.transport.is_closing():
            return
        if self._in_head:
            seconds = self.app.limits.head_seconds
            self._refuse(408, "request_timeout", f"the head of the request was not received within {seconds:g} seconds")
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.app.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def shutdown(self) -> None:
        super().shutdown()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            self.loop.call_later(_LAST_UPLOADS, self._end_upload)

    def _end_upload(self) -> None:
        if self.cycle.more_body and not self.cycle.response_complete:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]  # of the parser
        if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, _HeadTooLarge):
            self._refuse_head()
        elif isinstance(error, httptools.HttpParserInvalidMethodError) and _REQUEST_LINE.search(self._received):
            self._refuse(501, "not_implemented", "this method is not known here")
        else:
            self._refuse(400, "invalid_request_error", "this cannot be read as a request of HTTP/1.1")

    def _refuse_head(self) -> None:
        most = self.app.limits.head_bytes
        self._refuse(431, "request_too_large", f"the head of the request has more than {most} bytes")

    def _refuse(self, status: int, kind: str, message: str) -> None:
        if self._lingering is None and not self.transport.is_closing():
            self.transport.write(
                self.app.refused(status, kind, message, self.client, self.server_state.default_headers)
            )
            self.linger()

    def linger(self) -> None:
        """Close, but not before the client could read its answer.

        Closed with data that nobody read, a connection is reset, and the answer is lost to a client that sends all it
        has before it reads. So only this side is closed, and the client, which sees the end, closes the other.
        """
        if self.transport.is_closing() or self._lingering is not None:
            return
        # those that are one too many get no time, so that the limit holds
        if len(self.connections) > self.app.limits.connections or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._lingering = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        self._unset_keepalive_if_required()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write_eof()
        self.flow.resume_reading()

    def _unsupported_upgrade_warning(self) -> None:
        pass  # the request is answered, and every client may send one


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum([len(name) + len(value) + 4 for name, value in headers])


class _HeadTooLarge(Exception):
    """Ends the parser's work."""


class _Answering:
    """A connection as the answer to a request sees it: closed before its body has come, it lingers."""

    __slots__ = ("_protocol", "is_closing", "write")

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def close(self) -> None:
        cycle = self._protocol.cycle
        if cycle.more_body and cycle.response_complete:
            self._protocol.linger()
        else:
            self._protocol.transport.close()


class _Server(uvicorn.Server):
    """Says when it listens, and stops as a service should: the first signal ends it with grace, the second at once."""

    def __init__(self, config: uvicorn.Config, app: Application, address: str) -> None:
        super().__init__(config)
        self._app, self._address = app, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        models = self._app.placements()
        message = f"listening on {self._address}; models: {', '.join(models)}"
        self._app.journal.event("listening", message=message, address=self._address, models=models)

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
        # the system itself ends the process on the next one
        for either in (signal.SIGINT, signal.SIGTERM):
            signal.signal(either, signal.SIG_DFL)


class _ToJournal(logging.Handler):
    """What uvicorn has to say, which is little, as lines of the log."""

    def __init__(self, app: Application) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._app.journal.event("server", **fields)


def bind(host: str, port: int) -> socket.socket:
    """A listening address.

    Raises:
        OSError: it is not to be had; `filename` names it.
    """
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # where it would let two servers share a port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), shown) from None
    return bound


def make_server(app: Application, bound: socket.socket) -> uvicorn.Server:
    """A server for the application on a socket of `bind`; run it with ``run(sockets=[bound])``."""
    host, port = bound.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
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
    logger.handlers = [_ToJournal(app)]
    logger.propagate = False
    return _Server(config, app, address)


def _loop() -> str:
    try:
        import uvloop  # noqa: F401
    except ImportError:  # there is none for Windows
        return "asyncio"
    return "uvloop"
