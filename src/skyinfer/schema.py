"""What a request may be and what comes back: the public types and all validation of requests.

Accepts exactly what the Laya runtime's ``Agent`` accepts (laya 0.4.15) and renders every value to
the text the model reads; anything else is a RequestError that says where and what to change.
Building the sequence is left to sequence.py, numbers to answer.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Union

from .errors import RequestError

JSON = Union[None, bool, int, float, str, "list[JSON]", "dict[str, JSON]"]
Label = str | int | float
QuestionType = Literal["choice", "score", "noul"]
# Also the row of the type embedding.
QUESTION_TYPES: tuple[QuestionType, ...] = ("choice", "score", "noul")

# ------------------------------------------------------------------------------------ public types


class _OptionOrder(TypedDict, total=False):
    option_order: list[int]  # slot s of the sequence shows option option_order[s]


class ChoiceQuestion(_OptionOrder):
    """One of several labels. `criteria`: label -> description, or a list of labels."""

    type: Literal["choice"]
    instructions: JSON
    criteria: dict[str, JSON] | list[Label]


class ScoreQuestion(_OptionOrder):
    """A level on a scale. `criteria`: descriptions of the levels, lowest first."""

    type: Literal["score"]
    instructions: JSON
    criteria: list[JSON]


class _NoulWords(TypedDict, total=False):
    criteria: dict[str, JSON] | None  # descriptions of "true" and "false", either or both
    labels: dict[str, str] | None  # the two words the model reads instead of "true" and "false"


class NoulQuestion(_NoulWords, _OptionOrder):
    """Does a statement hold?"""

    type: Literal["noul"]
    instructions: JSON


Questions = dict[str, ChoiceQuestion | ScoreQuestion | NoulQuestion]


class _Model(TypedDict, total=False):
    model: str | None


class Request(_Model):
    """The body of POST /v1/systemone."""

    state: JSON
    questions: Questions


class Truncation(TypedDict):
    """The state did not fit: tokens it has, tokens the model read."""

    state_tokens: int
    state_tokens_used: int


class Collapse(TypedDict):
    """Options became identical when they were cut: how many there are, how many differ."""

    options: int
    distinct: int


class Growth(TypedDict):
    """The options took more room than the model's sequences have: tokens read, and what the model was made for."""

    tokens: int
    max_tokens: int


class _Extras(TypedDict, total=False):
    x_truncated: Truncation
    x_options: Collapse
    x_grown: Growth


class ChoiceAnswer(_Extras):
    type: Literal["choice"]
    choice: Label
    probabilities: dict[Label, float]
    confidence: float


class ScoreAnswer(_Extras):
    type: Literal["score"]
    score: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float


class NoulAnswer(_Extras):
    type: Literal["noul"]
    noul: float


Answer = ChoiceAnswer | ScoreAnswer | NoulAnswer


class Usage(TypedDict):
    input_tokens: int
    output_tokens: int


class _Micros(TypedDict, total=False):
    micros: float


class Response(_Micros):
    model: str
    answers: dict[Any, Answer]
    usage: Usage


# ------------------------------------------------------------------------------- parsed questions


class Option(NamedTuple):
    """One option. Every text is rendered: what the model reads, before the template joins it.

    key: what the answer calls it, the caller's own label for a choice, "0", "1", ... for a score;
    name: the key as the prompt shows it; description: None where the caller gave none (a level's
    may be "").
    """

    key: Any
    name: str
    description: str | None


@dataclass(slots=True)
class Question:
    """A validated question; `instructions` is text and `options` are in the caller's order."""

    id: Any
    type: QuestionType
    instructions: str
    options: list[Option]
    option_order: list[int] | None = None


class ParsedRequest(NamedTuple):
    state: Any
    questions: list[Question]
    model: str | None


