"""Compiled questions, batches of states and the cache: the same bits by every way of asking."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest

import skyinfer
import skyinfer.compiled as compiled_room
from skyinfer import RequestError
from skyinfer.compiled import prepared_questions
from skyinfer.core import border
from skyinfer.runtime.cpus import available_cpus
from skyinfer.runtime.prepared import PreparedCache
from skyinfer.schema import parse_questions

QUESTIONS: dict[str, Any] = {
    "action": {"type": "choice", "instructions": "What now?", "criteria": {"go": "move on", "stay": None, "ask": ""}},
    "sure": {"type": "noul", "instructions": "Is it safe?", "option_order": [1, 0]},
    "level": {"type": "score", "instructions": "How far?", "criteria": ["near", "middling", "far", "very far"]},
    "turned": {"type": "choice", "instructions": "Which?", "criteria": ["a", "b", "c"], "option_order": [2, 0, 1]},
}
STATES: list[Any] = [
    "vy 0 dx 36",
    "",
    {"a": [1, 2.0, None], "b": "text"},
    ["old turn " * 40, "middle turn " * 40, "newest turn"],
    "a long text that does not fit " * 60,
    17,
    ["one", "two"],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> skyinfer.Model:
    directory = tmp_path_factory.mktemp("compiled")
    return skyinfer.load(
        checkpoints.paint(
            directory, **checkpoints.SIZES["pico"], temperature=[1.5, 0.75, 2.0], temperature_by_options={}
        )
    )


def flat(response: Any) -> np.ndarray:
    """Every probability of a response in a row, as `step` writes them."""
    values: list[float] = []
    for answer in response["answers"].values():
        if answer["type"] == "noul":
            values += [1 - answer["noul"], answer["noul"]]
        else:
            values += answer["probabilities"].values()
    return np.array(values)


def test_a_compiled_call_is_decide(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    for state in STATES:
        assert compiled(state) == model.decide(state, QUESTIONS)
        assert compiled(state, temperature_clamp=False) == model.decide(state, QUESTIONS, temperature_clamp=False)
    assert compiled("x", timing=True)["micros"] > 0


def test_step_writes_decides_probabilities(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    assert compiled.ids == tuple(QUESTIONS)
    assert compiled.offsets.tolist() == [0, 3, 5, 9, 12]
    for state in STATES:
        written = compiled.step(state)
        assert written is compiled.probabilities
        np.testing.assert_allclose(written, flat(model.decide(state, QUESTIONS)), rtol=0, atol=1e-7)


def test_run_tokens_is_step_without_text(model: skyinfer.Model) -> None:
    question = {"action": QUESTIONS["action"]}
    compiled, other = model.compile(question), model.compile(question)
    n_head = len(model.encode("", question)["action"].ids) - 1
    for state in ("vy 0 dx 36", "", "word " * 20):
        ids = model.encode(state, question)["action"].ids
        np.testing.assert_array_equal(compiled.run_tokens(ids[n_head:-1]), other.step(state))
    ids = list(range(5, 305))
    kept_tail = compiled.run_tokens(ids, keep_tail=True).copy()
    assert not np.array_equal(kept_tail, compiled.run_tokens(ids))
    np.testing.assert_array_equal(kept_tail, compiled.run_tokens(ids[-250:], keep_tail=True))
    with pytest.raises(ValueError, match="vocabulary"):
        compiled.run_tokens([1 << 30])
    for outside in (-1, 1 << 31, -(1 << 40)):
        with pytest.raises(ValueError, match=f"token id {outside} is not in the vocabulary"):
            compiled.run_tokens([outside])
    with pytest.raises(TypeError):
        compiled.run_tokens([5.9])  # type: ignore[list-item]


def test_step_with_questions_that_fill_the_sequence(tmp_path: Path) -> None:
    directory = checkpoints.paint(tmp_path, **(checkpoints.SIZES["pico"] | {"max_len": 40, "head_max_len": 39}))
    with pytest.warns(RuntimeWarning):
        model = skyinfer.load(directory)
    for n in (2, 5, 8):
        questions = {
            "q": {"type": "choice", "instructions": "which " * 30, "criteria": [f"option {i}" for i in range(n)]}
        }
        for state in ("", "some state that is cut", ["a", "list " * 20]):
            expected = flat(model.decide(state, questions))
            np.testing.assert_allclose(model.compile(questions).step(state), expected, rtol=0, atol=1e-7)


def test_arrays_are_the_callers(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    expected = compiled.step("vy 0 dx 36").copy()
    compiled.probabilities[:] = -1
    rows = np.full((3, 12), -1, np.float32)
    assert compiled.step("vy 0 dx 36", out=rows[1]).base is rows
    np.testing.assert_array_equal(rows, [[-1] * 12, expected, [-1] * 12])
    ids = model.engine.builder.state("vy 0 dx 36").ids
    for given in (ids, ids.tolist(), tuple(ids), ids.astype(np.int64), iter(ids)):
        assert compiled.run_tokens(given, out=rows[2]) is not rows
        np.testing.assert_array_equal(rows[2], expected)
        rows[2] = -1
    assert (compiled.probabilities == -1).all()
    for wrong in (np.zeros(11, np.float32), np.zeros(13, np.float32), np.zeros(12), np.zeros((12, 1), np.float32), "x"):
        with pytest.raises((ValueError, TypeError)):
            compiled.step("x", out=wrong)  # type: ignore[arg-type]
    strided, frozen = np.zeros(24, np.float32)[::2], np.zeros(12, np.float32)
    frozen.flags.writeable = False
    for wrong in (strided, frozen):
        with pytest.raises((ValueError, BufferError)):
            compiled.step("x", out=wrong)
    with pytest.raises(ValueError, match="dimension"):
        compiled.run_tokens(ids[None])


def test_many_states_into_one_array(model: skyinfer.Model) -> None:
    compiled, own = model.compile(QUESTIONS), model.compile(QUESTIONS)
    expected = np.array([own.step(state).copy() for state in STATES])
    np.testing.assert_array_equal(compiled.step_many(STATES), expected)
    out = np.zeros((len(STATES), 12), np.float32)
    assert compiled.step_many(iter(STATES), out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert compiled.step_many([]).shape == (0, 12)
    with pytest.raises(ValueError, match=r"out: expected contiguous float32 \[7, 12\], got float64 \[7, 12\]"):
        compiled.step_many(STATES, out=np.zeros((7, 12)))
    with pytest.raises(RequestError) as caught:
        compiled.step_many(["fine", None])
    assert caught.value.loc == ("states", 1)


def test_a_plan_refuses_what_it_does_not_hold(model: skyinfer.Model) -> None:
    engine = model.engine
    prepared = engine.prepare(parse_questions(QUESTIONS))
    asks = border.CoreAsks([(prepared.core, 0, 4, np.full(250, 5, np.int32), False)], pass_tokens=2048)
    for n_tokens, n_markers, longest in ((100, 12, 256), (2048, 2, 256), (2048, 12, 100)):
        plan = border.CorePlan(
            engine.core, n_tokens=n_tokens, n_sequences=4, n_markers=n_markers, sequence_tokens=longest
        )
        assert not plan.holds(asks)
        with pytest.raises(ValueError, match="the plan holds at most"):
            plan.run(asks)
    small = border.CorePlan(engine.core, n_tokens=256, n_sequences=1, n_markers=4, sequence_tokens=256)
    assert not small.holds(asks)  # but one sequence after the other goes
    np.testing.assert_array_equal(
        small.run(asks), engine.run([(prepared.core, 0, 4, np.full(250, 5, np.int32), False)])
    )


def test_questions_of_another_model_are_refused(model: skyinfer.Model) -> None:
    other = skyinfer.load()
    ask = other.engine.prepare(parse_questions(QUESTIONS)).core, 0, 4, np.zeros(3, np.int32), False
    with pytest.raises(ValueError, match="another model"):
        model.engine.run([ask])
    for first, n in ((0, 5), (-1, 2), (4, 1), (2, 3), (0, -1)):
        with pytest.raises(ValueError, match="no such questions"):
            other.engine.run([(ask[0], first, n, ask[3], False)])


def test_any_mixture_of_questions_and_states_gives_the_same_bits(model: skyinfer.Model) -> None:
    sets = [model.engine.prepare(parse_questions(dict(list(QUESTIONS.items())[:n]))) for n in (1, 4, 2)]
    asks, expected = [], []
    for i, state in enumerate(STATES * 4):
        prepared = sets[i % 3]
        tokens = prepared.read(state)
        alone = [model.engine.run([prepared.ask(tokens, q, q + 1)]) for q in range(len(prepared.ids))]
        for first in range(0, len(alone), 1 + i % 2):
            last = min(len(alone), first + 1 + i % 2)
            asks.append(prepared.ask(tokens, first, last))
            expected += alone[first:last]
    np.testing.assert_array_equal(model.engine.run(asks), np.concatenate(expected))
    out = np.zeros(sum(map(len, expected)), np.float32)
    assert model.engine.run(asks, out) is out
    np.testing.assert_array_equal(out, np.concatenate(expected))
    with pytest.raises(ValueError, match="out: expected"):
        model.engine.run(asks, out[1:])


def test_sequences_of_more_tokens_than_an_int_counts() -> None:
    core = border.CoreQuestions(None, [([1, 2, 3], [1], 2, 1 << 16)] * 40_000, [[0]] * 40_000, sep_id=2)
    assert core.n_tokens(10**12) == 40_000 << 16  # more than 2^31
    assert core.n_bytes > 40_000 * 3 * 4
    state = np.zeros(1 << 17, np.int32)
    assert border.CoreAsks([(core, 0, 40_000, state, False)], 2048).sizes == (1 << 16, 1, 1, 1 << 16)
    assert border.CoreAsks([(core, 0, 40_000, state[:4], False)], 2048).sizes == (2048, 256, 256, 8)
    assert border.CoreAsks([(core, 39_999, 1, state[:4], False)], 2048).sizes == (8, 1, 1, 8)


def test_more_questions_than_one_pass_holds(model: skyinfer.Model) -> None:
    questions = {
        f"q{i}": question for i in range(20) for question in [QUESTIONS["action"], QUESTIONS["turned"]][i % 2 :]
    }
    compiled = model.compile(questions)
    for state in ("short", "a long text that does not fit " * 60):
        expected = model.decide(state, questions)
        assert expected == {
            "model": model.name,
            "answers": {
                key: answer
                for one in questions
                for key, answer in model.decide(state, {one: questions[one]})["answers"].items()
            },
            "usage": expected["usage"],
        }
        np.testing.assert_allclose(compiled.step(state), flat(expected), rtol=0, atol=1e-7)


def test_two_shapes_of_request_in_turn_share_buffers(model: skyinfer.Model) -> None:
    many = {f"q{i}": QUESTIONS["level"] for i in range(18)}
    long = "a long text that does not fit " * 60
    model.decide("short", many), model.decide(long, {"q": QUESTIONS["sure"]})
    (plan,) = model.engine._idle_plans
    for _ in range(3):
        model.decide("short", many), model.decide(long, {"q": QUESTIONS["sure"]})
    assert model.engine._idle_plans == [plan]
    model.activations(long, many)
    assert model.engine._idle_plans == [plan]
    assert model.activations("x", {}) == {}


def test_what_encode_gives_is_the_callers(model: skyinfer.Model) -> None:
    expected = model.logits("x", QUESTIONS)
    found = model.encode("x", QUESTIONS)["action"]
    found.markers.reverse()
    found.ids.clear()
    for name, row in model.logits("x", QUESTIONS).items():
        np.testing.assert_array_equal(row, expected[name])


def test_questions_that_change_while_they_are_compiled(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = model.engine, copy.deepcopy(QUESTIONS)
    monkeypatch.setattr(engine, "_prepared", PreparedCache(1 << 20, 1 << 20))
    read = compiled_room.marshal.loads

    def changed_meanwhile(key: bytes) -> Any:
        asked["action"]["criteria"].clear()
        return read(key)

    expected = engine.prepare(parse_questions(QUESTIONS))
    monkeypatch.setattr(compiled_room.marshal, "loads", changed_meanwhile)
    first = prepared_questions(engine, asked)
    monkeypatch.undo()
    assert [question.options for question in first.questions] == [question.options for question in expected.questions]


def test_first_steps_at_once_make_one_stepper(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, made, make = model.compile(QUESTIONS), list[Any](), model.engine.stepper

    def slow(*arguments: Any) -> Any:
        time.sleep(0.05)
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(model.engine, "stepper", slow)
    threads = [threading.Thread(target=suppressed(compiled.step), args=("x",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def suppressed(step: Any) -> Any:
    """`step`, which another thread's may forbid."""

    def tried(state: Any) -> None:
        with contextlib.suppress(RuntimeError):
            step(state)

    return tried


