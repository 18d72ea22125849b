"""Rows in a table: what Python's csv module writes, and what a spreadsheet makes of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from skyinfer.errors import FormatError, SkyinferError
from skyinfer.train.rows import Dataset, RowsError, gather, read_rows

QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "1": "brake"}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "fast"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
ROWS: list[dict[str, Any]] = [
    {"state": {"light": "red", "far": 17, "wet": True}, "answers": {"act": "1", "speed": 0, "safe": 0.25}},
    {"state": {"light": 'green, "bright"', "far": -2.5}, "answers": {"act": {"go": 0.75, "1": 0.25}}, "weight": 2},
    {"state": {"light": "007", "far": 1e3, "wet": False}, "answers": {"speed": "fast", "safe": True}},
]


def table(path: Path, columns: list[str], cells: list[list[str]], **how: Any) -> Path:
    with path.open("w", encoding=how.pop("encoding", "utf-8"), newline="") as file:
        csv.writer(file, **how).writerows([columns, *cells])
    return path


def read(path: Path, questions: Any = QUESTIONS) -> Dataset:
    return gather(read_rows(path, questions), str(path))


CELLS = [
    ["red", "17", "TRUE", "1", "0", "0.25", ""],
    ['green, "bright"', "-2.5", "", '{"go": 0.75, "1": 0.25}', "", "", "2"],
    ["007", "1e3", "false", "", "fast", "true", ""],
]
NAMES = ["light", "far", "wet", "act", "speed", "safe", "weight"]
DOTTED = ["state.light", "state.far", "state.wet", "answers.act", "answers.speed", "answers.safe", "weight"]


@pytest.mark.parametrize("columns", [NAMES, DOTTED], ids=["plain", "dotted"])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("rows.csv", {}),
        ("rows.CSV", {"delimiter": ";", "lineterminator": "\n"}),
        ("rows.tsv", {"delimiter": "\t"}),
        ("rows.csv", {"encoding": "utf-8-sig", "quoting": csv.QUOTE_ALL}),
    ],
)
def test_a_table_is_the_same_rows(tmp_path: Path, columns: list[str], name: str, how: dict[str, Any]) -> None:
    expected = gather(((str(i), row | {"questions": QUESTIONS}) for i, row in enumerate(ROWS)), "rows")
    found = read(table(tmp_path / name, columns, CELLS, **how))
    assert found.states == expected.states
    assert found.examples == expected.examples
    assert found.questions == expected.questions


def test_other_columns(tmp_path: Path) -> None:
    """A state in one column, keys within keys, questions of a row's own, and what is one's own affair."""
    asked = json.dumps(QUESTIONS)
    found = read(table(tmp_path / "a.csv", ["state", "answers.safe", "questions", "x_note"], [
        ["two\nlines", "true", asked, "?"], ['{"a": [1, 2]}', "0.5", asked, ""], ["17", "false", asked, ""],
    ]), None)  # fmt: skip
    assert [(state.text, state.is_json) for state in found.states] == [
        ("two\nlines", False), ('{"a": [1, 2]}', True), ("17", False)
    ]  # fmt: skip
    nested = read(table(tmp_path / "b.csv", ["state.me.hp", "state.me.at", "answers.safe"], [["5", "[1, 2]", "true"]]))
    assert nested.states[0].text == '{"me": {"hp": 5, "at": [1, 2]}}'
    weighted = table(tmp_path / "c.csv", ["state.weight", "answers.safe"], [["70", "true"]])
    assert read(weighted).states[0].text == '{"weight": 70}'


@pytest.mark.parametrize(
    ("columns", "questions", "message"),
    [
        (["light", "act"], None, "no column holds questions; give them, in a file of their own, with --questions"),
        (["light", "far"], QUESTIONS, r"no column holds answers \(act, safe, speed\)"),
        (["act", "safe"], QUESTIONS, "no column holds states"),
        (["light", "light", "act"], QUESTIONS, "column 'light' is there twice"),
        (["state", "state.far", "answers.act"], QUESTIONS, "one or the other"),
        (["state", "act"], QUESTIONS, "unknown column 'act'; a row has state or state.KEY, answers.ID"),
        (["state", "answers"], QUESTIONS, "unknown column 'answers'"),
        (["state.", "answers.act"], QUESTIONS, r"unknown column 'state\.'"),
        ([""], QUESTIONS, "no column holds answers"),
    ],
)
def test_columns_that_are_none_are_told(tmp_path: Path, columns: list[str], questions: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(table(tmp_path / "a.csv", columns, []), questions)


def test_faulty_rows_are_told_with_their_lines(tmp_path: Path) -> None:
    stop, short, weightless = ["red\nblue", "1", "", "stop", "", "", ""], ["red"], [*CELLS[0][:6], "0"]
    path = table(tmp_path / "a.csv", NAMES, [*CELLS, stop, short, weightless, [""] * 7])
    with pytest.raises(RowsError) as refused:
        read(path)
    assert [str(fault) for fault in refused.value.faults] == [
        "line 6: answers.act: 'stop' is no answer; give one of 'go', '1'",
        "line 7: has 1 cells for 7 columns",
        "line 8: weight: must be a positive number below 1e30, not 0",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the first line is empty"),
        (b"\n\n", "the first line is empty"),
        (b"light,act\nr\xe9d,go\n", "is not UTF-8"),
        (b'light,act\n"red,go\n', "not a table: unexpected end of data"),
        (b"light,act\n", "there are no rows"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(SkyinferError, match=message):
        read(tmp_path / "a.csv")


def test_rows_may_leave_out_questions_that_are_given(tmp_path: Path) -> None:
    own = {"safe": QUESTIONS["safe"] | {"instructions": "Safe?"}}
    rows = [{"state": "a", "answers": {"safe": True}}, {"state": "b", "answers": {"safe": True}, "questions": own}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found = read(tmp_path / "rows.jsonl")
    assert [question.instructions for question in found.questions][-1] == "Safe?"
    with pytest.raises(RowsError, match="questions: is missing"):
        read(tmp_path / "rows.jsonl", None)
