"""Rows of training data: read, checked whole, and told what is wrong with them, all of it at once.

A row is an object with `state`, `questions` and `answers`, and perhaps a `weight`. An answer is a label or a
distribution over the options. What comes out is a `Dataset`: every different state and question once, and for each
pair of them one target distribution. No torch here; what the model reads of it is left to sequence.py.
"""

from __future__ import annotations

import json
import marshal
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from ..errors import RequestError, SkyinferError, faults_named, warn
from ..files.paths import byte_order_mark, checked_path, open_regular
from ..files.streams import read_lines
from ..schema import Question, ignored_said, parse_questions, render_state
from ..values import lone_surrogate
from .csv_rows import SUFFIXES, read_table

_FIELDS = ("state", "questions", "answers", "weight")

# How far from 1 the sum of a distribution may be: people write 0.33 three times.
_SUM_TOLERANCE = 0.01

# Faults that a message shows; the exception holds them all.
_SHOWN = 20


_NO_QUESTIONS = "questions: is missing; add 'questions'"


class Fault(NamedTuple):
    """What is wrong with one row: its place ("line 7"), and what to change."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class RowsError(SkyinferError, ValueError):
    """Rows cannot be trained on as they are.

    Attributes:
        faults: one for each faulty row, in order.
        n_rows: rows in all, the faulty ones among them.
        source: where the rows come from.
    """

    def __init__(self, source: str, faults: list[Fault], n_rows: int) -> None:
        super().__init__(source, faults, n_rows)
        self.source, self.faults, self.n_rows = source, faults, n_rows

    @property
    def summary(self) -> str:
        """How many they are, without what that was to be for."""
        n = len(self.faults)
        return f"{self.source}: {n} of {self.n_rows} rows {'is' if n == 1 else 'are'} faulty"

    def lines(self) -> Iterator[str]:
        """The first faults, one line each; one alone where no row has questions."""
        if len(self.faults) == self.n_rows > 1 and all(fault.reason == _NO_QUESTIONS for fault in self.faults):
            yield "no row holds questions; give them, in a file of their own, with --questions"
            return
        yield from map(str, self.faults[:_SHOWN])
        if len(self.faults) > _SHOWN:
            yield f"... and {len(self.faults) - _SHOWN} more"

    def __str__(self) -> str:
        return "\n  ".join([self.summary, *self.lines()])


class State(NamedTuple):
    """A state as text.

    is_list: where it is too long, its end is kept. is_json: it was no string, and `text` is JSON.
    """

    text: str
    is_list: bool
    is_json: bool


class Example(NamedTuple):
    """One question about one state.

    state, question: numbers in the dataset. target: [n_options], sums to 1. weight: of all rows that say so.
    """

    state: int
    question: int
    target: tuple[float, ...]
    weight: float


class Dataset:
    """What rows say: every state, question and pair of them once.

    Rows that ask the same about the same state are one example, whose target is their weighted mean: to a loss that is
    linear in the target, such as the cross entropy, that is the same.

    Attributes:
        source: where the rows come from.
        states, questions: in the order of their first row.
        places: of the first row that asks each question.
        n_rows: that were read.
        contradictions: by (state, question) the place of the first row whose label is another than an earlier row's.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.states: list[State] = []
        self.questions: list[Question] = []
        self.places: list[str] = []
        self.n_rows = 0
        self.contradictions: dict[tuple[int, int], str] = {}
        self._state_numbers: dict[tuple[str, bool], int] = {}
        self._question_numbers: dict[Any, int] = {}
        self._sets: dict[Any, list[int]] = {}
        self._warned_of: set[str] = set()
        self._targets: dict[tuple[int, int], tuple[tuple[float, ...], float]] = {}

    @property
    def examples(self) -> list[Example]:
        """In the order of their first row."""
        return [Example(*pair, *found) for pair, found in self._targets.items()]

    @property
    def n_examples(self) -> int:
        return len(self._targets)

    def add(self, place: str, row: Any) -> tuple[int, list[tuple[int, tuple[float, ...]]], float]:
        """Take in one row.

        Returns:
            What it says: the number of its state, of each question that it answers the number and the target, and its
            weight.

        Raises:
            RequestError: it is faulty; nothing of it is taken in.
        """
        if not isinstance(row, Mapping):
            raise RequestError((), f"a row must be an object, not {_kind(row)}")
        for field in _FIELDS[:3]:
            if field not in row:
                raise RequestError((field,), f"is missing; add {field!r}")
        for field in row:
            # a typing error in "weight" would otherwise go unnoticed
            if field not in _FIELDS and not str(field).startswith("x_"):
                raise RequestError(
                    (),
                    f"unknown field {_short(field)}; a row has {', '.join(_FIELDS)}, and what begins with x_",
                )
        given = row["state"]
        state = State(render_state(given), isinstance(given, list), not isinstance(given, str))
        _check_text(state.text, "state")
        weight = _weight(row.get("weight", 1.0))
        asked = self._questions_of(place, row["questions"])
        answers = row["answers"]
        if not isinstance(answers, Mapping):
            raise RequestError(("answers",), f"must be an object of question id -> answer, not {_kind(answers)}")
        if not answers:
            raise RequestError(("answers",), "is empty; answer at least one question")
        by_id = {self.questions[number].id: number for number in asked}
        found = []
        for key, answer in answers.items():
            if key not in by_id:
                raise RequestError(("answers", _short(key)), "no question has this id")
            question = self.questions[by_id[key]]
            found.append((by_id[key], target_of(question, answer)))
        # a string that reads like an object is tokenized as one, and is the same state
        number = self._state_numbers.setdefault(state[:2], len(self.states))
        if number == len(self.states):
            self.states.append(state)
        for which, target in found:
            self._merge((number, which), target, weight, place)
        return number, found, weight

    def _questions_of(self, place: str, questions: Any) -> list[int]:
        """The numbers of a row's questions."""
        try:
            # the whole value: version 2 writes no references, so equal values have equal bytes
            key: Any = marshal.dumps(questions, 2)
        except ValueError:
            key = None
        numbers = None if key is None else self._sets.get(key)
        if numbers is None:
            parsed = parse_questions(questions)
            if not parsed:
                raise RequestError(("questions",), "is empty; ask at least one question")
            for question in parsed:
                self._warn_of_ignored(place, question)
                if question.option_order is not None:
                    raise RequestError(
                        ("questions", question.id, "option_order"), "belongs to a request; leave it out of a row"
                    )
                for text in (question.instructions, *(f"{o.name}{o.description}" for o in question.options)):
                    _check_text(text, "questions", question.id)
            numbers = [self._question_number(place, question) for question in parsed]
            if key is not None:
                self._sets[key] = numbers
        return numbers

    def _warn_of_ignored(self, place: str, question: Question) -> None:
        """Once for each name of a field, since every row may have its own questions."""
        new = [field for field in question.ignored if field not in self._warned_of]
        if new:
            self._warned_of.update(new)
            warn(f"{place}: {ignored_said(question.id, new)}")

    def _question_number(self, place: str, question: Question) -> int:
        # 1 and true are equal as keys of a dict, and are not the same label
        keys = tuple((type(option.key), option) for option in question.options)
        key = (type(question.id), question.id, question.type, question.instructions, keys)
        number = self._question_numbers.setdefault(key, len(self.questions))
        if number == len(self.questions):
            self.questions.append(question)
            self.places.append(place)
        return number

    def _merge(self, pair: tuple[int, int], target: tuple[float, ...], weight: float, place: str) -> None:
        known = self._targets.get(pair)
        if known is not None:
            before, weight_before = known
            weight_after = weight_before + weight
            if target != before:
                if max(target) == 1.0 and (max(before) == 1.0 or pair in self.contradictions):
                    self.contradictions.setdefault(pair, place)
                target = tuple(
                    (p * weight_before + q * weight) / weight_after for p, q in zip(before, target, strict=True)
                )
            weight = weight_after
        self._targets[pair] = target, weight