def test_many_states_are_one_at_a_time(model: skyinfer.Model) -> None:
    one_by_one = [model.decide(state, QUESTIONS) for state in STATES * 6]
    assert model.decide_many(STATES * 6, QUESTIONS) == one_by_one
    assert model.compile(QUESTIONS).many(iter(STATES * 6)) == one_by_one
    assert model.decide_many([], QUESTIONS) == []
    assert model.decide_many(["a", "b"], {}) == [model.decide("a", {})] * 2


def test_a_faulty_state_among_many_is_named(model: skyinfer.Model) -> None:
    states: Any
    for states in ("ab", b"ab", {"a": 1}):
        with pytest.raises(RequestError, match="must be a list of states") as caught:
            model.decide_many(states, QUESTIONS)
        assert caught.value.loc == ("states",)
    with pytest.raises(RequestError) as caught:
        model.decide_many(["fine", None], QUESTIONS)
    assert caught.value.loc == ("states", 1)
    with pytest.raises(RequestError) as caught:
        model.decide_many(["fine", {"deep": object()}], QUESTIONS)
    assert caught.value.loc[:2] == ("states", 1)


def test_no_questions(model: skyinfer.Model) -> None:
    compiled = model.compile({})
    assert compiled("x")["answers"] == {}
    assert compiled.step("x").shape == (0,)


