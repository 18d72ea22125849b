"""Values that are not JSON's own: NumPy's scalars are what their `item()` is, and the rest is refused by its place."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import types
import uuid
from typing import Any

import numpy as np
import pytest

import skyinfer
from skyinfer.errors import RequestError
from skyinfer.schema import parse_questions, render_state

NOUL = {"type": "noul", "instructions": "Is it?"}
SCALARS = [
    np.int8(-3), np.int16(7), np.int32(1 << 30), np.int64(-(1 << 62)), np.uint8(255), np.uint64((1 << 64) - 1),
    np.float16(0.1), np.float32(0.1), np.float64(0.1), np.float32("nan"), np.float32("-inf"), np.float64(1e22),
    np.bool_(True), np.False_, np.str_("\u00e4 \"x\""), np.array(2.5, np.float32), np.array(True), np.array("text"),
]  # fmt: skip


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{value.dtype}-{value}")
def test_a_numpy_scalar_is_the_value_of_its_item(value: Any) -> None:
    plain = value.item()
    assert type(plain) in (int, float, bool, str)
    for state, expected in [
        ({"a": value, "b": [value, 1]}, {"a": plain, "b": [plain, 1]}),
        ({value: value}, {plain: plain}) if value.shape == () and value.__hash__ else ([value], [plain]),
        ([(value, {"c": {2: value}})], [[plain, {"c": {2: plain}}]]),
    ]:
        assert render_state(state) == json.dumps(expected, ensure_ascii=False)
    assert render_state(value) == (plain if type(plain) is str else json.dumps(plain))


def test_rows_of_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"n": [1, 2], "x": [0.5, 1.5], "ok": [True, False], "s": ["a", "b"], 7: [3, 4]})
    assert render_state(table.iloc[0].to_dict()) == '{"n": 1, "x": 0.5, "ok": true, "s": "a", "7": 3}'
    assert render_state(dict(table.set_index("n").loc[2])) == '{"x": 1.5, "ok": false, "s": "b", "7": 4}'
    assert render_state(table["n"].value_counts().to_dict()) == '{"1": 1, "2": 1}'
    for value, remedy in [
        (table, "to_dict"), (table["n"], "to_dict"), (pandas.Timestamp(0), "isoformat"), (pandas.NaT, "None"),
        (pandas.NA, "None"), (pandas.Timedelta(1), "total_seconds"), (table.index, "list"),
    ]:  # fmt: skip
        assert_refused({"rows": [value]}, ("state", "rows", 0), remedy)
    with pytest.raises(RequestError, match="to_dict"):
        skyinfer.load().decide_many(table, {"q": NOUL})  # type: ignore[arg-type]


def assert_refused(state: Any, loc: tuple[Any, ...], remedy: str) -> None:
    with pytest.raises(RequestError) as caught:
        render_state(state)
    assert caught.value.loc == loc
    assert remedy in caught.value.message


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (datetime.datetime(2026, 1, 2, 3), "isoformat"),
        (datetime.date(2026, 1, 2), "isoformat"),
        (datetime.time(3), "isoformat"),
        (datetime.timedelta(1), "total_seconds"),
        (decimal.Decimal("0.1"), "float"),
        ({1, 2}, "sorted"),
        (b"x", "decode"),
        (bytearray(b"x"), "decode"),
        (1j, "str"),
        (Colour.RED, ".value"),
        (uuid.UUID(int=1), "text"),
        (types.MappingProxyType({}), "dict"),
        (range(3), "list"),
        (np.arange(3), "tolist"),
        (np.array([["a"]]), "tolist"),
        (np.datetime64("2026-01-02"), "text"),
        (np.longdouble(1), "float"),
        (np.complex64(1), "str"),
        (np.bytes_(b"x"), "decode"),
        (np.ma.masked, "text"),
        (np.array(None), "text"),
        (object(), "text"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_other_types_are_refused_by_their_place(value: Any, remedy: str) -> None:
    assert_refused({"readings": [1, {"at": value}]}, ("state", "readings", 1, "at"), remedy)
    assert_refused(({"at": value},), ("state", 0, "at"), remedy)
    assert_refused(value, ("state",), remedy)
    with pytest.raises(RequestError) as caught:
        parse_questions({"q": NOUL | {"instructions": {"now": value}}})
    assert caught.value.loc == ("questions", "q", "instructions", "now")


def test_keys_are_refused_by_their_object() -> None:
    assert_refused({"a": {datetime.date(2026, 1, 2): 1}}, ("state", "a"), "datetime.date(2026, 1, 2)")
    assert_refused({"a": [{(1, 2): 1}]}, ("state", "a", 0), "(1, 2)")
    assert_refused({np.int64(1): {"b": {b"x": 1}}}, ("state", "1", "b"), "bytes")


def test_the_path_in_a_list_of_states() -> None:
    model = skyinfer.load()
    with pytest.raises(RequestError) as caught:
        model.decide_many([{"n": 1}, {"n": {1}}], {"q": NOUL})  # type: ignore[dict-item]
    assert caught.value.loc == ("states", 1, "n")


def test_numpy_in_questions() -> None:
    questions = {
        np.int64(4): {
            "type": np.str_("choice"),
            "instructions": {"n": np.float32(0.5)},
            "criteria": [np.int64(1), np.bool_(False), np.float32(2.5), np.str_("x")],
            "option_order": list(np.array([3, 2, 1, 0])),
        },
        "labelled": {"type": "choice", "instructions": np.int64(7), "criteria": {np.int64(1): np.int32(5), "b": None}},
        "level": {
            "type": "score",
            "instructions": np.str_("?"),
            "criteria": [np.float64(0.5), np.bool_(True), {"a": np.int8(1)}],
        },
        "noul": {"type": "noul", "instructions": "?", "criteria": {np.bool_(True): np.uint8(3)}},
    }
    plain = {
        4: {
            "type": "choice",
            "instructions": {"n": 0.5},
            "criteria": [1, False, 2.5, "x"],
            "option_order": [3, 2, 1, 0],
        },
        "labelled": {"type": "choice", "instructions": 7, "criteria": {1: 5, "b": None}},
        "level": {"type": "score", "instructions": "?", "criteria": [0.5, True, {"a": 1}]},
        "noul": {"type": "noul", "instructions": "?", "criteria": {True: 3}},
    }
    found = parse_questions(questions)
    assert found == parse_questions(plain)
    assert all(type(question.id) in (int, str) and type(question.type) is str for question in found)
    assert [type(option.key) for option in found[0].options] == [int, bool, float, str]
    model = skyinfer.load()
    assert json.dumps(model.decide(np.int64(5), questions)) == json.dumps(model.decide(5, plain))  # type: ignore[arg-type]
