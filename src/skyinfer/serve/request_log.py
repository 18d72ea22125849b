"""The server's log: one JSON object per line, on stderr. It holds no state, question or key unless asked to.

A line is written whole or not at all. Where stderr takes no more (a full pipe that nobody reads), lines wait in a
buffer of bounded size; beyond that they are dropped whole, counted, and the count is logged when writing goes on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any

import msgspec

_MAX_STATE_CHARACTERS = 2000
# Bytes of lines that wait while stderr takes nothing.
_BUFFER_BYTES = 1 << 18
# A pipe that select calls writable takes this many bytes without blocking (POSIX: PIPE_BUF).
_WRITE_BYTES = getattr(select, "PIPE_BUF", 512) if os.name == "posix" else 1 << 20
# While lines wait, the next attempt to write them comes after this many seconds.
_RETRY_SECONDS = 0.05
# Errors of a write that may succeed later: a full pipe in non-blocking mode, a full disk.
_LATER = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
# How long `close` waits for a reader, in seconds.
_CLOSE_SECONDS = 1.0


class RequestLog:
    """Lines are written after the event loop has sent the answers that they describe. Never blocks the event loop."""

    def __init__(self, log: str) -> None:
        self.requests = log != "none"
        self.states = log == "states"
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()  # the first may be the rest of a line of which a part is written
        self._waiting_bytes = 0
        self._is_partial = False  # whether the first is such a rest
        self._n_dropped = 0
        self._is_scheduled = False

    def request(self, fields: dict[str, Any]) -> None:
        """A request that was answered, or could not be."""
        if self.requests:
            self._put({"time": _now(), "event": "request", **fields})

    def event(self, event: str, **fields: Any) -> None:
        """Something other than a request: listening, stopped, failed. Written even with `--log none`."""
        self._put({"time": _now(), "event": event, **fields})

    def flush(self) -> None:
        """Write what stderr takes now; the rest waits."""
        with self._lock:
            self._is_scheduled = False
            self._write()
            if self._waiting:
                self._schedule(_RETRY_SECONDS)

    def close(self) -> None:
        """Write what waits, as far as stderr takes it within a second."""
        end = time.monotonic() + _CLOSE_SECONDS
        while True:
            with self._lock:
                self._write()
                if not self._waiting or time.monotonic() > end:
                    return
            time.sleep(0.01)

    def _put(self, entry: dict[str, Any]) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        with self._lock:
            if self._n_dropped or self._waiting_bytes + len(line) > _BUFFER_BYTES:
                self._n_dropped += 1  # also what would fit: lines stay in order, and the gap is one
            else:
                self._append(line)
            if not self._is_scheduled:
                self._schedule(0.0)

    def _append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def _schedule(self, seconds: float) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before the loop runs, or after
            self._write()
            return
        self._is_scheduled = True
        if seconds:
            loop.call_later(seconds, self.flush)
        else:
            loop.call_soon(self.flush)

    def _write(self) -> None:
        try:
            descriptor = sys.stderr.fileno()
            self._write_lines(descriptor)
            if self._n_dropped:
                message = f"{self._n_dropped} lines were dropped because stderr did not take them"
                entry = {"time": _now(), "event": "dropped", "message": message, "lines": self._n_dropped}
                self._n_dropped = 0
                self._append(msgspec.json.encode(entry) + b"\n")
                self._write_lines(descriptor)
        except (OSError, ValueError, AttributeError) as error:
            # a log that cannot be written is no reason to stop answering
            if not (isinstance(error, OSError) and error.errno in _LATER):
                self._waiting.clear()  # stderr is closed
                self._waiting_bytes, self._is_partial = 0, False

    def _write_lines(self, descriptor: int) -> None:
        """Write until everything is written.

        Raises:
            BlockingIOError: the descriptor takes no more.
        """
        while self._waiting:
            if not _is_writable(descriptor):
                raise BlockingIOError(errno.EAGAIN, "not writable")
            piece = self._waiting[0]
            if not self._is_partial and len(piece) < _WRITE_BYTES:  # short lines together
                piece = b"".join(self._lines_of(_WRITE_BYTES))
            n_written = os.write(descriptor, piece[:_WRITE_BYTES])
            self._remove(n_written)

    def _lines_of(self, n_bytes: int) -> list[bytes]:
        """The first lines that have at most `n_bytes` together."""
        lines = []
        for line in self._waiting:
            n_bytes -= len(line)
            if n_bytes < 0:
                break
            lines.append(line)
        return lines

    def _remove(self, n_bytes: int) -> None:
        self._waiting_bytes -= n_bytes
        while n_bytes:
            line = self._waiting.popleft()
            self._is_partial = n_bytes < len(line)
            if self._is_partial:
                self._waiting.appendleft(line[n_bytes:])
            n_bytes -= min(n_bytes, len(line))


def _is_writable(descriptor: int) -> bool:
    """Whether a write of `_WRITE_BYTES` would not block. Windows can say so of sockets only."""
    return os.name != "posix" or bool(select.select([], [descriptor], [], 0)[1])


def state_text(state: Any) -> str:
    """A state as `--log states` shows it, at most 2000 characters of it."""
    try:
        text = state if isinstance(state, str) else msgspec.json.encode(state).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        text = f"({type(state).__name__})"
    return text if len(text) <= _MAX_STATE_CHARACTERS else f"{text[:_MAX_STATE_CHARACTERS]}..."


def _now() -> str:
    """The time in UTC, as RFC 3339 writes it, with milliseconds."""
    seconds, fraction = divmod(time.time(), 1)
    return f"{_date_and_time(int(seconds))}.{int(1000 * fraction):03d}Z"


@lru_cache(1)
def _date_and_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