def test_faulty_questions_are_refused_when_compiled(model: skyinfer.Model) -> None:
    with pytest.raises(RequestError, match="instructions"):
        model.compile({"q": {"type": "noul"}})


# ---- the cache


def spread(model: skyinfer.Model, criteria: Any) -> Any:
    question = {"type": "choice", "instructions": "Which?", "criteria": criteria}
    return model.decide("state", {"q": question})["answers"]["q"]


def test_the_cache_tells_apart_what_only_compares_equal(model: skyinfer.Model) -> None:
    for first, second in [([1, 2], [1.0, 2]), ([1, 2], [True, 2]), ([0.0, 1], [-0.0, 1]), (["1", "2"], [1, 2])]:
        for labels in (first, second):
            answer = spread(model, labels)
            assert [repr(label) for label in answer["probabilities"]] == [repr(label) for label in labels]
    forward, backward = spread(model, {"a": "x", "b": "y"}), spread(model, {"b": "y", "a": "x"})
    assert list(forward["probabilities"]) == ["a", "b"]
    assert list(backward["probabilities"]) == ["b", "a"]


def test_the_cache_sees_a_dict_that_was_changed(model: skyinfer.Model) -> None:
    questions = copy.deepcopy(QUESTIONS)
    before = model.decide("state", questions)
    questions["action"]["criteria"]["go"] = "something else altogether"
    after = model.decide("state", questions)
    assert after["answers"]["action"] != before["answers"]["action"]
    fresh = model.compile(json.loads(json.dumps(questions)))("state")
    assert after == fresh


