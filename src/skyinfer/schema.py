"""What a request may be and what comes back: the public types and all validation of requests.

Accepts exactly what the Laya runtime's ``Agent`` accepts (laya 0.4.15), and NumPy's scalars; anything else is a
RequestError that says where and what to change. The text of a value is left to values.py, the sequence to
text/sequence.py, numbers to runtime/answers.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Union

from .errors import RequestError
from .values import kind, name, python_scalar, render, short

# Lists and dicts when it is asked; here a Sequence, since to a type checker a list[str] is no list[JSON].
JSON = Union[None, bool, int, float, str, "Sequence[JSON]", "Mapping[str, JSON]"]
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
    criteria: Mapping[str, JSON] | Sequence[Label]


class ScoreQuestion(_OptionOrder):
    """A level on a scale. `criteria`: descriptions of the levels, lowest first."""

    type: Literal["score"]
    instructions: JSON
    criteria: Sequence[JSON]


class _NoulWords(TypedDict, total=False):
    criteria: Mapping[str, JSON] | None  # descriptions of "true" and "false", either or both
    labels: Mapping[str, str] | None  # the two words the model reads instead of "true" and "false"


class NoulQuestion(_NoulWords, _OptionOrder):
    """Does a statement hold?"""

    type: Literal["noul"]
    instructions: JSON


# by id
Questions = Mapping[str, ChoiceQuestion | ScoreQuestion | NoulQuestion]


# the least probability of an answer, for all questions or by "choice:3-5" and "default"
MinConfidence = float | Mapping[str, float]


class WindowsAsked(TypedDict, total=False):
    """Tokens of a window, and from the beginning of one to that of the next."""

    window: int
    stride: int


class _Model(TypedDict, total=False):
    model: str | None
    x_min_confidence: MinConfidence | None
    x_long: bool | WindowsAsked | None  # the state is read in windows, of all of it


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


class DecidingWindow(TypedDict):
    """Of a state read in windows: the one whose answer this is, its tokens of the state, and how many windows."""

    index: int
    token_start: int
    token_end: int
    count: int


class _Extras(TypedDict, total=False):
    x_abstained: Literal[True]  # the answer's probability is below the least that was asked for
    x_min_confidence: float  # where one was asked for: the least for this answer
    x_window: DecidingWindow
    x_truncated: Truncation
    x_options: Collapse
    x_grown: Growth
    x_ignored: list[str]  # fields of the question that mean nothing to skyinfer


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


class _Windows(TypedDict, total=False):
    x_windows: int  # in how many a long state was read


class Usage(_Windows):
    input_tokens: int
    output_tokens: int


class _ResponseExtras(TypedDict, total=False):
    micros: float
    x_ignored: list[str]  # of a request over HTTP or of a file: fields that begin with x_ and mean nothing


class Response(_ResponseExtras):
    """What comes back: a plain dict that JSON can hold."""

    model: str
    answers: dict[str, Answer]
    usage: Usage


def choice_answer(response: Response, question_id: str) -> ChoiceAnswer:
    """``response["answers"][question_id]``, for a choice: the same dict, with its fields known to type checkers.

    Raises:
        KeyError: no question has this id.
        TypeError: the question is not a choice.
    """
    answer = response["answers"][question_id]
    if answer["type"] != "choice":
        raise _other_type(question_id, answer, "choice")
    return answer


def score_answer(response: Response, question_id: str) -> ScoreAnswer:
    """As `choice_answer`, for a score."""
    answer = response["answers"][question_id]
    if answer["type"] != "score":
        raise _other_type(question_id, answer, "score")
    return answer


def noul_answer(response: Response, question_id: str) -> NoulAnswer:
    """As `choice_answer`, for a noul."""
    answer = response["answers"][question_id]
    if answer["type"] != "noul":
        raise _other_type(question_id, answer, "noul")
    return answer


def _other_type(question_id: str, answer: Answer, wanted: QuestionType) -> TypeError:
    return TypeError(f"the answer to {question_id!r} is that of a {answer['type']}, not of a {wanted}")


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
    """A validated question; `instructions` is text and `options` are in the caller's order.

    ignored: names of the fields that mean nothing to skyinfer, as `x_ignored` of the answer tells them.
    """

    id: Any
    type: QuestionType
    instructions: str
    options: list[Option]
    option_order: list[int] | None = None
    ignored: tuple[str, ...] = ()


# fields of a request that only skyinfer has; the names of all of them begin with x_
EXTENSIONS = ("x_min_confidence", "x_long")


class ParsedRequest(NamedTuple):
    state: Any
    questions: list[Question]
    model: str | None


def parse_request(body: Any) -> ParsedRequest:
    """Validate the body of a request. Unknown top-level fields are ignored, since those of other clients may be any.

    Raises:
        RequestError: with the path to the faulty part.
    """
    if not isinstance(body, dict):
        raise RequestError((), f"a request must be an object, not {kind(body)}")
    for key in ("state", "questions"):
        if key not in body:
            raise RequestError((key,), f"is missing; add {key!r}")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError(("model",), f"must be a string, not {kind(model)}")
    if body["state"] is None:
        raise RequestError(("state",), "must not be null; give a string, an object or a list")
    return ParsedRequest(body["state"], parse_questions(body["questions"]), model)


def unknown_extensions(fields: Iterable[str]) -> list[str]:
    """Fields of a request that are named as skyinfer's own and are none, most often because they are misspelt."""
    return [field for field in fields if field.startswith("x_") and field not in EXTENSIONS]


