"""An s2 model through the same doors as an s1 model: answers, sequences, prepared questions, the command."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint
from commands import Run
from golden.recipes import S2, from_literal, painted, recorded
from reference import QUESTION_TYPES, SetReference, softmax

import skyinfer
from skyinfer.core import border

DRONE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8")
)
STATES = [
    DRONE["state"], "", "vy 1", {"vy": 3, "at": [1.0, None, "é"]}, ["one", {"two": 2}, "three"], 17, "word " * 700,
    [f"turn {i}" for i in range(400)],
]  # fmt: skip
MANY = {"type": "choice", "instructions": "Which?", "criteria": {f"k{i}": f"word {i} or so" for i in range(30)}}
QUESTIONS: dict[str, Any] = {
    **DRONE["questions"],
    "long": {"type": "choice", "instructions": "why " * 300, "criteria": ["so " * 100, "so " * 100 + "x", "else"]},
    "noul": {"type": "noul", "instructions": {"a": 1}, "criteria": {"true": "it is", "false": None}},
    "many": MANY,
    "turned": {"type": "choice", "instructions": "Which?", "criteria": ["a", "b", "c"], "option_order": [2, 0, 1]},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("s2")
    return paint(
        path / "painted", **SIZES["golden"], architecture="s2", temperature_by_options={}, temperature=[1, 2, 0.7]
    )


@pytest.fixture(scope="module")
def model(directory: Path) -> skyinfer.Model:
    return skyinfer.load(directory)


@pytest.fixture(scope="module")
def expected(directory: Path, model: skyinfer.Model) -> list[dict[str, np.ndarray]]:
    """The reference's scores, in the order of the options, of questions about every state; about long ones not all."""
    reference, found = SetReference.open(directory), []
    options = {
        name: reference.options(sequence.option_ids or [], sequence.markers, QUESTIONS[name]["type"])
        for name, sequence in model.encode("", QUESTIONS).items()
    }
    for state in STATES:
        scores = {}
        for name, sequence in model.encode(state, QUESTIONS).items():
            if sequence.truncated and name not in ("margin", "many"):
                continue
            logits = reference.scores(sequence.ids, options[name])
            scores[name] = np.empty(len(logits))
            scores[name][QUESTIONS[name].get("option_order", range(len(logits)))] = logits
        found.append(scores)
    return found


def temperature(kind: str) -> float:
    return (1.0, 2.0, 0.7)[QUESTION_TYPES[kind]]


def flat(answer: Any) -> list[float]:
    if answer["type"] == "noul":
        return [1.0 - answer["noul"], answer["noul"]]
    return list(answer["probabilities"].values())


def test_answers_are_the_references(directory: Path, isa: str, expected: list[dict[str, np.ndarray]]) -> None:
    model = skyinfer.load(directory, isa=isa)
    assert model.architecture == "s2"
    for state, scores in zip(STATES, expected, strict=True):
        logits, answers = model.logits(state, QUESTIONS), model.decide(state, QUESTIONS)["answers"]
        assert list(logits) == list(answers) == list(QUESTIONS)
        for name in scores:
            np.testing.assert_allclose(logits[name], scores[name], rtol=0, atol=1e-4)
            p = softmax(scores[name] / temperature(QUESTIONS[name]["type"]))
            np.testing.assert_allclose(flat(answers[name]), p, rtol=0, atol=1e-5)


def test_sequences_are_those_of_the_specification(model: skyinfer.Model) -> None:
    config, tokens = model.config, model.engine.builder.tokenizer
    for state in STATES:
        found = model.encode(state, QUESTIONS)
        assert len({tuple(sequence.ids) for sequence in found.values()}) == 1  # the state's, once for all
        text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
        whole, room = tokens.encode(text), config.max_tokens - 2
        kept = whole[-room:] if isinstance(state, list) and len(whole) > room else whole[:room]
        for sequence in found.values():
            assert sequence.ids == [config.cls_id, *kept, config.sep_id]
            assert (sequence.state_tokens, sequence.state_tokens_used) == (len(whole), len(kept))
            assert sequence.truncated == (len(whole) > room)
    long = found["long"]
    assert long.option_ids is not None
    assert (long.options, long.options_distinct) == (3, 2)  # two begin with the same 48 tokens
    asked = tokens.encode("choice question: " + "why " * 300)
    for ids, marker, text in zip(long.option_ids, long.markers, QUESTIONS["long"]["criteria"], strict=True):
        option = tokens.encode(f" {text}")[:48]
        question = asked[: max(8, config.max_head_tokens - len(option) - 1)]
        assert ids == [config.cls_id, *question, config.sep_id, config.mask_id, *option, config.sep_id]
        assert marker == len(question) + 2
    turned = found["turned"]
    assert turned.option_ids is not None
    assert [tokens.decode(ids[at + 1 : -1]) for ids, at in zip(turned.option_ids, turned.markers, strict=True)] == [
        " c", " a", " b"
    ]  # fmt: skip


