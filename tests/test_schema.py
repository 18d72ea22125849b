"""What a request may be, and where an error says the fault is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skyinfer.errors import RequestError, SkyinferError
from skyinfer.schema import Option, parse_questions, parse_request, render_state

CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"a": "one", "b": "two"}}
SCORE = {"type": "score", "instructions": "How?", "criteria": ["low", "high"]}
NOUL = {"type": "noul", "instructions": "Is it?"}


def parse(question: Any, key: Any = "q") -> Any:
    return parse_questions({key: question})[0]


def refused(question: Any, key: Any = "q") -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(question, key)
    return caught.value


# ------------------------------------------------------------------------------ accepted


def test_questions_keep_their_order_and_ids() -> None:
    questions = parse_questions({"z": CHOICE, "a": SCORE, 7: NOUL, True: NOUL})
    assert [q.id for q in questions] == ["z", "a", 7, True]
    assert [q.type for q in questions] == ["choice", "score", "noul", "noul"]
    assert parse_questions({}) == []


def test_texts_are_rendered() -> None:
    assert parse(CHOICE).options == [Option("a", "a", "one"), Option("b", "b", "two")]
    assert parse(SCORE).options == [Option("0", "0", "low"), Option("1", "1", "high")]
    assert parse(NOUL).options == [Option("false", "false", None), Option("true", "true", None)]


def test_missing_and_falsy_descriptions_differ() -> None:
    criteria = {"a": None, "b": "", "c": 0, "d": False, "e": [], "f": {}, "g": " ", "h": 0.0}
    found = [option.description for option in parse(CHOICE | {"criteria": criteria}).options]
    assert found == [None, None, "0", "false", "[]", "{}", " ", "0.0"]
    levels = parse(SCORE | {"criteria": ["", 0, False, {}]}).options
    assert [option.description for option in levels] == ["", "0", "false", "{}"]
    sides = parse(NOUL | {"criteria": {"true": "", "false": 0}}).options
    assert [option.description for option in sides] == ["0", None]


def test_labels_come_back_as_they_were() -> None:
    labels = [1, "1", "1.0", 2.5, "True", 10**30, -0.0, float("inf")]
    options = parse(CHOICE | {"criteria": labels}).options
    assert [option.key for option in options] == labels
    assert [option.name for option in options] == [
        "1", "1", "1.0", "2.5", "True", str(10**30), "-0.0", "inf",
    ]  # fmt: skip
    options = parse(CHOICE | {"criteria": {True: "yes", 2: None}}).options
    assert options == [Option(True, "True", "yes"), Option(2, "2", None)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is \u00e4", "as it is \u00e4"),
        ({"\u00e4": 1.0, "b": [-0.0, 1e22, 0.1 + 0.2]}, '{"ä": 1.0, "b": [-0.0, 1e+22, 0.30000000000000004]}'),
        (12345678901234567890123, "12345678901234567890123"),
        ([None, True, "\u2028\"\\\n"], '[null, true, "\u2028\\"\\\\\\n"]'),
        (float("nan"), "NaN"),
        ([float("inf")], "[Infinity]"),
        ({1: 2, None: 3, 2.5: 4}, '{"1": 2, "null": 3, "2.5": 4}'),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        ({}, "{}"),
        ("", ""),
    ],
)  # fmt: skip
def test_state_text(value: Any, text: str) -> None:
    assert render_state(value) == text


def test_structured_instructions() -> None:
    assert parse(NOUL | {"instructions": {"a": [1.0, "\u00e4"]}}).instructions == '{"a": [1.0, "ä"]}'
    assert parse(NOUL | {"instructions": 5}).instructions == "5"
    assert parse(NOUL | {"instructions": True}).instructions == "true"


def test_criteria_spell_what_json_cannot_and_others_do_not() -> None:
    assert parse(CHOICE | {"criteria": {"a": (1, 1j), "b": b"x"}}).options == [
        Option("a", "a", '[1, "1j"]'), Option("b", "b", "\"b'x'\""),
    ]  # fmt: skip
    assert refused(NOUL | {"instructions": [1j]}).loc == ("questions", "q", "instructions", 0)
    with pytest.raises(RequestError) as caught:
        render_state({"a": {1, 2}})
    assert caught.value.loc == ("state", "a")


def test_noul_keys_and_labels() -> None:
    for criteria in ({True: "y", False: "n"}, {"TRUE": "y", "False": "n"}, {"no": 1, True: "y"}):
        if "no" in criteria:
            assert refused(NOUL | {"criteria": criteria}).loc == ("questions", "q", "criteria")
        else:
            options = parse(NOUL | {"criteria": criteria}).options
            assert [option.description for option in options] == ["n", "y"]
    labels = {"false": " B ", "true": "A"}
    assert [option.name for option in parse(NOUL | {"labels": labels}).options] == ["B", "A"]
    assert parse(NOUL | {"labels": None}) == parse(NOUL)
    assert parse(NOUL | {"criteria": None}) == parse(NOUL)


@pytest.mark.parametrize("order", [[2, 0, 1], (2, 0, 1)])
def test_option_order(order: Any) -> None:
    question = CHOICE | {"criteria": ["a", "b", "c"], "option_order": order}
    assert parse(question).option_order == [2, 0, 1]
    assert parse(NOUL | {"option_order": [1, 0]}).option_order == [1, 0]


# ------------------------------------------------------------------------------ ignored


def test_fields_that_mean_nothing_are_named() -> None:
    assert parse(NOUL).ignored == ()
    assert parse(NOUL | {"critera": {"true": "yes"}}).ignored == ("critera",)
    assert parse(CHOICE | {"option_order": [0, 1], "weight": 1, "Instructions": "?"}).ignored == (
        "weight",
        "Instructions",
    )
    assert parse(SCORE | {"x_note": None, 7: 8}).ignored == ("x_note", "7")


def test_a_description_that_another_one_replaces_is_named() -> None:
    """As in the Laya runtime the last one counts: agent.py, `{str(k).lower(): v for k, v in crit.items()}`."""
    parsed = parse(NOUL | {"criteria": {"TRUE": "first", "true": "second", False: "no"}})
    assert [option.description for option in parsed.options] == ["no", "second"]
    assert parsed.ignored == ("criteria.TRUE",)


# ------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("question", "where", "what"),
    [
        (None, (), "null"),
        ([], (), "list"),
        ("choice", (), "string"),
        ({}, ("type",), "choice, score or noul"),
        (CHOICE | {"type": "Choice"}, ("type",), "choice, score or noul"),
        (CHOICE | {"type": None}, ("type",), "None"),
        (CHOICE | {"type": ["choice"]}, ("type",), "choice"),
        ({"type": "noul"}, ("instructions",), "missing"),
        (NOUL | {"instructions": None}, ("instructions",), "say what to decide"),
        (NOUL | {"instructions": " \n\u00a0"}, ("instructions",), "blank"),
        (NOUL | {"instructions": ""}, ("instructions",), "blank"),
        (NOUL | {"instructions": []}, ("instructions",), "empty"),
        (NOUL | {"instructions": {}}, ("instructions",), "empty"),
        (NOUL | {"instructions": b"x"}, ("instructions",), "bytes"),
        (NOUL | {"instructions": ("a",)}, ("instructions",), "tuple"),
        ({"type": "choice", "instructions": "x"}, ("criteria",), "labels"),
        (CHOICE | {"criteria": "a, b"}, ("criteria",), "labels"),
        (CHOICE | {"criteria": ("a", "b")}, ("criteria",), "labels"),
        (CHOICE | {"criteria": {}}, ("criteria",), "empty"),
        (CHOICE | {"criteria": []}, ("criteria",), "empty"),
        (CHOICE | {"criteria": ["a", None]}, ("criteria", 1), "null"),
        (CHOICE | {"criteria": {"a": 1, None: 2}}, ("criteria", 1), "null"),
        (CHOICE | {"criteria": ["a", ["b"]]}, ("criteria", 1), "list"),
        (CHOICE | {"criteria": [{"a": 1}]}, ("criteria", 0), "object"),
        (CHOICE | {"criteria": {("a",): 1}}, ("criteria", 0), "tuple"),
        (CHOICE | {"criteria": ["a", "b", "a"]}, ("criteria", 2), "repeats label 0"),
        (CHOICE | {"criteria": [1, 1.0]}, ("criteria", 1), "repeats label 0"),
        (CHOICE | {"criteria": ["x", True, 1]}, ("criteria", 2), "repeats label 1"),
        (CHOICE | {"criteria": [10**5000, 1]}, ("criteria", 0), "text"),
        (SCORE | {"criteria": {"0": "a"}}, ("criteria",), "list"),
        (SCORE | {"criteria": ("a", "b")}, ("criteria",), "list"),
        (SCORE | {"criteria": []}, ("criteria",), "empty"),
        (SCORE | {"criteria": ["a", None]}, ("criteria", 1), "null"),
        (NOUL | {"criteria": ["yes", "no"]}, ("criteria",), "object"),
        (NOUL | {"criteria": {"yes": "a", "no": "b"}}, ("criteria",), "'yes'"),
        (NOUL | {"criteria": {1: "a"}}, ("criteria",), "1"),
        (NOUL | {"labels": {"true": "a"}}, ("labels",), "different words"),
        (NOUL | {"labels": {"true": "a", "false": "a "}}, ("labels",), "different words"),
        (NOUL | {"labels": {"true": "a", "false": " "}}, ("labels",), "blank"),
        (NOUL | {"labels": {"true": 1, "false": "a"}}, ("labels",), "words"),
        (NOUL | {"labels": {True: "b", False: "a"}}, ("labels",), "words"),
        (NOUL | {"labels": "ab"}, ("labels",), "words"),
        (CHOICE | {"labels": {"true": "a", "false": "b"}}, ("labels",), "noul"),
        (SCORE | {"labels": None}, ("labels",), "noul"),
        (CHOICE | {"option_order": None}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": [0]}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": [0, 0]}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": [1, 2]}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": [False, True]}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": [0.0, 1.0]}, ("option_order",), "0 to 1"),
        (CHOICE | {"option_order": "01"}, ("option_order",), "0 to 1"),
    ],
)  # fmt: skip
def test_refused(question: Any, where: tuple[Any, ...], what: str) -> None:
    error = refused(question)
    assert error.loc == ("questions", "q", *where)
    assert what in error.message
    assert str(error).startswith("questions.q")


@pytest.mark.parametrize("key", [None, "", "  ", 1.5, ("a",)])
def test_refused_ids(key: Any) -> None:
    assert refused(NOUL, key).loc[0] == "questions"


@pytest.mark.parametrize("questions", [None, [], "q", 5, [NOUL]])
def test_questions_must_be_an_object(questions: Any) -> None:
    with pytest.raises(RequestError, match="an object of id -> question") as caught:
        parse_questions(questions)
    assert caught.value.loc == ("questions",)


@pytest.mark.parametrize("question", [CHOICE, SCORE, NOUL, {"type": "Noul", "instructions": "Is it?"}])
def test_a_question_without_its_id_is_told_to_have_one(question: Any) -> None:
    with pytest.raises(RequestError, match="one question without an id") as caught:
        parse_questions(question)
    assert caught.value.loc == ("questions",)


def test_a_question_may_be_called_type() -> None:
    assert [question.id for question in parse_questions({"type": NOUL, "criteria": NOUL})] == ["type", "criteria"]
    with pytest.raises(RequestError) as caught:
        parse_questions({"type": "yes", "q": NOUL})
    assert caught.value.loc == ("questions", "type")


def deep(n: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(n):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [None, deep(200_000), circular(), object(), b"x", {(1, 2): 3}, [10**5000]],
    ids=["null", "deep", "circular", "object", "bytes", "tuple key", "huge number"],
)  # fmt: skip
def test_state_that_is_no_json(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        render_state(value)
    assert caught.value.loc == ("state",)


@pytest.mark.parametrize("value", [deep(200_000), circular()], ids=["deep", "circular"])
def test_criteria_that_are_no_json(value: Any) -> None:
    error = refused(CHOICE | {"criteria": {"a": "x", "b": value}})
    assert error.loc == ("questions", "q", "criteria", "b")
    assert refused(SCORE | {"criteria": ["x", value]}).loc == ("questions", "q", "criteria", 1)
    assert refused(NOUL | {"criteria": {"true": value}}).loc == ("questions", "q", "criteria", "true")
    assert refused(NOUL | {"instructions": value}).loc == ("questions", "q", "instructions")


def test_errors_have_one_base() -> None:
    error = refused(None)
    assert isinstance(error, ValueError)
    assert isinstance(error, SkyinferError)


# ------------------------------------------------------------------------------ whole requests


def test_request() -> None:
    body = {"state": {"a": 1}, "questions": {"q": NOUL}, "model": "jev-latest", "unknown": 1}
    state, questions, model = parse_request(json.loads(json.dumps(body)))
    assert (state, questions[0].id, model) == ({"a": 1}, "q", "jev-latest")
    assert parse_request({"state": "", "questions": {}}).model is None


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (None, ()), ([], ()), ("x", ()), ({}, ("state",)), ({"state": 1}, ("questions",)),
        ({"state": None, "questions": {}}, ("state",)), ({"state": 1, "questions": []}, ("questions",)),
        ({"state": 1, "questions": {}, "model": 5}, ("model",)),
        ({"state": 1, "questions": {"q": 1}}, ("questions", "q")),
    ],
)  # fmt: skip
def test_refused_requests(body: Any, loc: tuple[Any, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(body)
    assert caught.value.loc == loc


# ------------------------------------------------------------------------------ faults that tests/fuzz.py found

HUGE = 10**5000  # more digits than Python writes
DEEP: Any = 0
for _ in range(2000):
    DEEP = (DEEP,)


@pytest.mark.parametrize(
    "key", [HUGE, (HUGE,), DEEP, (1, "a"), b"x", None, 1.5, frozenset()], ids=lambda key: type(key).__name__
)
def test_an_id_that_cannot_be_shown(key: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_questions({key: NOUL})
    assert str(caught.value).startswith("questions")


@pytest.mark.parametrize("key", [HUGE, (HUGE,), DEEP], ids=lambda key: type(key).__name__)
def test_a_noul_key_that_cannot_be_shown(key: Any) -> None:
    assert refused(NOUL | {"criteria": {key: "x"}}).loc == ("questions", "q", "criteria")


def test_a_description_that_does_not_compare_as_one_value() -> None:
    numpy = pytest.importorskip("numpy")
    assert parse(CHOICE | {"criteria": {"a": numpy.arange(2)}}).options[0].description == '"[0 1]"'


def test_a_tuple_is_no_list_and_is_called_by_its_name() -> None:
    for kind, criteria in (("choice", ("a", "b")), ("score", ("a", "b")), ("choice", {"a", "b"})):
        question = {"type": kind, "instructions": "?", "criteria": criteria}
        with pytest.raises(RequestError, match=r"questions\.q\.criteria: .*, not a (tuple|set)$"):
            parse_questions({"q": question})
