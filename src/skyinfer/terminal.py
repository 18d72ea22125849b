"""What the command writes: lines and JSON on stdout, one line for each fault or warning on stderr, a progress bar.

Text that comes out of a file or a request is untrusted here: it can neither begin a new line nor move a cursor.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .errors import faults_named

_LONGEST_MESSAGE = 1000


def printable(text: str) -> str:
    """Untrusted text fit for one line of a terminal: what does not print is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def size(n_bytes: int) -> str:
    """Bytes in the largest unit that leaves a whole part: "640 B", "1.5 MB" (powers of 1000)."""
    amount, unit = float(n_bytes), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f} {unit}"


def put_line(text: str) -> None:
    """A line on stdout. What its encoding lacks is written as an escape.

    Raises:
        OSError: stdout is closed or cannot be written; `filename` is "standard output".
    """
    stdout = _stdout()
    encoding = stdout.encoding or "utf-8"
    with faults_named("standard output"):
        stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def put_json(value: Any) -> None:
    """JSON on stdout: indented on a terminal, else one line; escaped where stdout cannot carry it as it is.

    JSON has no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity". Raises as `put_line`.
    """
    stdout = _stdout()
    terminal = stdout.isatty()
    indent = 2 if terminal else None
    encoding = stdout.encoding or "utf-8"
    value = _finite(value)
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # between programs JSON is UTF-8 (RFC 8259), whatever the locale says
    faithful = terminal or codecs.lookup(encoding).name == "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        faithful = False
    if not faithful:
        text = json.dumps(value, indent=indent, allow_nan=False)
    with faults_named("standard output"):
        stdout.write(text + "\n")


class _Name(str):
    """A name in a JSON object that may repeat another one: as a key of a dict it is equal to itself alone."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {
            _Name(_finite(key)) if isinstance(key, float) and not math.isfinite(key) else key: _finite(item)
            for key, item in value.items()
        }
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _stdout() -> TextIO:
    if sys.stdout is None:
        raise OSError(errno.EBADF, "is closed", "standard output")
    return sys.stdout


def flush_stdout() -> None:
    """Write out what was put, here, where a failure can still be told, and not when the interpreter exits.

    Raises:
        OSError: as `put_line`; but a stdout that is closed has nothing to write out.
    """
    if sys.stdout is not None:
        with faults_named("standard output"):
            sys.stdout.flush()


def abandon_stdout() -> None:
    """Drop what is left in stdout's buffer, so that the interpreter does not fail to write it at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (AttributeError, OSError, ValueError):
        pass  # no stdout, or not one of the operating system's


def say(message: str) -> None:
    """One line on stderr."""
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}..."
    # stderr may be closed, and a print to None goes to stdout
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # there is no other place to tell it
            print(f"skyinfer: {printable(message)}", file=sys.stderr)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Show what skyinfer warns of by `say`, each time it does."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, RuntimeWarning):
            say(f"warning: {message}")
        else:
            plain(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        plain = warnings.showwarning
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield


class Progress:
    """A bar on a terminal, which is gone when the work is done; invisible elsewhere."""

    _INTERVAL = 0.1  # seconds

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._drawn = 0
        self._last = -self._INTERVAL

    def show(self, name: str, done: int, total: int) -> None:
        """`done` of `total` bytes are written, those of tensor `name` last."""
        self._show(f"of {size(total)}", done, total)

    def show_steps(self, name: str, done: int, total: int) -> None:
        """`done` of `total` steps are taken, and `name` says how it goes."""
        self._show(f"of {total} steps, {name}" if done else name, done, total)

    def show_rows(self, rate: str, done: int, total: int | None) -> None:
        """`done` of `total` rows are answered, of which None says that nobody has counted them."""
        if total is None:
            self._show(f"{done} rows, {rate}", 0, 0, bar=False)
        else:
            self._show(f"of {total} rows, {rate}", done, total)

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._stream is not None

    def _show(self, rest: str, done: int, total: int, *, bar: bool = True) -> None:
        now = time.monotonic()
        if self._stream is None or (now - self._last < self._INTERVAL and (done < total or not bar)):
            return
        self._last = now
        columns = shutil.get_terminal_size().columns
        room = max(10, min(60, columns - len(rest) - 12))
        filled = room * done // max(1, total)
        drawn = f"[{'#' * filled}{'.' * (room - filled)}] {100 * done // max(1, total):3d} % {rest}" if bar else rest
        drawn = drawn[: columns - 1]
        # a shorter line leaves nothing of the one before
        self._draw(drawn.ljust(self._drawn))
        self._drawn = len(drawn)

    def _draw(self, bar: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(f"\r{bar}")
            self._stream.flush()
        except OSError:  # no reason to give up the work
            self._stream = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None and self._drawn:
            self._draw(f"{' ' * self._drawn}\r")
