"""Bodies become what Python's json makes of them, or a refusal; and what is remembered of questions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import DRONE, PAINTED

from skyinfer.errors import RequestError
from skyinfer.serve import parsing
from skyinfer.serve.catalog import Catalog
from skyinfer.serve.options import Limits
from skyinfer.serve.parsing import RequestParser, parse
from skyinfer.serve.refusals import Refusal, encode, invalid

_text = st.text(st.characters(codec="utf-8"), max_size=20)
_numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, _text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_text, inner, max_size=4)),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def parser() -> RequestParser:
    return RequestParser(
        Catalog.load([str(PAINTED)], threads=None, temperature_clamp=True),
        Limits(),
        strict_length=False,
        keep_states=True,
    )


def same(a: Any, b: Any) -> bool:
    """Equal, with equal types and orders, down to the sign of a zero."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@settings(max_examples=200, deadline=None, database=None)
@given(_json.filter(lambda value: value is not None), st.booleans(), st.sampled_from([None, 1]))
def test_a_state_is_what_python_reads(parser: RequestParser, state: Any, ascii_only: bool, indent: int | None) -> None:
    request = {"state": state, "questions": DRONE["questions"], "more": state}
    body = json.dumps(request, ensure_ascii=ascii_only, indent=indent).encode()
    asked = parser.single(body)
    assert same(asked.state, state)
    (tokens,), expected = asked.states, asked.prepared.read(json.loads(body)["state"])
    assert (tokens.ids.tolist(), tokens.keep_tail) == (expected.ids.tolist(), expected.keep_tail)


@pytest.mark.parametrize("kind", [list, dict, str])
def test_large_states_are_read_as_small_ones(parser: RequestParser, kind: type) -> None:
    """Their text is written apart from tokenizing, and a list still keeps its end."""
    turns = ["turn of words"] * 10_000
    state: Any = {list: turns, dict: {"turns": turns}, str: " ".join(turns)}[kind]
    asked = parser.single(json.dumps({"state": state, "questions": DRONE["questions"]}).encode())
    (tokens,), expected = asked.states, asked.prepared.read(state)
    assert tokens.ids.tolist() == expected.ids.tolist()
    assert tokens.keep_tail is expected.keep_tail is (kind is list)


@pytest.mark.parametrize(
    "number", ["-0", "-0.0", "1E5", "1e22", "0.1", "1e-320", "12345678901234567890123", "1.0", "1e5"]
)
def test_numbers_are_what_python_reads(parser: RequestParser, number: str) -> None:
    body = f'{{"state": [{number}], "questions": {json.dumps(DRONE["questions"])}}}'.encode()
    assert same(parser.single(body).state, json.loads(body)["state"])


@settings(max_examples=200, deadline=None, database=None)
@given(_json, st.integers(1, 6))
def test_depth_is_counted_as_it_is(value: Any, most: int) -> None:
    def depth(value: Any) -> int:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if parts is None else 1 + max(map(depth, parts), default=0)

    body = json.dumps(value, ensure_ascii=False).encode()
    if depth(value) > most:
        with pytest.raises(Refusal) as caught:
            parsing._check_depth(body, most)
        assert (caught.value.status, caught.value.kind) == (422, "json_too_deep")
    else:
        parsing._check_depth(body, most)


def test_the_longest_nesting_that_is_allowed_is_read(parser: RequestParser) -> None:
    state: Any = "x"
    for i in range(Limits().depth - 1):
        state = [state] if i % 2 else {"a": state}
    assert parser.single(json.dumps({"state": state, "questions": DRONE["questions"]}).encode()).n_tokens > 0


def test_question_sets_are_remembered_by_their_bytes(parser: RequestParser) -> None:
    def ask(questions: str) -> Any:
        return parser.single(f'{{"state": "x", "questions": {questions}}}'.encode()).prepared

    text = json.dumps(DRONE["questions"])
    first = ask(text)
    assert ask(text) is first
    assert ask(text.replace(", ", ",")) is not first
    one, other = (f'{{"q": {{"type": "choice", "criteria": [{label}, 2]}}}}' for label in ("1", "1.0"))
    assert ask(one).questions[0].options[0].name == "1"
    assert ask(other).questions[0].options[0].name == "1.0"


def test_other_limits_refuse_what_was_remembered(parser: RequestParser) -> None:
    body = json.dumps({"state": "x", "questions": DRONE["questions"]}).encode()
    assert parser.single(body).n_tokens > 0
    strict = RequestParser(parser._catalog, Limits(questions=2), strict_length=False)
    with pytest.raises(Refusal, match="at most 2"):
        strict.single(body)
    assert parser.single(body).n_tokens > 0


def test_faulty_questions_are_refused_again(parser: RequestParser) -> None:
    for _ in range(2):
        with pytest.raises(Refusal):
            parser.single(b'{"state": "x", "questions": {"q": {"type": "noul", "criteria": 7}}}')


def test_instructions_are_kept_as_given() -> None:
    for sent, kept in [(None, ""), ("", ""), ("  ", "  "), ("what?", "what?"), ({"a": 1}, '{"a": 1}')]:
        (question,) = parse({"q": {"type": "noul", "instructions": sent}}, Limits())
        assert question.instructions == kept
    with pytest.raises(RequestError, match="must not be empty"):
        parse({"q": {"type": "noul", "instructions": {}}}, Limits())


def test_refusals_in_both_styles() -> None:
    refusal = invalid(("questions", "q", "criteria", 2), "must not be null")
    assert json.loads(encode(refusal, "typesafe")[1]) == {
        "detail": [{"loc": ["body", "questions", "q", "criteria", 2], "msg": "must not be null", "type": "value_error"}]
    }
    status, body = encode(refusal, "llama")
    assert (status, json.loads(body)) == (
        400,
        {
            "error": {
                "code": 400,
                "message": "questions.q.criteria.2: must not be null",
                "type": "invalid_request_error",
            }
        },
    )
    status, body = encode(Refusal(503, "overloaded_error", "later"), "llama")
    assert (status, json.loads(body)["error"]["type"]) == (503, "unavailable_error")