@pytest.mark.parametrize("name", S2)
@pytest.mark.filterwarnings("ignore:question .* ignored:RuntimeWarning", "ignore:.*temperatures outside:RuntimeWarning")
def test_sequences_and_scores_are_the_golden_ones(name: str) -> None:
    model = skyinfer.load(painted(name))
    cases = [case for case in recorded("s2.json")["cases"] if case["checkpoint"] == name]
    assert len(cases) >= 20
    for case in cases:
        request = from_literal(case["request"])
        found = model.encode(request["state"], request["questions"])
        logits = model.logits(request["state"], request["questions"])
        for sequence, expected in zip(found.values(), case["sequences"], strict=True):
            assert sequence.ids == expected["ids"], case["name"]
            assert sequence.option_ids == expected["option_ids"], case["name"]
            assert sequence.markers == expected["markers"], case["name"]
        for question, scores, expected in zip(
            request["questions"].values(), logits.values(), case["sequences"], strict=True
        ):
            in_order = scores[list(question.get("option_order") or range(len(scores)))]
            np.testing.assert_allclose(in_order, expected["logits"], rtol=0, atol=1e-4, err_msg=case["name"])


def test_every_way_of_asking_gives_the_same_bits(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    single = [model.decide(state, QUESTIONS) for state in STATES]
    assert [compiled(state) for state in STATES] == single
    assert model.decide_many(STATES, QUESTIONS) == single
    stepped = np.array([compiled.step(state).copy() for state in STATES])
    np.testing.assert_array_equal(stepped, compiled.step_many(STATES))
    np.testing.assert_array_equal(stepped, [np.concatenate([flat_of(one, q) for q in QUESTIONS]) for one in single])
    ids = model.engine.builder.state(STATES[0]).ids
    np.testing.assert_array_equal(compiled.run_tokens(ids), stepped[0])
    arrays = compiled.arrays(STATES * 30)
    np.testing.assert_array_equal(arrays.probabilities, np.tile(stepped, (30, 1)))
    assert arrays.truncated[:8].any(1).tolist() == [False] * 6 + [True, True]
    for name, question in QUESTIONS.items():
        alone = model.decide_many(STATES, {name: question})
        assert [one["answers"][name] for one in alone] == [one["answers"][name] for one in single]
    assert skyinfer.load(model.path, threads=3).decide_many(STATES, QUESTIONS) == single
    assert skyinfer.load(model.path, token_table_bytes=0).decide_many(STATES, QUESTIONS) == single


def flat_of(response: Any, name: str) -> np.ndarray:
    answer = response["answers"][name]
    if answer["type"] == "noul":  # the other one is not told in an answer, and rounds by itself
        return np.array([np.float32(1.0 - answer["noul"]), np.float32(answer["noul"])])
    return np.array(list(answer["probabilities"].values()), np.float32)


def test_the_order_of_options_does_not_matter(model: skyinfer.Model) -> None:
    rng, words = (
        random.Random(5),
        [f"{a} {b}" for a in ("go", "stay", "wait", "turn") for b in ("on", "up", "here", "now")],
    )
    largest = 0.0
    for _ in range(1000):
        criteria = {word: rng.choice([None, rng.choice(words)]) for word in rng.sample(words, rng.randint(2, 12))}
        mixed = dict(rng.sample(list(criteria.items()), len(criteria)))
        state = " ".join(rng.choices(words, k=rng.randint(0, 12)))
        both = {
            name: {"type": "choice", "instructions": "What now?", "criteria": given}
            for name, given in (("one", criteria), ("other", mixed))
        }
        answers = model.decide(state, both)["answers"]
        one, other = (answers[name]["probabilities"] for name in both)
        largest = max(largest, *(abs(one[key] - other[key]) for key in criteria))
    assert 0 < largest < 1e-5


def test_tokens_that_count(model: skyinfer.Model) -> None:
    found = model.encode(DRONE["state"], QUESTIONS)
    state = next(iter(found.values()))
    options = sum(len(ids) for sequence in found.values() for ids in sequence.option_ids or ())
    response = model.decide(DRONE["state"], QUESTIONS)
    assert response["usage"]["input_tokens"] == len(state.ids) + options
    prepared = model.engine.prepare([])
    assert model.decide("x", {})["usage"]["input_tokens"] == prepared.input_tokens(prepared.read("x")) == 0


def test_more_options_than_a_sequence_has_tokens(model: skyinfer.Model) -> None:
    criteria = [f"option {i}" for i in range(model.config.max_tokens + 10)]
    answer = skyinfer.choice_answer(
        model.decide("a state", {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria}}), "q"
    )
    assert len(answer["probabilities"]) == len(criteria)
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_what_is_kept_of_questions_counts_the_vectors_of_their_options(model: skyinfer.Model) -> None:
    engine = skyinfer.load(model.path).engine
    first = engine.prepare(skyinfer.schema.parse_questions({"many": MANY}))
    d = model.config.d_model
    assert first.core.n_bytes > 30 * 2 * d * 4  # an option's vectors are counted
    assert first.n_bytes > first.core.n_bytes


