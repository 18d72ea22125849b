"""What a training shows of itself while it lasts: a bar on a terminal, else a line every minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ..terminal import Progress, say

ProgressCall = Callable[[str, int, int], None]

# Seconds between two lines, where there is no terminal.
_PAUSE = 60.0


@contextmanager
def shown(progress: ProgressCall | bool | None) -> Iterator[ProgressCall]:
    """What to call with what is being done, steps done and steps in all: the caller's own function, or one that shows
    it on stderr (True), or one that does nothing (False or None)."""
    if callable(progress):
        yield progress
    elif progress and sys.stderr is not None:
        with Progress(sys.stderr) as bar:
            yield _Display(sys.stderr, bar)
    else:
        yield lambda *_: None


class _Display:
    def __init__(self, stream: TextIO, bar: Progress) -> None:
        self._bar, self._is_terminal = bar, stream.isatty()
        self._last = time.monotonic()
        # when the first step was done that was seen, and which
        self._first: tuple[float, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None and done:
            self._first = now, done
        left = ""
        if self._first is not None and self._first[1] < done < total:
            began, first = self._first
            left = f", {duration((now - began) / (done - first) * (total - done))} left"
        if self._is_terminal:
            self._bar.show_steps(f"{what}{left}", done, total)
        elif now - self._last >= _PAUSE:
            self._last = now
            say(f"step {done} of {total}, {what}{left}" if done else what)


def duration(seconds: float) -> str:
    """In the units that one would say: "40 s", "3 min", "2 h 10 min"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
