"""Labelled rows, each for itself: what was asked about a state, and what would have been right.

Rows are read and checked as those of training (train/rows.py), which merges rows that ask the same about the same
state; to measure a model each of them counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import RequestError, SkyinferError
from ..schema import Question
from ..train.rows import Dataset, Fault, RowsError, State, read_rows
from ..values import short

# the slice of a row that does not have the column
NO_VALUE = "(none)"


class Labelled(NamedTuple):
    """One answer that is known. state, question: numbers in `LabelledRows`; target: [n_options], sums to 1; row: its
    number; slice: what the row has in the column that rows are divided by, as text."""

    state: int
    question: int
    target: tuple[float, ...]
    weight: float
    row: int
    slice: str


class LabelledRows(NamedTuple):
    """source: where they come from. answers: in the order of the rows."""

    source: str
    states: list[State]
    questions: list[Question]
    answers: list[Labelled]
    n_rows: int


def read_labelled(
    path: str | os.PathLike[str], by: str | None = None, questions: Mapping[Any, Any] | None = None
) -> LabelledRows:
    """The rows of a file.

    Args:
        path: JSON Lines, or a table where its name ends in .csv or .tsv.
        by: the column that rows are divided by: a field of the row, as "x_lang", or a key of its state, "state.lang".
        questions: of rows that have none of their own.

    Raises:
        RowsError: rows are faulty; tells all of them.
        SkyinferError: there are no rows, or none has the column.
        FormatError, OSError: as `train.rows.read_rows`.
    """
    return gather(read_rows(path, questions), str(os.fspath(path)), by)


def gather(rows: Iterable[tuple[str, Any]], source: str, by: str | None = None) -> LabelledRows:
    """As `read_labelled`, of rows that are there already, each with its place."""
    # checks and numbers states and questions; its merged answers are left alone
    dataset = Dataset(source)
    answers: list[Labelled] = []
    faults: list[Fault] = []
    n_rows = 0
    for place, row in rows:
        try:
            if isinstance(row, RequestError):
                raise row
            state, found, weight = dataset.add(place, row)
            value = "" if by is None else _slice(row, by)
            answers += [Labelled(state, question, target, weight, n_rows, value) for question, target in found]
        except RequestError as error:
            faults.append(Fault(place, str(error)))
        n_rows += 1
    if faults:
        raise RowsError(source, faults, n_rows)
    if not n_rows:
        raise SkyinferError(f"{source}: there are no rows; a row is a JSON object with state, questions and answers")
    if by is not None and all(answer.slice == NO_VALUE for answer in answers):
        raise SkyinferError(f"{source}: no row has {short(by)}; name a field such as x_lang, or state.KEY")
    return LabelledRows(source, dataset.states, dataset.questions, answers, n_rows)


def _slice(row: Mapping[str, Any], by: str) -> str:
    """What a row has in a column, as text."""
    value: Any = row
    for key in [by] if by in row else by.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return NO_VALUE
        value = value[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
