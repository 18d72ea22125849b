"""States that come again: computed once, with the bits of `step`, in bounded memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from test_compiled import QUESTIONS

import skyinfer
from skyinfer.core import border
from skyinfer.runtime import repeats
from skyinfer.runtime.arrays import columns_of
from skyinfer.runtime.repeats import Repeats, key_of
from skyinfer.text.sequence import StateTokens


@pytest.fixture(scope="module")
def model() -> skyinfer.Model:
    return skyinfer.load()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many states each run of the core is given."""
    found: list[int] = []

    class Asks(border.CoreAsks):
        def __init__(self, asks: list[Any], _: int) -> None:
            found.append(len(asks))

    monkeypatch.setattr(border, "CoreAsks", Asks)
    return found


def states(n: int, different: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [f"vy {i} dx {i * i % 41}" for i in rng.integers(different, size=n).tolist()]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("different", [1, 7, 100, 10_000])
def test_rows_have_the_bits_of_step(model: skyinfer.Model, threads: int, different: int) -> None:
    given = states(500, different)
    compiled = model.compile(QUESTIONS)
    expected = [compiled.step(state).copy() for state in given]
    alone = [compiled.arrays([state]) for state in given]
    whole = compiled.arrays(given, threads=threads)
    assert np.array_equal(whole.probabilities, np.stack(expected))
    for arrays in (whole, *_joined(compiled.batches(iter(given), 64, threads=threads))):
        for found, one in zip(columns_of(arrays), zip(*map(columns_of, alone), strict=True), strict=True):
            assert np.array_equal(found, np.concatenate(one))


def _joined(batches: Any) -> list[Any]:
    parts = list(batches)
    columns = [np.concatenate(some) for some in zip(*map(columns_of, parts), strict=True)]
    return [type(parts[0])(*columns, {})]


def test_a_state_is_computed_once(model: skyinfer.Model, computed: list[int]) -> None:
    compiled = model.compile(QUESTIONS)
    given = states(2000, 50)
    compiled.arrays(given, threads=1)
    assert sum(computed) == len(set(given))
    computed.clear()
    list(compiled.batches(iter(given), 100, threads=1))
    assert sum(computed) == len(set(given))
    computed.clear()
    faulty: list[Any] = [None, *given, None, *given]
    found = compiled.arrays(faulty, threads=1, on_error="keep")
    assert sum(computed) == len(set(given))
    assert sorted(found.errors) == [0, 2001]
    assert np.isnan(found.probabilities[[0, 2001]]).all()
    assert np.array_equal(found.probabilities[1:2001], found.probabilities[2002:])


def test_states_whose_other_end_is_kept_are_others(model: skyinfer.Model) -> None:
    """A list that does not fit keeps its end, the text that it is rendered as its beginning."""
    turns = [f"turn {i}" for i in range(400)]
    text = json.dumps(turns)
    compiled = model.compile(QUESTIONS)
    found = compiled.arrays([turns, text, turns, text], threads=1)
    for row, state in zip(found.probabilities, [turns, text, turns, text], strict=True):
        assert np.array_equal(row, compiled.step(state))
    assert not np.array_equal(found.probabilities[0], found.probabilities[1])


def test_keys_tell_all_tokens_apart() -> None:
    for n in (0, 1, 32, 33, 5000):
        ids = np.arange(n, dtype=np.int32)
        keys = {key_of(StateTokens(ids, False)), key_of(StateTokens(ids, True)), key_of(StateTokens(ids + 1, False)),
                key_of(StateTokens(np.append(ids, np.int32(0)), False))}  # fmt: skip
        assert len(keys) == (3 if n == 0 else 4)
        assert max(map(len, keys)) <= 129


def test_memory_is_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MOST_BYTES", 100 * (256 + 8))
    kept, out = Repeats([np.empty((0, 2), np.float32)]), np.zeros((1, 2), np.float32)
    for i in range(1000):
        key = str(i).encode()
        assert kept.take([key], [0], [out]) == [0]
        kept.put([key], [np.full((1, 2), i, np.float32)])
        assert len(kept._slots) == len(kept._keys) == min(i + 1, 100)
    assert kept.take([b"899"], [0], [out]) == [0]
    for i in range(900, 1000):
        assert kept.take([str(i).encode()], [0], [out]) == []
        assert out[0].tolist() == [i, i]
    many = [str(i).encode() for i in range(250)]  # more at once than there is room for
    kept.put(many, [np.repeat(np.arange(250, dtype=np.float32)[:, None], 2, 1)])
    wide = np.zeros((250, 2), np.float32)
    missing = kept.take(many, list(range(250)), [wide])
    assert len(missing) == 150
    assert all(wide[i].tolist() == [i, i] for i in range(250) if i not in missing)


def test_nothing_is_kept_where_nothing_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_TRIED", 200)
    kept, out = Repeats([np.empty((0, 1), np.float32)]), np.zeros((1, 1), np.float32)
    for i in range(300):
        key = str(i).encode()
        assert kept.take([key], [0], [out]) == [0]
        kept.put([key], [out])
    assert kept._kept == kept._keys == []
