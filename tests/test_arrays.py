"""Answers about many states as arrays: those of single calls, from any number of threads, with faults by number."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import checkpoints
import numpy as np
import pytest
from test_compiled import QUESTIONS, STATES

import skyinfer
from skyinfer import RequestError
from skyinfer.runtime.arrays import in_order

MANY: list[Any] = [*STATES, *({"n": i, "text": "ümläut " * (i % 40)} for i in range(150)), *map(str, range(100))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> skyinfer.Model:
    directory = tmp_path_factory.mktemp("arrays")
    return skyinfer.load(
        checkpoints.paint(
            directory, **checkpoints.SIZES["pico"], temperature=[1.5, 0.75, 2.0], temperature_by_options={}
        )
    )


def expected_of(model: skyinfer.Model, states: list[Any]) -> tuple[list[list[Any]], ...]:
    """Labels, values, confidence and truncation of `decide`'s answers."""
    labels, values, confidence, truncated = [], [], [], []
    for state in states:
        answers: Any = list(model.decide(state, QUESTIONS)["answers"].values())
        labels.append([_label(answer) for answer in answers])
        values.append(
            [
                answer["noul"] if answer["type"] == "noul"
                else answer["score"] if answer["type"] == "score"
                else answer["probabilities"][answer["choice"]]
                for answer in answers
            ]
        )  # fmt: skip
        confidence.append([answer.get("confidence", abs(2 * answer.get("noul", 0) - 1)) for answer in answers])
        truncated.append(["x_truncated" in answer for answer in answers])
    return labels, values, confidence, truncated


