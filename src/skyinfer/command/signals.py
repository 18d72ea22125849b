"""Signals: SIGTERM and SIGHUP as an exception, so that a command removes files that it had begun; or later on."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

# after which a Ctrl-C that was ignored is raised again
_AGAIN_SECONDS = 0.01


class Terminated(BaseException):
    """A signal that asks the process to end; not an Exception, so that no handler of faults catches it.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _handled(
    names: tuple[str, ...], handler: Callable[[int, Any], None], replaces: Callable[[Any], bool], before: dict[int, Any]
) -> Iterator[None]:
    """`handler` for those of the signals whose own one it `replaces`, where this is the main thread.

    before: gets their own handlers, by number, as they are replaced: a signal may come before all are.
    """
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and replaces(own := signal.getsignal(number)):
                before[number] = own
                signal.signal(number, handler)
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def termination_raised() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM or SIGHUP; later ones are ignored."""

    def end(number: int, _: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated(number)

    before: dict[int, Any] = {}
    # nohup sets SIGHUP to be ignored, and so it stays
    with _handled(("SIGTERM", "SIGHUP"), end, lambda handler: handler == signal.SIG_DFL, before):
        yield


@contextmanager
def interruptions_noted() -> Iterator[list[int]]:
    """Gives a list that Ctrl-C adds to; it raises KeyboardInterrupt as ever.

    That does not always arrive. NumPy's C code, which imports `datetime`, raises an ImportError in its place. In the
    callback of a weak reference, as the locks of imports have, an exception is ignored; so it is raised again later.
    """
    noted: list[int] = []
    hook = sys.unraisablehook

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    def ignored(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            hook(unraisable)
            return
        # here, too, it would be ignored
        again = threading.Timer(_AGAIN_SECONDS, signal.raise_signal, [signal.SIGINT])
        again.daemon = True
        again.start()

    with _handled(("SIGINT",), note, lambda handler: handler is signal.default_int_handler, {}):
        sys.unraisablehook = ignored
        try:
            yield noted
        finally:
            sys.unraisablehook = hook


@contextmanager
def interruptions_deferred() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP take effect at the end of the block, a second one of them at once."""
    waiting: list[int] = []

    def wait(number: int, frame: Any) -> None:
        if waiting:
            before[number](number, frame)
        waiting.append(number)

    before: dict[int, Any] = {}
    with _handled(("SIGINT", "SIGTERM", "SIGHUP"), wait, callable, before):
        yield
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
