"""Where a forward pass runs. A short one runs at once, in the event loop: a thread would cost more than it does. A
longer one runs in the model's thread, which takes a few sequences of everyone that waits into each pass.

A pass gives the same bits whatever else is in it, so nobody's answer depends on who waits beside him; and since every
waiting request gets its next sequence in turn, a huge one delays a small one by a pass, not by all of its own.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from ..model import Model
from ..runtime.engine import Engine, Work
from .refusals import ClientGone, overloaded

# A pass that takes no longer than this runs in the event loop. A hop to a thread and back costs a tenth of a
# millisecond; everyone else waits meanwhile.
INLINE_SECONDS = 0.002
# So many requests at hand are a crowd: its short passes are merged in the thread, too, where they run while the event
# loop reads and answers for others. One client alone never waits for a thread.
CROWD = 4
# How long a merged pass of a small model is, in time, so that what is done around it is not felt; and what that may
# come to in tokens. For larger models the least is enough: a longer pass is no faster, and others wait for its end.
_PASS_SECONDS, _LEAST_PASS, _MOST_PASS = 0.004, 512, 2048
# What one request may put into a pass before others have their turn, in tokens.
_TURN_TOKENS = 256

# What a pass is measured with: long enough that its fixed costs do not count, and of a usual length.
_MEASURED_STATE = "the state of things at some point, written down in a few words and numbers 1 2 3 4"
_MEASURED_QUESTIONS = {
    "a": {"type": "choice", "instructions": "Which of these is to be done?", "criteria": {"x": "the first", "y": None}},
    "b": {"type": "noul", "instructions": "Will it be too late for that in a short while?"},
    "c": {"type": "score", "instructions": "How much room is left?", "criteria": ["none", "a little", "plenty"]},
}  # fmt: skip


class Line:
    """How many requests wait or run, of all models together, and how many may."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting = 0

    def enter(self, seconds: float) -> None:
        """Take a place; `leave` gives it back. `seconds`: how long those in front will take.

        Raises:
            Refusal: 503, there is none.
        """
        if self.waiting >= self.most:
            after = max(1, min(60, math.ceil(seconds)))
            raise overloaded(f"{self.waiting} requests wait already; try again in {after} s", after)
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1


class _Job:
    """One request's sequences: `taken` of them are in a pass or through one, `left` are not through yet."""

    __slots__ = ("abandoned", "done", "left", "rows", "taken", "work")

    def __init__(self, work: list[Work], done: asyncio.Future[list[list[float]]]) -> None:
        self.work, self.done = work, done
        self.rows: list[Any] = [None] * len(work)
        self.taken, self.left = 0, len(work)
        self.abandoned = False


class Decider:
    """Runs the work of one model that is too long for the event loop, which its methods belong to."""

    def __init__(self, model: Model) -> None:
        self._engine: Engine = model._engine
        self._jobs: deque[_Job] = deque()
        self._condition = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.seconds_per_token = _measure(model)
        self.pass_tokens = max(_LEAST_PASS, min(_MOST_PASS, int(_PASS_SECONDS / self.seconds_per_token)))
        self.pending_tokens = 0

    def runs_inline(self, n_tokens: int) -> bool:
        return n_tokens * self.seconds_per_token <= INLINE_SECONDS

    @property
    def pending_seconds(self) -> float:
        """How long what waits here will take."""
        return self.pending_tokens * self.seconds_per_token

    async def rows(
        self, work: list[Work], n_tokens: int, gone: Coroutine[Any, Any, None] | None = None
    ) -> list[list[float]]:
        """The scores of each sequence, from the model's thread. `gone` ends when the client is not there any more, and
        the work with it.

        Raises:
            ClientGone: it is.
        """
        job = _Job(work, asyncio.get_running_loop().create_future())
        leaving = None if gone is None else asyncio.ensure_future(gone)
        self.pending_tokens += n_tokens
        try:
            self._put(job)
            if leaving is None:
                return await job.done
            await asyncio.wait((job.done, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not job.done.done():
                raise ClientGone
            return job.done.result()
        finally:
            job.abandoned = True
            self.pending_tokens -= n_tokens
            if leaving is not None:
                leaving.cancel()

    def close(self) -> None:
        """Let the thread end when nothing waits any more."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _put(self, job: _Job) -> None:
        if not job.work:
            job.done.set_result([])
            return
        with self._condition:
            self._jobs.append(job)
            self._condition.notify()
        if self._thread is None:
            # a daemon, so that a second Ctrl-C need not wait for a pass
            self._thread = threading.Thread(target=self._serve, name="skyinfer-decider", daemon=True)
            self._thread.start()

    # ---- in the thread

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._jobs and not self._closed:
                    self._condition.wait()
                if not self._jobs:
                    return
                batch = self._next_batch()
            if batch:
                self._run(batch)

    def _next_batch(self) -> list[tuple[_Job, int]]:
        """Sequences for one pass: of each job in turn a few, and its next ones when all others had theirs."""
        batch: list[tuple[_Job, int]] = []
        room = self.pass_tokens
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.abandoned:
                continue
            turn = _TURN_TOKENS
            while job.taken < len(job.work) and turn > 0:
                n_tokens = len(job.work[job.taken][0])
                if n_tokens > room and batch:
                    self._jobs.appendleft(job)  # first in the next pass
                    return batch
                batch.append((job, job.taken))
                job.taken += 1
                room -= n_tokens
                turn -= n_tokens
            if job.taken < len(job.work):
                self._jobs.append(job)
        return batch

    def _run(self, batch: list[tuple[_Job, int]]) -> None:
        error: Exception | None = None
        rows: list[Any] = []
        try:
            rows = self._engine.run([job.work[i] for job, i in batch])
        except Exception as caught:  # told to those who asked, so that the thread goes on
            error, rows = caught, [None] * len(batch)
        ended = []
        for (job, i), row in zip(batch, rows, strict=True):
            job.rows[i] = row.tolist() if row is not None else None
            job.left -= 1
            if job.left == 0 or error is not None:
                ended.append(job)
        if ended:
            loop = ended[0].done.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, ended, error)


def _deliver(ended: list[_Job], error: Exception | None) -> None:
    for job in ended:
        if job.done.done():
            continue
        if error is not None:
            job.abandoned = True
            job.done.set_exception(error)
        else:
            job.done.set_result(job.rows)


def _measure(model: Model) -> float:
    """Seconds that a token costs in a usual pass: the best of a few, since a busy machine only ever adds.

    Raises:
        FormatError: the model's scores are not finite.
    """
    compiled = model.compile(_MEASURED_QUESTIONS)  # type: ignore[arg-type]
    compiled(_MEASURED_STATE)
    tokens = compiled.read(_MEASURED_STATE)
    best, begun = math.inf, time.perf_counter()
    for _ in range(20):
        start = time.perf_counter()
        compiled.scores(tokens)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begun > 0.3:
            break
    return best / compiled.n_tokens(tokens)