def _label(answer: Any) -> int:
    if answer["type"] == "noul":
        return int(answer["noul"] > 0.5)
    p = list(answer["probabilities"].values())
    return list(answer["probabilities"]).index(answer["choice"]) if answer["type"] == "choice" else p.index(max(p))


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_arrays_are_what_single_calls_answer(model: skyinfer.Model, threads: int | None) -> None:
    compiled, own = model.compile(QUESTIONS), model.compile(QUESTIONS)
    arrays = compiled.arrays(MANY, threads=threads)
    np.testing.assert_array_equal(arrays.probabilities, [own.step(state).copy() for state in MANY])
    labels, values, confidence, truncated = expected_of(model, MANY)
    np.testing.assert_array_equal(arrays.labels, labels)
    np.testing.assert_allclose(arrays.values, values, rtol=1e-6)
    np.testing.assert_allclose(arrays.confidence, confidence, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(arrays.truncated, truncated)
    assert arrays.truncated.any()
    assert not arrays.truncated.all()
    assert not arrays.errors
    assert len(arrays) == len(MANY)
    clamped = compiled.arrays(STATES, temperature_clamp=False).probabilities
    np.testing.assert_allclose(
        clamped[0, :3],
        list(compiled(STATES[0], temperature_clamp=False)["answers"]["action"]["probabilities"].values()),  # type: ignore[typeddict-item]
        rtol=1e-6,
    )


@pytest.mark.parametrize(("size", "threads"), [(1, 1), (7, 2), (100, 3), (1000, None), (10**30, 2)])
def test_batches_are_arrays(model: skyinfer.Model, size: int, threads: int | None) -> None:
    compiled = model.compile(QUESTIONS)
    whole, found = compiled.arrays(MANY), list(compiled.batches(iter(MANY), size, threads=threads))
    assert [len(batch) for batch in found] == [len(MANY[i : i + size]) for i in range(0, len(MANY), size)]
    for name in ("probabilities", "labels", "values", "confidence", "truncated"):
        np.testing.assert_array_equal(np.concatenate([getattr(batch, name) for batch in found]), getattr(whole, name))


def test_memory_of_batches_is_bounded(model: skyinfer.Model) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for number in itertools.count():
            taken = number + 1
            yield str(number)

    caller = threading.get_ident()
    states = (state for state in endless() if threading.get_ident() == caller)  # another thread would hang
    batches = model.compile({"sure": QUESTIONS["sure"]}).batches(states, 10, threads=2)
    for number, batch in enumerate(itertools.islice(batches, 20), 1):
        assert len(batch) == 10
        assert taken <= 10 * (number + 4)
    batches.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_faulty_state_is_named_by_its_number(model: skyinfer.Model, threads: int) -> None:
    compiled = model.compile(QUESTIONS)
    states: list[Any] = [str(i) for i in range(300)]
    states[201], states[77], states[78] = None, {"a": {1, 2}}, "\ud800"
    for ask in (
        lambda: compiled.arrays(states, threads=threads),
        lambda: list(compiled.batches(states, 50, threads=threads)),
        lambda: compiled.many(states),
    ):
        with pytest.raises(RequestError) as caught:
            ask()
        assert caught.value.loc[:2] == ("states", 77)
        assert "sorted" in caught.value.message
    kept = compiled.arrays(states, on_error="keep", threads=threads)
    assert list(kept.errors) == [77, 78, 201]
    assert "null" in kept.errors[201].message
    assert kept.errors[78].loc == ("states", 78)
    sound = [i for i in range(300) if i not in kept.errors]
    np.testing.assert_array_equal(kept.probabilities[sound], compiled.arrays([states[i] for i in sound]).probabilities)
    for number in kept.errors:
        assert np.isnan(kept.probabilities[number]).all()
        assert np.isnan(kept.values[number]).all()
        assert np.isnan(kept.confidence[number]).all()
        assert (kept.labels[number] == -1).all()
        assert not kept.truncated[number].any()
    batches = list(compiled.batches(states, 50, on_error="keep", threads=threads))
    assert [list(batch.errors) for batch in batches] == [[], [27, 28], [], [], [1], []]
    assert batches[4].errors[1].loc == ("states", 201)
    all_faulty = compiled.arrays([None, None], on_error="keep")
    assert np.isnan(all_faulty.probabilities).all()
    assert len(all_faulty.errors) == 2


def test_what_arrays_take(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    for wrong in (np.zeros((7, 12)), np.zeros((6, 12), np.float32), np.zeros((12, 7), np.float32).T):
        with pytest.raises(ValueError, match=r"out: expected contiguous float32 \[7, 12\]"):
            compiled.arrays(STATES, out=wrong)
    with pytest.raises(ValueError, match="on_error"):
        compiled.arrays(STATES, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        compiled.batches(STATES, 0)
    for one in ("text", {"a": 1}):
        with pytest.raises(RequestError, match="list of states"):
            compiled.arrays(one)
        with pytest.raises(RequestError, match="list of states"):
            compiled.batches(one)
    read_only = np.zeros((7, 12), np.float32)
    read_only.flags.writeable = False
    for wrong, message in ((read_only, "read-only"), (np.zeros((14, 12), np.float32)[::2], "not contiguous")):
        with pytest.raises(ValueError, match=rf"out: expected contiguous float32 \[7, 12\], got one that is {message}"):
            compiled.arrays(STATES, out=wrong)
    for other in ([[0.0]], 5, "text"):
        with pytest.raises(TypeError, match=r"out: expected contiguous float32 \[7, 12\], got (list|int|str)"):
            compiled.arrays(STATES, out=other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error"):
        compiled.batches(STATES, 2, on_error="ignore")  # type: ignore[arg-type]
    for size in (1.5, "3", None, True, 0, -1):
        with pytest.raises(ValueError, match="size: expected a whole number, 1 or more, got"):
            compiled.batches(STATES, size)  # type: ignore[arg-type]
    assert [len(batch) for batch in compiled.batches(STATES, np.int64(5))] == [5, 2]  # type: ignore[arg-type]
    for threads in (0, -1, 1.5, "2", 1000):
        with pytest.raises(ValueError, match="threads: expected 1 to 256, got"):
            compiled.arrays(STATES, threads=threads)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="threads: expected 1 to 256, got"):
            compiled.batches(STATES, threads=threads)  # type: ignore[arg-type]
    for nothing, name in ((5, "a number"), (None, "null"), (1.5, "a number"), (True, "a boolean")):
        for ask in (compiled.arrays, compiled.batches, compiled.many, compiled.step_many,
                    lambda states: model.decide_many(states, QUESTIONS)):  # fmt: skip
            with pytest.raises(RequestError, match=f"states: must be a list of states, not {name}"):
                ask(nothing)
    assert compiled.arrays([]).labels.shape == (0, 4)
    assert list(compiled.batches([])) == []
    unasked = model.compile({}).arrays(["a", "b"])
    assert unasked.probabilities.shape == unasked.labels.shape == (2, 0)
    with pytest.raises(RequestError, match=r"states\.1"):
        model.compile({}).arrays(["a", None])


def test_faulty_weights_are_told(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, run = model.compile(QUESTIONS), model.engine.run

    def faulty(asks: Any) -> np.ndarray:
        scores = run(asks)
        scores[-1] = np.nan
        return scores

    monkeypatch.setattr(model.engine, "run", faulty)
    for threads in (1, 2):
        with pytest.raises(skyinfer.FormatError, match="not finite"):
            compiled.arrays(MANY, threads=threads)


def test_work_is_given_in_order_and_stops() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 30:
            raise KeyError(item)
        return item

    for threads in (1, 2, 4):
        begun.clear()
        found = []
        with pytest.raises(KeyError):
            found.extend(in_order(work, itertools.count(), threads))
        assert found == list(range(30))
        assert max(begun) <= 30 + threads + 2
    assert list(in_order(work, [], 4)) == []
    assert list(in_order(work, [5], 4)) == [5]