def read_rows(path: str | os.PathLike[str], questions: Mapping[Any, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """The rows of a file of JSON Lines, or of CSV where its name ends so, each with its place; a `RequestError` in
    place of a row that is none.

    `questions`: of rows that have none of their own.

    Raises:
        FormatError: the path is empty, or names a pipe or a device; or a line is longer than 1 GB; or the columns of a
            table are not those of rows.
        OSError: the file cannot be read.
    """
    where = checked_path(path)
    with faults_named(path), open_regular(where) as file:
        if where.suffix.lower() in SUFFIXES:
            yield from read_table(where, read_lines(file, path), questions)
            return
        for number, line in enumerate(read_lines(file, path), 1):
            if line.strip():
                try:
                    row: Any = with_questions(_parse_line(line, first=number == 1), questions)
                except RequestError as error:
                    row = error
                yield f"line {number}", row


def with_questions(row: Any, questions: Mapping[Any, Any] | None) -> Any:
    """A row, with `questions` where it has none."""
    if questions is None or not isinstance(row, Mapping) or "questions" in row:
        return row
    return {**row, "questions": questions}


def _parse_line(line: bytes, *, first: bool) -> Any:
    if first and (mark := byte_order_mark(line)):
        raise RequestError((), f"begins with {mark}; save the file as UTF-8 without one")
    try:
        return json.loads(line.rstrip(b"\r\n").decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise RequestError((), f"is not UTF-8 (byte 0x{line[error.start]:02x} at offset {error.start})") from None
    except json.JSONDecodeError as error:
        raise RequestError((), f"is not JSON: column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise RequestError((), "is nested too deeply") from None
    except RequestError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError((), f"cannot be read: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise RequestError((), f"an object has the key {_short(key)} twice")
            seen.add(key)
    return found


def gather(rows: Iterable[tuple[str, Any]], source: str) -> Dataset:
    """All rows as one dataset.

    Raises:
        RowsError: some are faulty; tells all of them. Or there are none.
    """
    dataset, faults, n_rows = Dataset(source), [], 0
    for place, row in rows:
        n_rows += 1
        try:
            if isinstance(row, RequestError):
                raise row
            dataset.add(place, row)
        except RequestError as error:
            faults.append(Fault(place, str(error)))
    if faults:
        raise RowsError(source, faults, n_rows)
    if not n_rows:
        raise SkyinferError(f"{source}: there are no rows; a row is a JSON object with state, questions and answers")
    dataset.n_rows = n_rows
    return dataset


# ---------------------------------------------------------------------------------------------- answers


def target_of(question: Question, answer: Any) -> tuple[float, ...]:
    """An answer as a distribution over the options of `question`.

    choice: a label, or an object label -> probability. score: a level's number, or its description where no other
    level has it; or a list of probabilities, lowest level first; or an object of them. noul: a boolean, the
    probability of true, or an object of the probabilities of false and true. Labels that an object leaves out have
    probability 0.

    Raises:
        RequestError: it is none.
    """
    loc = ("answers", question.id)
    n = len(question.options)
    if isinstance(answer, Mapping):
        p = [0.0] * n
        seen = set()
        for label, value in answer.items():
            i = _option(question, label, loc)
            if i in seen:
                raise RequestError(loc, f"names option {_short(question.options[i].key)} twice")
            seen.add(i)
            p[i] = _probability(value, (*loc, str(label)))
        if question.type == "noul" and len(seen) == 1:  # the one says the other
            p = [p[0], 1.0 - p[0]] if 0 in seen else [1.0 - p[1], p[1]]
        return _normalized(p, loc)
    if isinstance(answer, (list, tuple)):
        if question.type != "score":
            raise RequestError(loc, "a list of probabilities answers a score only; give an object label -> probability")
        if len(answer) != n:
            raise RequestError(loc, f"has {len(answer)} probabilities for {n} levels")
        p = [_probability(value, (*loc, i)) for i, value in enumerate(answer)]
        return _normalized(p, loc)
    if question.type == "noul" and _is_number(answer):
        true = _probability(answer, loc)
        return 1.0 - true, true
    chosen = _option(question, answer, loc)
    return tuple(float(i == chosen) for i in range(n))


def _option(question: Question, label: Any, loc: tuple[Any, ...]) -> int:
    """The number of the option that `label` names."""
    options = question.options
    if question.type == "score":
        return _level(question, label, loc)
    if question.type == "noul":
        if isinstance(label, bool):
            return int(label)
        if label in ("false", "true"):
            return int(label == "true")
        _no_option(loc, label, "true, false, or the probability of true")
    matches = [i for i, option in enumerate(options) if option.key == label and type(option.key) is type(label)]
    # in JSON every key is a string, and a list of labels may hold numbers
    matches = matches or [i for i, option in enumerate(options) if isinstance(label, str) and option.name == label]
    if len(matches) != 1:
        _no_option(loc, label, "one of " + _listed([option.name for option in options]))
    return matches[0]


def _level(question: Question, label: Any, loc: tuple[Any, ...]) -> int:
    n = len(question.options)
    if _is_number(label):
        if label not in range(n):
            _no_option(loc, label, f"a level from 0 to {n - 1}; for what lies between, give a list of probabilities")
        return int(label)
    if isinstance(label, str):
        found = {i for i, option in enumerate(question.options) if label in (option.key, option.description)}
        if len(found) == 1:
            return found.pop()
        if found:
            raise RequestError(
                loc, f"{_short(label)} may be any of the levels {sorted(found)}; give the level's number"
            )
    _no_option(loc, label, f"a level from 0 to {n - 1}, or its description")


def _no_option(loc: tuple[Any, ...], label: Any, wanted: str) -> NoReturn:
    raise RequestError(loc, f"{_short(label)} is no answer; give {wanted}")


def _probability(value: Any, loc: tuple[Any, ...]) -> float:
    if not _is_number(value) or not 0 <= value <= 1:  # NaN is not
        raise RequestError(loc, f"{_short(value)} is not a probability from 0 to 1")
    return float(value)


def _normalized(p: list[float], loc: tuple[Any, ...]) -> tuple[float, ...]:
    total = math.fsum(p)
    if abs(total - 1.0) > _SUM_TOLERANCE + 1e-9:
        raise RequestError(loc, f"probabilities sum to {total:.6g}, not to 1")
    return tuple(value / total for value in p)


def _weight(value: Any) -> float:
    if not _is_number(value) or not 0 < value < 1e30:
        raise RequestError(("weight",), f"must be a positive number below 1e30, not {_short(value)}")
    return float(value)


def _check_text(text: str, *loc: Any) -> None:
    if (bad := lone_surrogate(text)) is not None:
        raise RequestError(loc, f"holds the lone surrogate {bad}, which is not text")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return {type(None): "null", list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(_short, names[:8]))
    return shown if len(names) <= 8 else f"{shown}, ... ({len(names)} in all)"
