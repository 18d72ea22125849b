"""Where a forward pass runs. A short one runs at once in the event loop, since a switch to a thread would take longer
than the pass. A longer one runs in the model's thread, which takes a few sequences of each waiting request into a pass.

A sequence gives the same bits whatever else is in its pass, so no answer depends on other requests. Requests with the
fewest tokens left go first, so a huge request delays a small one by one pass and not by all of its own. Every fourth
pass begins with the request that has waited longest, so that a huge one is not put off forever.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import NamedTuple

import numpy as np

from ..model import Model
from ..runtime.engine import Engine
from ..runtime.prepared import Prepared
from ..schema import parse_questions
from ..text.sequence import StateTokens
from .refusals import ClientDisconnected, overloaded

# A pass that takes no longer than this runs in the event loop, where all other requests wait for it. Switching to a
# thread and back takes about a tenth of a millisecond.
INLINE_SECONDS = 0.002
# From so many active requests on, short passes are merged in the thread, too, where they run while the event loop reads
# and answers other requests. A single client never waits for a thread.
MERGE_FROM = 4
# The length of a merged pass: for small models in seconds, long enough that the overhead around it does not count, and
# the least and most tokens. Larger models take the least: a longer pass is no faster, and other requests wait for it.
_PASS_SECONDS, _LEAST_PASS, _MOST_PASS = 0.004, 512, 2048
# One pass of so many begins with the request that has waited longest, and gives it so many tokens.
_OLDEST_EVERY, _OLDEST_TOKENS = 4, 1024

# The request that is timed at the start: of a usual length, so that fixed costs do not count.
_MEASURED_STATE = "the state of things at some point, written down in a few words and numbers 1 2 3 4"
_MEASURED_QUESTIONS = {
    "a": {"type": "choice", "instructions": "Which of these is to be done?", "criteria": {"x": "the first", "y": None}},
    "b": {"type": "noul", "instructions": "Will it be too late for that in a short while?"},
    "c": {"type": "score", "instructions": "How much room is left?", "criteria": ["none", "a little", "plenty"]},
}  # fmt: skip


class Admission:
    """Limits the number of requests that wait or run, of all models together (admission control)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # large requests stay for long, so a part of the places is kept for others
        self.large_limit = max(1, limit * 3 // 4)
        self.waiting = self.waiting_large = 0

    def admit(self, seconds: float, is_large: bool) -> None:
        """Count one more request; `release` takes it off again. `seconds`: how long those before it will take.

        Raises:
            Refusal: 503, the limit is reached, or the limit of large requests by a large one.
        """
        if self.waiting >= self.limit or (is_large and self.waiting_large >= self.large_limit):
            after = max(1, min(60, math.ceil(seconds)))
            raise overloaded(f"{self.waiting} requests are waiting; try again in {after} s", after)
        self.waiting += 1
        self.waiting_large += is_large

    def release(self, is_large: bool) -> None:
        """The request has been answered or dropped."""
        self.waiting -= 1
        self.waiting_large -= is_large


class _Job:
    """One request's sequences: every question about the first state, then about the next.

    `state` and `question` are those of the next sequence that is not taken, `lengths` the tokens of that state's
    sequences. `left` sequences are not finished; `tokens_left` counts the tokens of those that are not taken.
    """

    __slots__ = (
        "abandoned", "done", "left", "lengths", "prepared", "question", "scores", "state", "states", "tokens_left",
    )  # fmt: skip

    def __init__(
        self, prepared: Prepared, states: list[StateTokens], n_tokens: int, done: asyncio.Future[np.ndarray]
    ) -> None:
        self.prepared, self.states, self.tokens_left, self.done = prepared, states, n_tokens, done
        self.scores = np.zeros((len(states), prepared.n_options), np.float32)
        self.left = len(states) * len(prepared.ids)
        self.state = self.question = 0
        self.lengths: list[int] = []
        self.abandoned = False

    @property
    def is_taken(self) -> bool:
        """Whether all sequences are in a pass or finished."""
        return self.state == len(self.states)


class _Piece(NamedTuple):
    """Questions [first, last) of a job about one of its states, in a pass."""

    job: _Job
    state: int
    first: int
    last: int


class ModelWorker:
    """Runs the forward passes of one model that are too long for the event loop, in a thread of its own.

    Public methods are to be called in the event loop.

    Attributes:
        seconds_per_token: measured when made.
        pass_tokens: of a merged pass, at most (but for a single longer sequence).
        pending_tokens: of the requests that wait or run here.
    """

    def __init__(self, model: Model) -> None:
        self._engine: Engine = model.engine
        self._jobs: list[_Job] = []  # in the order received
        self._n_passes = 0
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
        """How long the pending tokens will take."""
        return self.pending_tokens * self.seconds_per_token

    async def scores(
        self,
        prepared: Prepared,
        states: list[StateTokens],
        n_tokens: int,
        disconnected: asyncio.Future[None] | None = None,
    ) -> np.ndarray:
        """float32 [n_states, n_options]: the scores of every question about each state, from the model's thread.

        Args:
            prepared: the questions, of this worker's model.
            states: the states.
            n_tokens: of all sequences.
            disconnected: done when the client has disconnected; then the rest of the work is dropped.

        Raises:
            ClientDisconnected: it has.
        """
        job = _Job(prepared, states, n_tokens, asyncio.get_running_loop().create_future())
        self.pending_tokens += n_tokens
        try:
            self._put(job)
            if disconnected is None:
                return await job.done
            await asyncio.wait((job.done, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not job.done.done():
                raise ClientDisconnected
            return job.done.result()
        finally:
            job.abandoned = True
            self.pending_tokens -= n_tokens

    def close(self) -> None:
        """Let the thread end when no work waits."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _put(self, job: _Job) -> None:
        if not job.left:
            job.done.set_result(job.scores)
            return
        with self._condition:
            self._jobs.append(job)
            self._condition.notify()
        if self._thread is None:
            # a daemon thread, so that a second Ctrl-C need not wait for a pass
            self._thread = threading.Thread(target=self._serve, name="skyinfer-worker", daemon=True)
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

    def _next_batch(self) -> list[_Piece]:
        """Sequences for one pass: those of the shortest jobs, or first some of the oldest job."""
        self._jobs = [job for job in self._jobs if not job.abandoned]
        batch: list[_Piece] = []
        room = self.pass_tokens
        self._n_passes += 1
        if self._jobs and self._n_passes % _OLDEST_EVERY == 0:
            room -= _take(self._jobs[0], min(room, _OLDEST_TOKENS), batch)
        for job in sorted(self._jobs, key=lambda job: job.tokens_left):
            if room <= 0:
                break
            room -= _take(job, room, batch)
        self._jobs = [job for job in self._jobs if not job.is_taken]
        return batch

    def _run(self, batch: list[_Piece]) -> None:
        error: Exception | None = None
        try:
            logits = self._engine.run([job.prepared.ask(job.states[i], first, last) for job, i, first, last in batch])
        except Exception as caught:  # raised in the requests that are part of this pass; the thread goes on
            error = caught
        ended, at = [], 0
        for job, i, first, last in batch:
            if error is None:
                begin, end = job.prepared.offsets[first], job.prepared.offsets[last]
                job.scores[i, begin:end] = logits[at : at + end - begin]
                at += end - begin
            job.left -= last - first
            if job.left == 0 or error is not None:
                ended.append(job)
        if ended:
            loop = ended[0].done.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, ended, error)


def _take(job: _Job, room: int, batch: list[_Piece]) -> int:
    """Add the job's next sequences to the batch, as many as have `room` tokens; one of any length to an empty batch.

    Returns the number of their tokens.
    """
    taken, is_full = 0, False
    while not job.is_taken and taken < room and not is_full:
        if job.question == 0:
            job.lengths = job.prepared.lengths(job.states[job.state])
        first = last = job.question
        while last < len(job.lengths) and taken < room:
            n_tokens = job.lengths[last]
            if taken + n_tokens > room and (batch or last > first):
                is_full = True
                break
            taken += n_tokens
            last += 1
        if last > first:
            batch.append(_Piece(job, job.state, first, last))
        job.question = last
        if last == len(job.lengths):
            job.state, job.question = job.state + 1, 0
    job.tokens_left -= taken
    return taken


def _deliver(ended: list[_Job], error: Exception | None) -> None:
    for job in ended:
        if job.done.done():
            continue
        if error is not None:
            job.abandoned = True
            job.done.set_exception(error)
        else:
            job.done.set_result(job.scores)


def _measure(model: Model) -> float:
    """Seconds per token in a usual pass: the best of a few, because other load only ever makes it longer.

    Raises:
        FormatError: the model's scores are not finite.
    """
    prepared = model.engine.prepare(parse_questions(_MEASURED_QUESTIONS))
    tokens = prepared.read(_MEASURED_STATE)
    prepared.answers(tokens, model.engine.run([prepared.ask(tokens)]))
    best, begun = math.inf, time.perf_counter()
    for _ in range(20):
        start = time.perf_counter()
        model.engine.run([prepared.ask(tokens)])
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begun > 0.3:
            break
    return best / prepared.n_tokens(tokens)
