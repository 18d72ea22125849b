"""How requests share a model: what waits is merged, a huge request lets others pass, and bits stay the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from serving import DRONE, PAINTED

import skyinfer
from skyinfer.runtime.prepared import Prepared
from skyinfer.schema import parse_questions
from skyinfer.serve import scheduling
from skyinfer.serve.refusals import ClientDisconnected, Refusal
from skyinfer.serve.scheduling import Admission, ModelWorker
from skyinfer.text.sequence import StateTokens


@pytest.fixture(scope="module")
def model() -> skyinfer.Model:
    return skyinfer.load(PAINTED)


class Watched:
    """A worker whose passes are noted, and held until `go`."""

    def __init__(self, model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch, fail: bool = False) -> None:
        self.passes: list[list[Any]] = []
        self.go = threading.Event()
        self.worker = ModelWorker(model)
        run = model.engine.run

        def noted(asks: list[Any]) -> Any:
            assert self.go.wait(20)
            self.passes.append(asks)
            if fail:
                raise RuntimeError("broken")
            return run(asks)

        monkeypatch.setattr(self.worker, "_engine", type("Engine", (), {"run": staticmethod(noted)}))

    def pass_of(self, work: Work) -> int:
        """The number of the pass that the first sequence of a request was in, from 1 on."""
        prepared, (tokens, *_) = work
        return next(
            number
            for number, asks in enumerate(self.passes, 1)
            if any(core is prepared.core and ids is tokens.ids for core, _, _, ids, _ in asks)
        )


Work = tuple[Prepared, list[StateTokens]]


def works(model: skyinfer.Model, questions: Any, n: int, words: int = 3) -> list[Work]:
    prepared = model.engine.prepare(parse_questions(questions))
    return [(prepared, [prepared.read(f"state {i} " + "word " * words)]) for i in range(n)]


def alone(model: skyinfer.Model, work: Work) -> Any:
    """float32 [n_states, n_options], each question by itself."""
    prepared, states = work
    asks = [prepared.ask(tokens, i, i + 1) for tokens in states for i in range(len(prepared.ids))]
    return [[score for ask in asks for score in model.engine.run([ask]).tolist()]]


def never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def ran(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(make(), 20))


def size(work: Work) -> int:
    prepared, states = work
    return sum(prepared.n_tokens(tokens) for tokens in states)


def n_sequences(batch: list[Any]) -> int:
    return sum(n for _, _, n, _, _ in batch)


def test_what_waits_is_merged_and_bits_stay(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(model, monkeypatch)
    requests = works(model, DRONE["questions"], 20)
    expected = [alone(model, work) for work in requests]

    async def ask() -> list[Any]:
        waiting = [asyncio.ensure_future(watched.worker.scores(*work, size(work), never())) for work in requests]
        await asyncio.sleep(0.05)
        assert watched.worker.pending_tokens == sum(map(size, requests))
        watched.go.set()
        return list(await asyncio.gather(*waiting))

    together = ran(ask)
    assert [scores.tolist() for scores in together] == expected
    assert sum(map(n_sequences, watched.passes)) == 60
    assert len(watched.passes) < 20  # the first may have been alone
    for batch in watched.passes:
        lengths = [sum(core.lengths(len(ids))[first : first + n]) for core, first, n, ids, _ in batch]
        assert sum(lengths) <= watched.worker.pass_tokens
    assert watched.worker.pending_tokens == 0
    watched.worker.close()


def test_a_huge_request_lets_others_pass(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(model, monkeypatch)
    monkeypatch.setattr(watched.worker, "pass_tokens", 512)
    questions = {f"q{i}": DRONE["questions"]["danger"] for i in range(100)}
    (huge,) = works(model, questions, 1, words=100)
    (small,) = works(model, DRONE["questions"], 1)

    async def ask() -> int:
        first = asyncio.ensure_future(watched.worker.scores(*huge, size(huge), never()))
        await asyncio.sleep(0.05)  # it is in a pass by now, and more of it waits
        second = asyncio.ensure_future(watched.worker.scores(*small, size(small), never()))
        await asyncio.sleep(0.05)
        watched.go.set()
        await second
        await first
        return watched.pass_of(small)

    assert ran(ask) <= 5
    assert len(watched.passes) > 20
    watched.worker.close()


def test_the_shortest_goes_first_and_the_oldest_gets_a_share(
    model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside fifty long requests a short one is in the next pass; while short ones keep coming, a long one ends."""
    watched = Watched(model, monkeypatch)
    monkeypatch.setattr(watched.worker, "pass_tokens", 512)
    long = works(model, {f"q{i}": DRONE["questions"]["danger"] for i in range(20)}, 50, words=100)
    short = works(model, DRONE["questions"], 300)
    ended: list[str] = []

    async def ask(name: str, work: Work) -> None:
        await watched.worker.scores(*work, size(work), never())
        ended.append(name)

    async def all_of_them() -> None:
        tasks = [asyncio.ensure_future(ask(f"long {i}", work)) for i, work in enumerate(long)]
        await asyncio.sleep(0.05)
        tasks.append(asyncio.ensure_future(ask("short", short[0])))
        await asyncio.sleep(0.05)
        watched.go.set()
        await tasks[-1]
        assert watched.pass_of(short[0]) <= 4
        for work in short[1:]:  # as many as fill three passes in four
            if "long 0" in ended:
                break
            tasks.append(asyncio.ensure_future(ask("more", work)))
            await asyncio.sleep(0.001)
        await asyncio.wait(tasks[:1], timeout=10)
        assert "long 0" in ended
        assert len(ended) < len(tasks)
        await asyncio.gather(*tasks)

    ran(all_of_them)
    assert len(ended) >= 52
    watched.worker.close()