def parse_request(body: Any) -> ParsedRequest:
    """Validate the body of a request. Unknown top-level fields are ignored.

    Raises:
        RequestError: with the path to the faulty part.
    """
    if not isinstance(body, dict):
        raise RequestError((), f"a request must be an object, not {_kind(body)}")
    for key in ("state", "questions"):
        if key not in body:
            raise RequestError((key,), f"is missing; add {key!r}")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError(("model",), f"must be a string, not {_kind(model)}")
    if body["state"] is None:
        raise RequestError(("state",), "must not be null; give a string, an object or a list")
    return ParsedRequest(body["state"], parse_questions(body["questions"]), model)


def parse_questions(questions: Any) -> list[Question]:
    """Validate `questions`, an object of id -> definition, and render their texts, in order
    received.

    Raises:
        RequestError: with a path such as ("questions", "action", "criteria", 2).
    """
    if not isinstance(questions, dict):
        raise RequestError(("questions",), f"must be an object of id -> question, not {_kind(questions)}")
    return [_parse_question(key, value) for key, value in questions.items()]


def render_state(state: Any) -> str:
    """The state as text: a string as it is, anything else as JSON.

    Raises:
        RequestError: null, or not JSON (circular, too deep, or of another type).
    """
    if type(state) is str:
        return state
    if state is None:
        raise RequestError(("state",), "must not be null; give a string, an object or a list")
    return _render(state, ("state",), None)


def _parse_question(key: Any, question: Any) -> Question:
    if not isinstance(key, (str, int)) or (isinstance(key, str) and not key.strip()):
        raise RequestError(("questions", _short(key)), f"a question id must be a non-empty string, not {_short(key)}")
    _name(key, ("questions",))  # the path of every error below has to be written as text
    loc = ("questions", key)
    if not isinstance(question, dict):
        raise RequestError(loc, f"a question must be an object, not {_kind(question)}")
    kind = question.get("type")
    parse = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parse is None:
        raise RequestError((*loc, "type"), f"must be choice, score or noul, not {_short(kind)}")

    instructions = _instructions(question, loc)
    options = parse(question, loc)
    parsed = Question(key, kind, instructions, options)  # type: ignore[arg-type]
    if "option_order" in question:
        parsed.option_order = _option_order(question["option_order"], len(options), loc)
    if "labels" in question and kind != "noul":
        raise RequestError((*loc, "labels"), "only a noul question has labels; remove it")
    return parsed


def _instructions(question: dict[str, Any], loc: tuple[Any, ...]) -> str:
    loc = (*loc, "instructions")
    value = question.get("instructions")
    if isinstance(value, str):
        if not value.strip():
            raise RequestError(loc, "must not be blank; say what to decide")
        return value
    if value is None:
        raise RequestError(loc, "is missing; say what to decide")
    if not isinstance(value, (dict, list, int, float)):
        raise RequestError(loc, f"must be a string, an object or a list, not {_kind(value)}")
    if isinstance(value, (dict, list)) and not value:
        raise RequestError(loc, "must not be empty; say what to decide")
    return _render(value, loc, None)


