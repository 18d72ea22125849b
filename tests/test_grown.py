"""Options that do not fit a model's own limits: answered as the same weights answer where there is room for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from test_sequence import builder, choice
from test_tokenizer import load

import skyinfer
from skyinfer.errors import RequestError
from skyinfer.schema import parse_questions
from skyinfer.text.sequence import Sequence, SequenceBuilder, longest_grown
from skyinfer.text.template import PromptTemplate

LIMITS = {"max_len": 256, "head_max_len": 96}
MANY = choice({f"Queue {i:03d}": f"case {i}" for i in range(255)})
STATE = "the customer asks about an urgent order " * 24


def growing(longest: int, max_tokens: int = 256, max_head_tokens: int = 96) -> SequenceBuilder:
    tokenizer = load("byte")
    texts = {"cls": tokenizer.cls_text, "sep": tokenizer.sep_text, "mask": tokenizer.mask_text}
    template = PromptTemplate.from_metadata({}, **texts)
    return SequenceBuilder(tokenizer, template, max_tokens, max_head_tokens, longest)


def laid_out(build: SequenceBuilder, question: dict[str, Any], state: Any = STATE) -> Sequence:
    found: Sequence = build.encode(state, {"q": question})["q"]
    return found


def test_a_grown_sequence_is_that_of_larger_limits() -> None:
    grown = laid_out(growing(8192), MANY)
    assert grown.grown_past == 256
    assert grown.tokens_per_option is None
    assert grown.options_distinct == 255
    options = sum(len(load("byte").encode(f" Queue {i:03d}: case {i}")) + 1 for i in range(255))
    more = options + 16 - 96  # as many tokens as let the options and 16 of the question in
    roomy = laid_out(builder("byte", 256 + more, 96 + more), MANY)
    assert (grown.ids, grown.markers) == (roomy.ids, roomy.markers)
    # the state keeps the room that it has beside a full head, and what the question leaves
    assert grown.state_tokens_used == 256 - 96 - 4 + 16 - len(load("byte").encode("choice question: Which?"))
    assert grown.truncated


def test_what_fits_does_not_grow() -> None:
    for n in (1, 9, 30):
        question = choice([f"label {i}" for i in range(n)])
        grown, plain = laid_out(growing(8192), question), laid_out(builder("byte", 256, 96), question)
        assert grown == plain
        assert grown.grown_past is None


def test_growth_ends_at_the_context() -> None:
    cut = laid_out(growing(1600), MANY)
    assert len(cut.ids) <= 1600
    assert cut.tokens_per_option == (1600 - 256 + 96 - 16) // 255
    with pytest.raises(RequestError, match="options fit in the model's 600 tokens"):
        laid_out(growing(600), MANY)


def test_255_options_have_room_whatever_the_context() -> None:
    for max_tokens, max_head_tokens in [(256, 96), (512, 192), (40, 8), (8192, 96)]:
        least = longest_grown(max_tokens, max_tokens)
        found = laid_out(growing(least, max_tokens, max_head_tokens), choice([str(i) for i in range(255)]))
        assert len(found.markers) == 255
        assert found.markers[-1] < len(found.ids) <= least
    assert longest_grown(256, 8192) == 8192
    assert longest_grown(256, 1 << 17) < 256 + 255 * 50  # no more than options can ever take


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights twice: with pico's limits, and with room for everything."""
    folder, size = tmp_path_factory.mktemp("grown"), checkpoints.SIZES["pico"]
    roomy = {"max_len": 256 + 8192, "head_max_len": 96 + 8192}
    return {
        name: checkpoints.paint(folder / name, **(size | limits), seed=3, temperature_by_options={})
        for name, limits in {"short": LIMITS, "roomy": roomy}.items()
    }


def test_answers_are_those_of_a_model_given_room(models: dict[str, Path]) -> None:
    short, roomy = skyinfer.load(models["short"], grow=True), skyinfer.load(models["roomy"])
    state = "the customer asks about an urgent order"
    given = short.decide(state, {"q": MANY})["answers"]["q"]
    marked = given.pop("x_grown")  # type: ignore[typeddict-item]
    assert given == roomy.decide(state, {"q": MANY})["answers"]["q"]
    assert marked["max_tokens"] == 256
    assert marked["tokens"] == len(roomy.encode(state, {"q": MANY})["q"].ids) > 2000


def test_growing_is_asked_for_and_changes_nothing_else(models: dict[str, Path]) -> None:
    plain, growing_model = skyinfer.load(models["short"]), skyinfer.load(models["short"], grow=True)
    with pytest.raises(RequestError, match="options fit"):
        plain.decide("x", {"q": MANY})
    few = {"few": choice(["a", "b", "c"]), "level": {"type": "score", "instructions": "?", "criteria": ["x", "y"]}}
    expected = plain.decide(STATE, few)["answers"]
    assert growing_model.decide(STATE, few)["answers"] == expected
    both = growing_model.decide(STATE, {"many": MANY, **few})["answers"]
    assert {qid: both[qid] for qid in few} == expected
    assert growing_model.decide(STATE, {"many": MANY})["answers"]["many"] == both["many"]


def test_a_step_over_grown_questions(models: dict[str, Path]) -> None:
    model = skyinfer.load(models["short"], grow=True)
    questions: Any = {"many": {**MANY, "option_order": list(reversed(range(255)))}, "few": choice(["a", "b"])}
    compiled = model.compile(questions)
    answers = model.decide(STATE, questions)["answers"]
    expected = [p for answer in answers.values() for p in answer["probabilities"].values()]  # type: ignore[typeddict-item]
    np.testing.assert_allclose(compiled.step(STATE), expected, rtol=0, atol=1e-7)
    assert parse_questions(questions)[0].option_order is not None
