"""The server's log: one JSON object a line, on stderr. No state, no question and no key is in it unless asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import time
from functools import lru_cache
from typing import Any

import msgspec

_LONGEST_STATE = 2000  # characters
# A pipe that says it takes something takes as much at least (PIPE_BUF).
_PIECE = 4096 if os.name == "posix" else 1 << 20


class Journal:
    """Lines are written together after the event loop has sent the answers that they are about."""

    def __init__(self, log: str) -> None:
        self.requests = log != "none"
        self.states = log == "states"
        self._lines: list[bytes] = []

    def request(self, fields: dict[str, Any]) -> None:
        if self.requests:
            self._put({"time": _now(), "event": "request", **fields})

    def event(self, event: str, **fields: Any) -> None:
        """Something that is no request: started, stopping, failed. Always written."""
        self._put({"time": _now(), "event": event, **fields})

    def flush(self) -> None:
        data, self._lines = b"".join(self._lines), []
        # a log that cannot be written is no reason to stop answering, nor is one that nobody reads
        with contextlib.suppress(OSError, ValueError, AttributeError):
            descriptor = sys.stderr.fileno()
            while data and _takes_more(descriptor):
                data = data[os.write(descriptor, data[:_PIECE]) :]

    def _put(self, entry: dict[str, Any]) -> None:
        self._lines.append(msgspec.json.encode(entry) + b"\n")
        if len(self._lines) == 1:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:  # before the loop runs, or after
                self.flush()


def _takes_more(descriptor: int) -> bool:
    """Whether a write would not wait. Windows tells that of sockets only."""
    return os.name != "posix" or bool(select.select([], [descriptor], [], 0)[1])


def shown_state(state: Any) -> str:
    """A state as `--log states` shows it."""
    try:
        text = state if isinstance(state, str) else msgspec.json.encode(state).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        text = f"({type(state).__name__})"
    return text if len(text) <= _LONGEST_STATE else f"{text[:_LONGEST_STATE]}..."


def _now() -> str:
    seconds, fraction = divmod(time.time(), 1)
    return f"{_second(int(seconds))}.{int(1000 * fraction):03d}Z"


@lru_cache(1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