def parse_questions(questions: Any) -> list[Question]:
    """Validate `questions`, an object of id -> definition, and render their texts, in order
    received.

    Raises:
        RequestError: with a path such as ("questions", "action", "criteria", 2).
    """
    if not isinstance(questions, dict):
        raise RequestError(("questions",), f"must be an object of id -> question, {_EXAMPLE}, not {kind(questions)}")
    if isinstance(questions.get("type"), str) and (
        questions["type"] in QUESTION_TYPES or "instructions" in questions or "criteria" in questions
    ):
        raise RequestError(("questions",), f"is one question without an id; give it one: {_EXAMPLE}")
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
    return render(state if type(state) in (dict, list) else python_scalar(state), ("state",))


def _parse_question(key: Any, question: Any) -> Question:
    key = python_scalar(key)
    if not isinstance(key, (str, int)) or (isinstance(key, str) and not key.strip()):
        raise RequestError(("questions", short(key)), f"a question id must be a non-empty string, not {short(key)}")
    name(key, ("questions",))  # the path of every error below has to be written as text
    loc = ("questions", key)
    if not isinstance(question, dict):
        raise RequestError(loc, f"a question must be an object, not {kind(question)}")
    asked = question.get("type")
    if not isinstance(asked, str) or asked not in QUESTION_TYPES:
        raise RequestError((*loc, "type"), f"must be choice, score or noul, not {short(asked)}")
    # the string here, where the caller's may be of a type of its own
    question_type = QUESTION_TYPES[QUESTION_TYPES.index(asked)]

    instructions = _instructions(question, loc)
    options = _PARSERS[question_type](question, loc)
    parsed = Question(key, question_type, instructions, options)
    if "option_order" in question:
        parsed.option_order = _option_order(question["option_order"], len(options), loc)
    if "labels" in question and question_type != "noul":
        raise RequestError((*loc, "labels"), "only a noul question has labels; remove it")
    parsed.ignored = _ignored(question)
    return parsed


def _ignored(question: dict[str, Any]) -> tuple[str, ...]:
    """Fields that no question has, most often one that is misspelt, and descriptions that another one replaced."""
    if _FIELDS.issuperset(question) and question["type"] != "noul":
        return ()
    found = [field if isinstance(field, str) else short(field) for field in question if field not in _FIELDS]
    criteria = question.get("criteria")
    if question["type"] == "noul" and criteria:
        last = {str(key).lower(): key for key in criteria}
        found += [f"criteria.{key}" for key in criteria if last[str(key).lower()] is not key]
    return tuple(found)


def ignored_said(question_id: Any, fields: Iterable[str]) -> str:
    """A warning of fields that are ignored, each with the one that was probably meant."""
    return f"question {short(question_id)}: ignored, as no question has such a field: {_meant(fields, _FIELDS)}"


def extensions_said(fields: Iterable[str]) -> str:
    """The same of a request's."""
    return f"ignored, as no request has such a field: {_meant(fields, EXTENSIONS)}"


def _meant(fields: Iterable[str], known: Iterable[str]) -> str:
    said = []
    for field in fields:
        near = difflib.get_close_matches(field[:40], known, 1)
        said.append(f"{short(field)} (did you mean {near[0]!r}?)" if near else short(field))
    return ", ".join(said)