def noul(text: Any) -> Any:
    return {"q": {"type": "noul", "instructions": text}}


def test_the_cache_is_bounded_and_keeps_only_plain_json(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = model.engine
    one = engine.prepare(parse_questions(noul("0"))).n_bytes
    cache = PreparedCache(most_bytes=4 * one, most_of_one=2 * one)
    monkeypatch.setattr(engine, "_prepared", cache)

    def compiled(questions: Any) -> Any:
        return prepared_questions(engine, questions)

    first = compiled(noul("0"))
    assert compiled(noul("0")) is first
    for i in range(1, 3):
        compiled(noul(str(i)))
    assert compiled(noul("0")) is first  # the last used now, so "1" goes first
    compiled(noul("3"))
    assert compiled(noul("0")) is first
    assert len(cache) == 3
    assert 3 * one < cache.n_bytes <= 4 * one
    for not_kept in (noul("long " * 2000), {"q": {"type": "choice", "instructions": "?", "criteria": {"a": {1, 2}}}}):
        assert compiled(not_kept) is not compiled(not_kept)

    class Text(str):
        __slots__ = ()

    assert compiled(noul(Text("0"))) is not first
    assert len(cache) == 3
    assert model.compile(noul("0"))._prepared is first  # the same object for everyone
    assert model.decide("x", noul("0"))["answers"] == model.compile(noul("0"))("x")["answers"]


def test_what_is_kept_takes_about_the_memory_that_it_says(model: skyinfer.Model) -> None:
    import tracemalloc

    questions = {f"q{i}": QUESTIONS["level"] | {"instructions": f"How far is {i}? " * 20} for i in range(60)}
    parsed = json.dumps(questions)
    model.engine.prepare(parse_questions(json.loads(parsed)))  # words that the tokenizer remembers
    tracemalloc.start()
    prepared = model.engine.prepare(parse_questions(json.loads(parsed)))
    taken = tracemalloc.get_traced_memory()[0] + prepared.core.n_bytes
    tracemalloc.stop()
    assert 0.5 * taken < prepared.n_bytes < 2 * taken


def test_threads_that_make_the_same_questions_share_them(model: skyinfer.Model) -> None:
    cache, made = PreparedCache(1 << 20, 1 << 20), [model.engine.prepare(parse_questions(noul("x"))) for _ in range(2)]
    assert cache.get(b"key") is None
    assert cache.put(b"key", made[0]) is made[0]
    n_bytes = cache.n_bytes
    assert cache.put(b"key", made[1]) is made[0]
    assert cache.get(b"key") is made[0]
    assert (len(cache), cache.n_bytes) == (1, n_bytes)


def test_the_cache_takes_questions_nested_beyond_the_stack(model: skyinfer.Model) -> None:
    deep: Any = "end"
    for _ in range(1500):  # marshal goes to 2000, Python's own recursion to 1000
        deep = [deep]
    with pytest.raises(RequestError, match="q"):
        model.decide("x", {"q": {"type": "noul", "instructions": deep}})
    with pytest.raises(RequestError, match="q"):
        model.decide("x", {"q": {"type": "noul", "instructions": "?", "unknown": deep, "criteria": [deep]}})
    unread = {"q": {"type": "noul", "instructions": "?", "unknown": deep}}
    with pytest.warns(RuntimeWarning, match="'unknown'"):
        answers = model.decide("x", unread)["answers"]
    assert answers == model.decide("x", unread)["answers"]


def test_threads_share_a_model(model: skyinfer.Model) -> None:
    expected = [model.decide(state, QUESTIONS) for state in STATES]
    faults: list[object] = []

    def ask(offset: int) -> None:
        own = model.compile(QUESTIONS)
        for i in range(40):
            number = (i + offset) % len(STATES)
            asked = dict(list(QUESTIONS.items())[: 1 + (i + offset) % 4])
            answers = model.decide(STATES[number], asked)["answers"]
            if answers != {qid: expected[number]["answers"][qid] for qid in asked}:
                faults.append(answers)
            if not np.allclose(own.step(STATES[number]), flat(expected[number]), rtol=0, atol=1e-7):
                faults.append(number)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


# ---- threads of one call


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.paint(tmp_path_factory.mktemp("larger"), **checkpoints.SIZES["nano"], temperature_by_options={})


def test_small_models_take_one_thread_and_larger_ones_all(model: skyinfer.Model, larger: Path) -> None:
    assert model.threads == 1
    assert skyinfer.load(larger).threads == available_cpus()


@pytest.mark.parametrize("threads", [0, -1, 257, 1.5, True, "2"])
def test_a_number_of_threads_that_is_none_is_refused(larger: Path, threads: Any) -> None:
    with pytest.raises(ValueError, match="threads"):
        skyinfer.load(larger, threads=threads)


def test_a_plan_is_one_threads_at_a_time(larger: Path) -> None:
    compiled = skyinfer.load(larger, threads=1).compile({f"q{i}": QUESTIONS["level"] for i in range(12)})
    compiled.step("warm")
    refused: list[Exception] = []

    def step() -> None:
        for _ in range(30):
            if refused:
                return
            try:
                compiled.step("word " * 200)
            except RuntimeError as error:
                refused.append(error)

    threads = [threading.Thread(target=step) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused
    assert "another thread" in str(refused[0])
