"""The threads of a model: how many there are, that they end, what they cost, and that their number changes no bit."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from sequences import ask_of

import skyinfer
from skyinfer.core import border
from skyinfer.runtime import engine
from skyinfer.runtime.cpus import available_cpus

TASKS = Path("/proc/self/task")
QUESTIONS: dict[str, Any] = {
    "action": {"type": "choice", "instructions": "Which?", "criteria": {"go": "further", "stay": "here", "back": ""}},
    "level": {"type": "score", "instructions": "How much?", "criteria": ["none", "some", "much"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
STATES = ["one", "word " * 60, {"speed": 3, "height": -2.5}, ["first turn", "second turn"]]

counts_threads = pytest.mark.skipif(not TASKS.exists(), reason="counts the threads that Linux shows")


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model large enough to share its steps."""
    return checkpoints.paint(tmp_path_factory.mktemp("larger"), **checkpoints.SIZES["nano"], temperature_by_options={})


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are loaded here use as many threads as they would on a machine of eight CPUs."""
    monkeypatch.setattr(engine, "available_cpus", lambda: 8)


def n_threads() -> int:
    return len(list(TASKS.iterdir()))


@pytest.fixture(scope="module")
def others() -> int:
    """Threads that are not a model's: Python's, and those of NumPy's BLAS."""
    time.sleep(4)  # by then those of other tests' models have ended
    return n_threads()


def wait_until(reached: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not reached() and time.monotonic() < end:
        time.sleep(0.05)
    return reached()


def call_at_once(callers: int, call: Callable[[], object]) -> None:
    """`call` in so many threads, which all begin together."""
    faults: list[BaseException] = []
    ready = threading.Barrier(callers)

    def guarded() -> None:
        try:
            ready.wait()
            call()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


# ---- how many there are


@counts_threads
def test_threads_start_with_the_first_pass_that_shares_work(larger: Path, eight_cpus: None, others: int) -> None:
    model = skyinfer.load(larger, threads=5)
    compiled = [model.compile(QUESTIONS) for _ in range(3)]
    assert n_threads() == others
    for one in compiled:
        one.step("x")
        assert n_threads() == others + 4
    del one, compiled, model
    assert wait_until(lambda: n_threads() == others, 2)  # they end with their model


@counts_threads
def test_callers_at_once_share_the_threads_of_one_model(
    larger: Path, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "available_cpus", lambda: 64)
    model = skyinfer.load(larger, threads=32)
    expected = model.decide(STATES[1], QUESTIONS)

    def call() -> None:
        for _ in range(4):
            assert model.decide(STATES[1], QUESTIONS) == expected

    call_at_once(16, call)
    assert wait_until(lambda: n_threads() <= others + 31, 1)  # the callers' own may still be ending


@counts_threads
def test_no_more_threads_than_cpus(larger: Path, others: int) -> None:
    assert wait_until(lambda: n_threads() == others, 20)
    model = skyinfer.load(larger, threads=128)
    model.decide("state", QUESTIONS)
    assert n_threads() <= others + available_cpus() - 1


@counts_threads
def test_idle_threads_end_and_start_again(larger: Path, eight_cpus: None, others: int) -> None:
    model = skyinfer.load(larger, threads=4)
    for _ in range(2):
        model.decide("state", QUESTIONS)
        assert n_threads() == others + 3
        assert wait_until(lambda: n_threads() == others, 20)


# ---- what they cost


def test_a_limit_beyond_what_can_take_part_costs_nothing(larger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of a pass with limits that all come to two threads: medians of runs in turn."""
    monkeypatch.setattr(engine, "available_cpus", lambda: 2)
    models = {limit: skyinfer.load(larger, threads=limit) for limit in (2, 8, 32, 128)}
    taken: dict[int, list[float]] = {limit: [] for limit in models}
    for round_number in range(12):
        for limit, model in models.items():
            before = time.process_time()
            for _ in range(3):
                model.decide(STATES[1], QUESTIONS)
            if round_number >= 2:
                taken[limit].append(time.process_time() - before)
    cost = {limit: statistics.median(times) for limit, times in taken.items()}
    assert max(cost.values()) < 1.5 * min(cost.values()), cost  # it was 4 with every thread woken


def test_idle_threads_sleep(larger: Path, eight_cpus: None) -> None:
    model = skyinfer.load(larger, threads=4)
    model.decide("state", QUESTIONS)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


# ---- bits


@pytest.mark.parametrize("precision", border.PRECISIONS)
def test_any_number_of_threads_gives_the_same_bits(larger: Path, eight_cpus: None, precision: str) -> None:
    models = [skyinfer.load(larger, threads=n, precision=precision) for n in (1, 2, 3, 7)]
    assert [model.threads for model in models] == [1, 2, 3, 7]
    for state in STATES:
        expected = models[0].decide(state, QUESTIONS)
        probabilities = models[0].compile(QUESTIONS).step(state)
        for model in models[1:]:
            assert model.decide(state, QUESTIONS) == expected
            np.testing.assert_array_equal(model.compile(QUESTIONS).step(state), probabilities)
    assert models[3].decide_many(STATES, QUESTIONS) == models[0].decide_many(STATES, QUESTIONS)


def test_calls_at_once_divide_the_threads(larger: Path) -> None:
    engine = skyinfer.load(larger, threads=6).engine
    asks = border.CoreAsks([ask_of(engine.core, [([5, 6, 7], [1], 0)])], 16)
    plans = [engine._plan(16, 1, 1, 16) for _ in range(3)]

    class PassInside(dict):
        """A trace in the middle of whose pass another plan makes its own."""

        def __init__(self, rest: list[Any]) -> None:
            super().__init__()
            self.rest = rest

        def __setitem__(self, name: str, values: np.ndarray) -> None:
            if name == "embd_norm" and self.rest:
                self.rest[0].run(asks, trace=PassInside(self.rest[1:]))

    plans[0].run(asks, trace=PassInside(plans[1:]))
    assert [plan.threads for plan in plans] == [6, 3, 2]
    plans[2].run(asks)
    assert plans[2].threads == 6
    state = np.array([1 << 20], np.int32)
    core = border.CoreQuestions(engine.core, [([5], [0], 0, 9)], [[0]], sep_id=2)
    with pytest.raises(ValueError, match="vocabulary"):
        plans[2].run(border.CoreAsks([(core, 0, 1, state, False)], 16))
    plans[2].run(asks)
    assert plans[2].threads == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_makes_threads_of_its_own(larger: Path, eight_cpus: None) -> None:
    model = skyinfer.load(larger, threads=2)
    expected = model.decide("state", QUESTIONS)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0 if all(model.decide("state", QUESTIONS) == expected for _ in range(5)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert model.decide("state", QUESTIONS) == expected
