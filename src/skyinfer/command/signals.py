"""Signals: SIGTERM and SIGHUP as an exception, so that a command removes files that it had begun; or later on."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO


class Terminated(BaseException):
    """A signal that asks the process to end; not an Exception, so that no handler of faults catches it.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def termination_raised() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM or SIGHUP; later ones are ignored."""

    def end(number: int, _: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # nohup sets SIGHUP to be ignored, and so it stays
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptions_deferred() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP take effect at the end of the block, a second one of them at once."""
    waiting: list[int] = []

    def wait(number: int, frame: Any) -> None:
        if waiting:
            before[number](number, frame)
        waiting.append(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and callable(signal.getsignal(number)):
                before[number] = signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        before[waiting[0]](waiting[0], None)


class WholeWrites:
    """A binary stream of which everything that is written at once gets through, whatever signal comes meanwhile."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        with interruptions_deferred():
            while left:  # a stream without a buffer, as by PYTHONUNBUFFERED, may take a part
                n = self._stream.write(left)
                if n is None:
                    raise BlockingIOError(errno.EAGAIN, "does not wait for its reader")
                left = left[n:]
            self._stream.flush()
        return len(data)
