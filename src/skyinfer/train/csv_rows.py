"""Rows of a table: CSV as spreadsheets write it, one row of training data a line.

Columns are named `state`, `state.KEY`, `answers.ID`, `weight` and `questions`. Where none is named `state` or begins
with `state.` or `answers.`, those named as questions are answers, and all others but `weight` are keys of the state.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError, RequestError

SUFFIXES = (".csv", ".tsv")

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# as JSON, spreadsheets and pandas write them
_BOOLEANS = {"true": True, "false": False, "TRUE": True, "FALSE": False, "True": True, "False": False}


def read_table(path: Path, lines: Iterator[bytes], questions: Mapping[Any, Any] | None) -> Iterator[tuple[str, Any]]:
    """The rows of a file's lines, each with its place; a `RequestError` in place of a row that is none.

    Args:
        path: for messages, and for the delimiter: a tab in a .tsv file, else what of , ; and tab the first line has
            most of.
        questions: of all rows; without them a column `questions` has to hold them, as JSON.

    Raises:
        FormatError: it is no table in UTF-8, or its columns are not those of rows.
    """
    try:
        # what Excel writes begins with a byte order mark
        first = next(lines, b"").decode("utf-8-sig")
        if not first.strip():
            raise FormatError(f"{path}: the first line is empty; it names the columns")
        delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
        names = next(csv.reader([first], delimiter=delimiter, strict=True))
        columns = _Columns(path, [name.strip() for name in names], questions)
        reader = csv.reader((line.decode("utf-8") for line in lines), delimiter=delimiter, strict=True)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                try:
                    row: Any = columns.row(cells)
                except RequestError as error:
                    row = error
                yield f"line {reader.line_num + 1}", row
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8 (byte 0x{error.object[error.start]:02x}); save it as UTF-8") from None
    except csv.Error as error:
        raise FormatError(f"{path}: not a table: {error}") from None


class _Columns:
    """What each column of a table holds."""

    def __init__(self, path: Path, names: list[str], questions: Mapping[Any, Any] | None) -> None:
        self._questions = questions
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise FormatError(f"{path}: column {min(twice)!r} is there twice")
        is_dotted = any(name == "state" or name.startswith(("state.", "answers.")) for name in names)
        # by column: the row's field, and the keys in it
        self._places: list[tuple[str, tuple[str, ...]]] = []
        ids = set() if questions is None else set(map(str, questions))
        for name in names:
            field, _, rest = name.partition(".")
            if name in ("weight", "questions") or name.startswith("x_"):
                self._places.append((name, ()))
            elif is_dotted:
                if name == "answers" or field not in ("state", "answers") or name.endswith("."):
                    raise FormatError(
                        f"{path}: unknown column {name!r}; a row has state or state.KEY, answers.ID, weight, questions"
                    )
                keys = (rest,) if field == "answers" else tuple(rest.split(".")) if rest else ()
                self._places.append((field, keys))
            else:
                self._places.append(("answers" if name in ids else "state", (name,)))
        fields = {field for field, _ in self._places}
        if questions is None and "questions" not in fields:
            raise FormatError(f"{path}: no column holds questions; give them, in a file of their own, with --questions")
        for field in ("state", "answers"):
            if field not in fields:
                wanted = ", ".join(sorted(ids)) or "answers.ID"
                wanted = f"answers ({wanted})" if field == "answers" else "states (state, state.KEY)"
                raise FormatError(f"{path}: no column holds {wanted}")
        if ("state", ()) in self._places and sum(field == "state" for field, _ in self._places) > 1:
            raise FormatError(f"{path}: has a column 'state' and columns of its keys; one or the other")

    def row(self, cells: list[str]) -> dict[str, Any]:
        if len(cells) != len(self._places):
            raise RequestError((), f"has {len(cells)} cells for {len(self._places)} columns")
        row: dict[str, Any] = {} if self._questions is None else {"questions": self._questions}
        answers: dict[str, str] = {}
        for (field, keys), cell in zip(self._places, cells, strict=True):
            if field == "answers":
                if cell.strip():
                    answers[keys[0]] = cell
            elif field == "state" and keys:
                _put(row.setdefault("state", {}), keys, cell)
            elif field == "state":
                row[field] = _document(cell) if cell[:1] in ("{", "[") else cell
            elif cell.strip():
                row[field] = _document(cell) if field == "questions" else _value(cell)
        kinds = row["questions"] if isinstance(row.get("questions"), Mapping) else {}
        row["answers"] = {key: _answer(kinds.get(key), cell) for key, cell in answers.items()}
        return row


def _put(state: dict[str, Any], keys: tuple[str, ...], cell: str) -> None:
    """A key of an empty cell is left out."""
    for key in keys[:-1]:
        state = state.setdefault(key, {})
    if cell.strip():
        state[keys[-1]] = _value(cell)


def _value(cell: str) -> Any:
    """A number, a truth value, a JSON object or list, else text."""
    bare = cell.strip()
    if bare in _BOOLEANS:
        return _BOOLEANS[bare]
    if _NUMBER.fullmatch(bare):
        return _document(bare)
    return _document(cell) if bare[:1] in ("{", "[") else cell


def _answer(question: Any, cell: str) -> Any:
    """A label is text, whatever it looks like; a noul's may be a probability."""
    is_noul = isinstance(question, Mapping) and question.get("type") == "noul"
    return _value(cell) if is_noul or cell.strip()[:1] in ("{", "[") else cell.strip()


def _document(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
