"""Threads for what takes too long for the event loop before a forward pass: decompressing, parsing, tokenizing.

Short jobs pass long ones. Each thread takes jobs up to a size of its own only, so a job never waits for a running one
that is more than eight times as long (or longer than the smallest such size); among those that wait, the shortest is
next. Every fourth time it is the one that has waited longest, so that a long job is not put off forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from .refusals import ClientDisconnected

_T = TypeVar("_T")

# Bytes of a body that are parsed in a second, about: what sizes of jobs count in.
PARSED_PER_SECOND = 1_000_000
# Largest job of the first thread, and how much larger those of each further thread may be.
_FIRST_SIZE, _STEP = 1 << 13, 8
_OLDEST_EVERY = 4


class _Job:
    """`call` is to be run for `done`. `size` tells how long it takes, in bytes of a body."""

    __slots__ = ("abandoned", "call", "done", "size")

    def __init__(self, call: Callable[[], Any], size: int, done: asyncio.Future[Any]) -> None:
        self.call, self.size, self.done = call, size, done
        self.abandoned = False

    def run(self) -> None:
        loop, result, error = self.done.get_loop(), None, None
        try:
            result = self.call()
        except Exception as caught:  # raised where the result is awaited; the thread goes on
            error = caught
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(_deliver, self.done, result, error)


def _deliver(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


class _Worker:
    """A thread that runs jobs up to a size, None for any."""

    def __init__(self, pool: ParsingPool, most: int | None) -> None:
        self._pool, self.most = pool, most
        self.inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self.is_idle = True
        self.n_taken = 0
        self._thread: threading.Thread | None = None

    def takes(self, job: _Job) -> bool:
        return self.most is None or job.size <= self.most

    def give(self, job: _Job) -> None:
        self.is_idle = False
        self.inbox.put(job)
        if self._thread is None:
            # a daemon thread, so that a second Ctrl-C need not wait for a long text
            self._thread = threading.Thread(target=self._run, name="skyinfer-parsing", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            job = self.inbox.get()
            if job is None:
                return
            while job is not None:
                job.run()
                job = self._pool.next_job(self)


class ParsingPool:
    """Runs jobs in threads, by size. `run` and `close` belong to the event loop."""

    def __init__(self, most: int, n_cpus: int) -> None:
        """`most`: the size from which on jobs are alike; there are threads up to it. They start when needed."""
        self._lock = threading.Lock()
        self._waiting: list[_Job] = []  # in the order received
        sizes: list[int | None] = [_FIRST_SIZE]
        while sizes[-1] is not None:
            size = sizes[-1] * _STEP
            sizes.append(size if size < most else None)
        copies = max(1, n_cpus // 4)
        self._workers = [_Worker(self, size) for size in sizes for _ in range(copies)]

    @property
    def n_waiting(self) -> int:
        """Jobs that no thread has begun."""
        return len(self._waiting)

    async def run(self, size: int, call: Callable[[], _T], disconnected: asyncio.Future[None] | None = None) -> _T:
        """What `call` gives, from a thread.

        Args:
            size: how long it takes, in bytes of a body.
            call: raises what this raises.
            disconnected: done when the client has disconnected; then a job that has not begun is dropped.

        Raises:
            ClientDisconnected: it has.
        """
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        job = _Job(call, size, done)
        try:
            self._put(job)
            if disconnected is None:
                return await done
            await asyncio.wait((done, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise ClientDisconnected
            return done.result()
        finally:
            if not done.done():
                job.abandoned = True

    def close(self) -> None:
        """Let the threads end when their jobs are done."""
        for worker in self._workers:
            worker.inbox.put(None)

    def _put(self, job: _Job) -> None:
        with self._lock:
            for worker in self._workers:  # by size, so large jobs find their threads free
                if worker.is_idle and worker.takes(job):
                    worker.give(job)
                    return
            self._waiting.append(job)

    # ---- in a worker's thread

    def next_job(self, worker: _Worker) -> _Job | None:
        """The job that this worker is to run next; None makes it idle."""
        with self._lock:
            self._waiting = [job for job in self._waiting if not job.abandoned]
            mine = [job for job in self._waiting if worker.takes(job)]
            if not mine:
                worker.is_idle = True
                return None
            worker.n_taken += 1
            job = mine[0] if worker.n_taken % _OLDEST_EVERY == 0 else min(mine, key=lambda job: job.size)
            self._waiting.remove(job)
            return job