def _choice(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    loc = (*loc, "criteria")
    criteria = question.get("criteria")
    if isinstance(criteria, dict):
        if not criteria:
            raise RequestError(loc, "must not be empty; a choice needs at least one option")
        options = []
        for i, (label, value) in enumerate(criteria.items()):
            if not isinstance(label, (str, int, float)):
                raise _bad_label(label, (*loc, i))
            name = label if type(label) is str else _name(label, (*loc, i))
            options.append(Option(label, name, _description(value, (*loc, name))))
        return options
    if not isinstance(criteria, list):
        raise RequestError(loc, "must be an object of label -> description, or a list of labels")
    if not criteria:
        raise RequestError(loc, "must not be empty; a choice needs at least one option")
    options = []
    seen: dict[Any, int] = {}
    for i, label in enumerate(criteria):
        if not isinstance(label, (str, int, float)):
            raise _bad_label(label, (*loc, i))
        try:
            first = seen.setdefault(label, i)
        except TypeError as error:
            raise _bad_label(label, (*loc, i)) from error
        if first != i:
            raise RequestError(
                (*loc, i),
                f"label {_short(label)} repeats label {first}; give every option its own"
                f" (1, 1.0 and true count as one)",
            )
        options.append(Option(label, _name(label, (*loc, i)), None))
    return options


def _score(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    loc = (*loc, "criteria")
    levels = question.get("criteria")
    if not isinstance(levels, list):
        raise RequestError(loc, "must be a list of level descriptions, lowest first")
    if not levels:
        raise RequestError(loc, "must not be empty; a score needs at least one level")
    options = []
    for i, value in enumerate(levels):
        if value is None:
            raise RequestError((*loc, i), "must not be null; describe every level")
        name = str(i)
        options.append(Option(name, name, _criterion(value, (*loc, i))))
    return options


def _noul(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    criteria = question.get("criteria")
    described: dict[str, Any] = {}
    if criteria is not None:
        at = (*loc, "criteria")
        if not isinstance(criteria, dict):
            raise RequestError(at, "must be an object with descriptions of true and false, or absent")
        for key, value in criteria.items():
            name = _name(key, at).lower()  # booleans are keys, too
            if name not in ("true", "false"):
                raise RequestError(
                    at,
                    f"has the key {_short(key)}; use only true and false, and `labels` for words",
                )
            described[name] = value
    names = {"false": "false", "true": "true"}
    if question.get("labels") is not None:
        names = _noul_labels(question["labels"], (*loc, "labels"))
    return [
        Option(key, names[key], _description(described.get(key), (*loc, "criteria", key))) for key in ("false", "true")
    ]


_PARSERS: dict[str, Callable[[dict[str, Any], tuple[Any, ...]], list[Option]]] = {
    "choice": _choice,
    "score": _score,
    "noul": _noul,
}


def _noul_labels(labels: Any, loc: tuple[Any, ...]) -> dict[str, str]:
    if (
        isinstance(labels, dict)
        and labels.keys() == {"false", "true"}
        and all(isinstance(word, str) for word in labels.values())
    ):
        words = {key: word.strip() for key, word in labels.items()}
        if words["false"] and words["true"] and words["false"] != words["true"]:
            return words
    raise RequestError(loc, "must give false and true two different words that are not blank")


def _option_order(order: Any, n: int, loc: tuple[Any, ...]) -> list[int]:
    if (
        isinstance(order, (list, tuple))
        and len(order) == n
        and all(isinstance(i, int) and not isinstance(i, bool) for i in order)
        and sorted(order) == list(range(n))
    ):
        return [int(i) for i in order]
    raise RequestError((*loc, "option_order"), f"must hold each of 0 to {n - 1} once, one for each option")


# --------------------------------------------------------------------------------- values as text


def _description(value: Any, loc: tuple[Any, ...]) -> str | None:
    """null and "" are no description; 0, false, [] and {} are."""
    if value is None or (isinstance(value, str) and not value):
        return None
    return _criterion(value, loc)


def _criterion(value: Any, loc: tuple[Any, ...]) -> str:
    if isinstance(value, str):
        return value
    # the runtime spells what JSON cannot as str(value), in criteria only
    return _render(value, loc, str)


def _name(label: Any, loc: tuple[Any, ...]) -> str:
    try:
        return str(label)
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, a tuple of tuples of tuples
        raise RequestError(loc, f"cannot be written as text ({error})") from error


def _render(value: Any, loc: tuple[Any, ...], default: Callable[[Any], Any] | None) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=default)
    except RecursionError as error:
        raise RequestError(loc, "is nested too deeply; flatten it") from error
    except (TypeError, ValueError) as error:
        raise RequestError(loc, f"cannot be written as JSON ({error})") from error


def _bad_label(label: Any, loc: tuple[Any, ...]) -> RequestError:
    return RequestError(loc, f"a label must be a string, a number or a boolean, not {_kind(label)}")


_KINDS = {
    type(None): "null", dict: "an object", list: "a list", str: "a string", bool: "a boolean",
    int: "a number", float: "a number",
}  # fmt: skip


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return _kind(value)
    return text if len(text) <= 60 else text[:57] + "..."