def test_work_of_a_disconnected_client_is_dropped(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(model, monkeypatch)
    requests = works(model, DRONE["questions"], 6)

    async def ask() -> Any:
        left = never()
        leaving = [asyncio.ensure_future(watched.worker.scores(*work, size(work), left)) for work in requests[:5]]
        staying = asyncio.ensure_future(watched.worker.scores(*requests[5], size(requests[5])))
        await asyncio.sleep(0.05)
        left.set_result(None)
        ends = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(end, ClientDisconnected) for end in ends)
        assert watched.worker.pending_tokens == size(requests[5])
        watched.go.set()
        return await staying

    assert ran(ask).tolist() == alone(model, requests[5])
    assert sum(map(n_sequences, watched.passes)) < 18
    watched.worker.close()


def test_a_failure_is_raised_and_the_thread_goes_on(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(model, monkeypatch, fail=True)
    watched.go.set()
    (work,) = works(model, DRONE["questions"], 1)

    async def ask() -> None:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="broken"):
                await watched.worker.scores(*work, size(work), never())
        assert (await watched.worker.scores(work[0], [], 0, never())).shape == (0, work[0].n_options)

    ran(ask)
    assert watched.worker._thread is not None
    assert watched.worker._thread.is_alive()
    watched.worker.close()
    watched.worker._thread.join(20)
    assert not watched.worker._thread.is_alive()


def test_short_work_runs_inline(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ModelWorker(model)
    assert 0 < worker.seconds_per_token < 1e-3
    monkeypatch.setattr(worker, "seconds_per_token", 1e-5)
    assert worker.runs_inline(int(scheduling.INLINE_SECONDS / 1e-5))
    assert not worker.runs_inline(int(scheduling.INLINE_SECONDS / 1e-5) + 1)


def test_waiting_requests_are_limited() -> None:
    admission = Admission(2)
    admission.admit(0.0, False)
    admission.admit(0.0, False)
    for seconds, after in [(0.0, b"1"), (2.4, b"3"), (1e9, b"60")]:
        with pytest.raises(Refusal) as caught:
            admission.admit(seconds, False)
        assert caught.value.status == 503
        assert dict(caught.value.headers)[b"retry-after"] == after
    admission.release(False)
    admission.admit(0.0, False)


def test_large_requests_leave_places_for_others() -> None:
    admission = Admission(8)
    for _ in range(6):
        admission.admit(0.0, True)
    with pytest.raises(Refusal):
        admission.admit(0.0, True)
    admission.admit(0.0, False)
    admission.admit(0.0, False)
    with pytest.raises(Refusal):
        admission.admit(0.0, False)
    admission.release(True)
    admission.admit(0.0, True)