def _instructions(question: dict[str, Any], loc: tuple[Any, ...]) -> str:
    loc = (*loc, "instructions")
    value = python_scalar(question.get("instructions"))
    if isinstance(value, str):
        if not value.strip():
            raise RequestError(loc, "must not be blank; say what to decide")
        return value
    if value is None:
        raise RequestError(loc, "is missing; say what to decide")
    if not isinstance(value, (dict, list, int, float)):
        raise RequestError(loc, f"must be a string, an object or a list, not {kind(value)}")
    if isinstance(value, (dict, list)) and not value:
        raise RequestError(loc, "must not be empty; say what to decide")
    return render(value, loc)


def _choice(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    loc = (*loc, "criteria")
    criteria = question.get("criteria")
    if isinstance(criteria, dict):
        if not criteria:
            raise RequestError(loc, "must not be empty; a choice needs at least one option")
        options = []
        for i, (key, value) in enumerate(criteria.items()):
            label = key if type(key) is str else _label(key, (*loc, i))
            shown = name(label, (*loc, i))
            options.append(Option(label, shown, _description(value, (*loc, shown))))
        return options
    if not isinstance(criteria, list):
        raise RequestError(loc, f"must be an object of label -> description, or a list of labels, not {kind(criteria)}")
    if not criteria:
        raise RequestError(loc, "must not be empty; a choice needs at least one option")
    options = []
    seen: dict[Any, int] = {}
    for i, value in enumerate(criteria):
        label = _label(value, (*loc, i))
        try:
            first = seen.setdefault(label, i)
        except TypeError as error:  # a class of str or int that cannot be hashed
            raise RequestError((*loc, i), f"a label must be a string or a number, not {kind(label)}") from error
        if first != i:
            raise RequestError(
                (*loc, i),
                f"label {short(label)} repeats label {first}; give every option its own (1, 1.0 and true count as one)",
            )
        options.append(Option(label, name(label, (*loc, i)), None))
    return options


def _score(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    loc = (*loc, "criteria")
    levels = question.get("criteria")
    if not isinstance(levels, list):
        raise RequestError(loc, f"must be a list of level descriptions, lowest first, not {kind(levels)}")
    if not levels:
        raise RequestError(loc, "must not be empty; a score needs at least one level")
    options = []
    for i, value in enumerate(levels):
        if value is None:
            raise RequestError((*loc, i), "must not be null; describe every level")
        level = str(i)
        options.append(Option(level, level, _criterion(value, (*loc, i))))
    return options


def _noul(question: dict[str, Any], loc: tuple[Any, ...]) -> list[Option]:
    criteria = question.get("criteria")
    described: dict[str, Any] = {}
    if criteria is not None:
        at = (*loc, "criteria")
        if not isinstance(criteria, dict):
            raise RequestError(at, "must be an object with descriptions of true and false, or absent")
        for key, value in criteria.items():
            side = name(key, at).lower()  # booleans are keys, too
            if side not in ("true", "false"):
                raise RequestError(
                    at,
                    f"has the key {short(key)}; use only true and false, and `labels` for words",
                )
            described[side] = value
    names = {"false": "false", "true": "true"}
    if question.get("labels") is not None:
        names = _noul_labels(question["labels"], (*loc, "labels"))
    return [
        Option(key, names[key], _description(described.get(key), (*loc, "criteria", key))) for key in ("false", "true")
    ]


# of every type; labels are refused where a type has none
_FIELDS = frozenset({"type", "instructions", "criteria", "option_order", "labels"})

_EXAMPLE = '{"any id": {"type": ..., "instructions": ...}}'

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
    if isinstance(order, (list, tuple)) and len(order) == n:
        slots = [python_scalar(i) for i in order]
        if all(isinstance(i, int) and not isinstance(i, bool) for i in slots) and sorted(slots) == list(range(n)):
            return [int(i) for i in slots]
    raise RequestError((*loc, "option_order"), f"must hold each of 0 to {n - 1} once, one for each option")


# ------------------------------------------------------------------------------- parts of questions


def _description(value: Any, loc: tuple[Any, ...]) -> str | None:
    """null and "" are no description; 0, false, [] and {} are."""
    value = python_scalar(value)
    if value is None or (isinstance(value, str) and not value):
        return None
    return _criterion(value, loc)


def _criterion(value: Any, loc: tuple[Any, ...]) -> str:
    # the runtime spells what JSON cannot as str(value), in criteria only
    return render(python_scalar(value), loc, spell_others=True)


def _label(label: Any, loc: tuple[Any, ...]) -> Label:
    label = python_scalar(label)
    if not isinstance(label, (str, int, float)):
        raise RequestError(loc, f"a label must be a string, a number or a boolean, not {kind(label)}")
    return label
