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
from skyinfer.compiled import QuestionCache
from skyinfer.core import border
from skyinfer.runtime.cpus import available_cpus

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


def test_a_plan_refuses_heads_that_it_does_not_hold(model: skyinfer.Model) -> None:
    engine, questions = model._engine, model.compile(QUESTIONS)
    plan = border.CorePlan(engine.core, n_tokens=100, n_sequences=4, n_markers=12, sequence_tokens=256)
    with pytest.raises(ValueError, match="larger than the plan"):
        plan.run_prefixes(questions._core_prefixes, 0, 4, [5] * 250, False)


def test_heads_of_more_tokens_than_an_int_counts() -> None:
    prefixes = border.CorePrefixes([([1, 2, 3], [1], 2, 1 << 16)] * 40_000, sep_id=2)
    assert prefixes.n_tokens(10**12) == 40_000 << 16  # more than 2^31
    assert prefixes.batch(0, 10**12, 2048) == (1, 1 << 16, 1)
    assert prefixes.batch(39_000, 4, 2048) == (39_256, 2048, 256)
    assert prefixes.batch(39_999, 4, 2048) == (40_000, 8, 1)


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
    (plan,) = model._engine._idle_plans
    for _ in range(3):
        model.decide("short", many), model.decide(long, {"q": QUESTIONS["sure"]})
    assert model._engine._idle_plans == [plan]
    model.activations(long, many)
    assert model._engine._idle_plans == [plan]
    assert model.activations("x", {}) == {}


def test_what_encode_gives_is_the_callers(model: skyinfer.Model) -> None:
    expected = model.logits("x", QUESTIONS)
    found = model.encode("x", QUESTIONS)["action"]
    found.markers.reverse()
    found.ids.clear()
    for name, row in model.logits("x", QUESTIONS).items():
        np.testing.assert_array_equal(row, expected[name])


def test_questions_that_change_while_they_are_compiled(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, asked = QuestionCache(model._engine, 4, 1 << 16), copy.deepcopy(QUESTIONS)
    read = compiled_room.marshal.loads

    def changed_meanwhile(key: bytes) -> Any:
        asked["action"]["criteria"].clear()
        return read(key)

    monkeypatch.setattr(compiled_room.marshal, "loads", changed_meanwhile)
    assert cache.compiled(asked)("x") == model.compile(QUESTIONS)("x")
    assert cache.compiled(QUESTIONS)("x") == model.compile(QUESTIONS)("x")


def test_first_steps_at_once_make_one_stepper(model: skyinfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, made, make = model.compile(QUESTIONS), list[Any](), model._engine.stepper

    def slow(*arguments: Any) -> Any:
        time.sleep(0.05)
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(model._engine, "stepper", slow)
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


def test_the_cache_is_bounded_and_keeps_only_plain_json(model: skyinfer.Model) -> None:
    cache = QuestionCache(model._engine, entries=3, key_bytes=400)

    def noul(text: Any) -> Any:
        return {"q": {"type": "noul", "instructions": text}}

    first = cache.compiled(noul("0"))
    assert cache.compiled(noul("0")) is first
    for i in range(1, 3):
        cache.compiled(noul(str(i)))
    assert cache.compiled(noul("0")) is first  # the last used now, so "1" goes first
    cache.compiled(noul("3"))
    assert cache.compiled(noul("0")) is first
    assert len(cache._kept) == 3
    for not_kept in (noul("long " * 200), {"q": {"type": "choice", "instructions": "?", "criteria": {"a": {1, 2}}}}):
        assert cache.compiled(not_kept) is not cache.compiled(not_kept)

    class Text(str):
        __slots__ = ()

    assert cache.compiled(noul(Text("0"))) is not first
    assert len(cache._kept) == 3


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