def test_a_state_longer_than_a_sequence_is_read_in_windows(model: skyinfer.Model) -> None:
    whole = model.decide_long("short", QUESTIONS)
    assert whole["answers"] == model.decide("short", QUESTIONS)["answers"]
    assert whole["usage"]["x_windows"] == 1
    long = model.decide_long("word " * 700, DRONE["questions"])
    n_tokens, window = len(model.engine.builder.state("word " * 700).ids), model.config.max_tokens - 2
    stride = window // 2
    assert long["usage"]["x_windows"] == 1 + -(-(n_tokens - window) // stride)
    assert all("x_window" in answer for answer in long["answers"].values())


def test_least_confidence(model: skyinfer.Model) -> None:
    response = model.decide(STATES[0], QUESTIONS, min_confidence={"choice:11+": 1.0, "default": 0.0})
    abstained = [name for name, answer in response["answers"].items() if answer.get("x_abstained")]
    assert abstained == ["many"]


def test_threads_share_prepared_questions(model: skyinfer.Model) -> None:
    questions = [{name: QUESTIONS[name]} for name in QUESTIONS]
    expected = [[model.decide(state, one) for state in STATES] for one in questions]
    fresh, found = skyinfer.load(model.path), [None] * 8

    def work(number: int) -> None:
        found[number] = [[fresh.decide(state, one) for state in STATES] for one in questions]  # type: ignore[call-overload]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * len(found)


def test_activations_are_of_the_state_and_its_options(model: skyinfer.Model) -> None:
    found = model.activations(DRONE["state"], DRONE["questions"])
    n_state, d = len(model.encode(DRONE["state"], DRONE["questions"])["action"].ids), model.config.d_model
    assert found["output_norm"].shape == (n_state, d)
    assert found["options"].shape == (7, d)
    assert found["head.0.cross_attn"].shape == (7, d)
    assert found["logits"].shape == (7, 1)


def test_the_command_decides(directory: Path, run: Run) -> None:
    shown = run("decide", "-m", str(directory), "-", stdin=json.dumps(DRONE).encode())
    assert shown.code == 0, shown.err
    assert (
        json.loads(shown.out)["answers"]
        == skyinfer.load(directory).decide(DRONE["state"], DRONE["questions"])["answers"]
    )


def test_what_s1_alone_has_is_refused_by_the_core(model: skyinfer.Model) -> None:
    with pytest.raises(ValueError, match="option_ids"):
        border.CoreQuestions(model.engine.core, [((1, 2), [1], 0, 9)], [[0]], sep_id=2)
