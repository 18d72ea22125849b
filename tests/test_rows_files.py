"""Files of rows: the same bytes whatever batches the rows came in, and columns of types that formats hold in parts."""

from __future__ import annotations

import datetime
import functools
import io
import json
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skyinfer import FormatError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from skyinfer.rows import ColumnError, files, writing  # noqa: E402

N = 3000


def dictionary(codes: list[Any]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a", "b", "c"]))


TABLE = pa.table(
    {
        "int": range(N),
        "text": [None if i % 7 == 0 else "x" * (i % 50) for i in range(N)],
        "large text": pa.array(["x" * (i % 9) for i in range(N)], pa.large_string()),
        "bool": [i % 2 == 0 for i in range(N)],
        "half null": [None if i < 1500 else 1 for i in range(N)],
        "null": pa.nulls(N),
        "dictionary": dictionary([i % 3 for i in range(N)]),
        "dictionary, null": dictionary([None if i % 4 == 0 else i % 3 for i in range(N)]),
        "fixed list": pa.array([None if i % 5 == 0 else [float(i)] * 3 for i in range(N)], pa.list_(pa.float32(), 3)),
        "list": pa.array([[i] * (i % 4) for i in range(N)]),
        "struct": [{"x": i, "y": [i] * (i % 4)} for i in range(N)],
        "map": pa.array([[("a", i)] for i in range(N)], pa.map_(pa.string(), pa.int64())),
    }
)


def written(form: str, batches: list[Any], schema: Any) -> bytes:
    file = io.BytesIO()
    writing.write_rows(file, form, schema, iter(batches))
    return file.getvalue()


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_files_bytes_tell_nothing_of_the_batches(form: str) -> None:
    whole = TABLE.combine_chunks().to_batches()[0]
    expected = written(form, [whole], TABLE.schema)
    for seed in range(10):
        rng, parts, at = random.Random(seed), [], 0
        while at < N:
            n = rng.choice([1, 3, 100, 255, 256, 257, 1000])
            parts.append(whole.slice(at, n))
            at += n
        assert written(form, parts, TABLE.schema) == expected
    found = pq.read_table(io.BytesIO(expected)) if form == "parquet" else pa.ipc.open_file(expected).read_all()
    assert found.to_pylist() == TABLE.to_pylist()


VIEWS: list[tuple[Any, Any]] = [
    (dictionary([0, 1, None]), pa.string()),
    (pa.array(["a", None, "c"], pa.string_view()), pa.string()),
    (pa.array([b"a", None, b"c"], pa.binary_view()), pa.binary()),
    (pa.StructArray.from_arrays([dictionary([0, 1, 2])], ["x"]), pa.struct([("x", pa.string())])),
    (pa.ListArray.from_arrays([0, 1, 2, 3], dictionary([0, 1, 2])), pa.list_(pa.string())),
    (pa.LargeListArray.from_arrays([0, 1, 2, 3], dictionary([0, 1, 2])), pa.large_list(pa.string())),
    (pa.FixedSizeListArray.from_arrays(dictionary([0, 1, 2]), 1), pa.list_(pa.string(), 1)),
]  # fmt: skip


@pytest.mark.parametrize(("array", "plain"), VIEWS, ids=[str(array.type) for array, _ in VIEWS])
def test_dictionaries_and_views_are_read_as_their_values(tmp_path: Path, array: Any, plain: Any) -> None:
    """A file of Arrow has one dictionary for each column, wherever it lies; the bytes of views tell of the batches."""
    batch = pa.record_batch([array], ["c"])
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, batch.schema) as writer:
        writer.write_batch(batch)
    with path.open("rb") as file, files.open_rows(file, "a", "arrow", as_lines=False) as rows:
        assert rows.schema.field("c").type == plain
        (found,) = rows.batches
        assert found.schema == rows.schema
        assert found.column("c").to_pylist() == array.to_pylist()


MOMENT = datetime.datetime(2026, 1, 31, 12, 30)
IN_JSON: list[tuple[Any, Any]] = [
    (pa.array([Decimal("1.10"), None], pa.decimal128(30, 2)), ["1.10", None]),
    (pa.array([Decimal("12345678901234567890.12")], pa.decimal128(30, 2)), ["12345678901234567890.12"]),
    (pa.array([MOMENT], pa.timestamp("ns")), ["2026-01-31T12:30:00.000000000"]),
    (pa.array([MOMENT], pa.timestamp("s", "Europe/Berlin")), ["2026-01-31T12:30:00Z"]),
    (pa.array([2**62], pa.timestamp("s")), ["<value out of range: 4611686018427387904>"]),
    (pa.array([MOMENT.date()], pa.date32()), ["2026-01-31"]),
    (pa.array([2**31 - 1], pa.date32()), ["<value out of range: 2147483647>"]),
    (pa.array([1500], pa.duration("ms")), [1.5]),
    (pa.array([b"\xff\x00a"], pa.binary()), ["\\xff\x00a"]),
    (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), ["00000000-0000-0000-0000-000000000005"]),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), [{"a": 1}]),
    (pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), [[[1, 2]]]),
    (pa.array([{}], pa.struct([])), [{}]),
    (pa.array([float("inf"), float("-inf")]), [float("inf"), float("-inf")]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "expected"), IN_JSON, ids=[f"{i} {a.type}" for i, (a, _) in enumerate(IN_JSON)])
def test_what_columns_are_in_json_lines(array: Any, expected: list[Any]) -> None:
    """Those of docs/rows.md, where a decimal keeps all its digits, and bytes are text."""
    batch = pa.record_batch([array], ["c"])
    lines = written("jsonl", [batch], batch.schema).splitlines()
    assert [json.loads(line)["c"] for line in lines] == expected


HELD: list[tuple[Any, str]] = [
    (pa.struct([]), "parquet csv"),
    (pa.month_day_nano_interval(), "parquet csv"),
    (pa.run_end_encoded(pa.int32(), pa.string()), "parquet csv"),
    (pa.dense_union([pa.field("a", pa.int8())]), "parquet csv"),
    (pa.binary(), "csv"),
    (pa.binary(2), "csv"),
    (pa.list_(pa.int8()), "csv"),
    (pa.uuid(), "csv"),
    (functools.reduce(lambda kind, _: pa.list_(kind), range(100), pa.int8()), "csv arrow parts"),
    (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "csv jsonl"),
    (pa.dictionary(pa.int8(), pa.string()), ""),
    (pa.timestamp("ns", "UTC"), ""),
    (pa.float16(), ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "refused"), HELD, ids=[str(kind)[:60] for kind, _ in HELD])
def test_what_a_format_cannot_hold_is_told_before_rows_are_answered(kind: Any, refused: str) -> None:
    schema = pa.schema([pa.field("fine", pa.int8(), nullable=False), pa.field("c", kind)])
    for form in ("parquet", "csv", "arrow", "jsonl", "parts"):
        if form in refused.split():
            with pytest.raises(ColumnError, match=r"column 'c': .*(cannot hold|two fields)"):
                writing.check_writable(form, schema)
        elif form != "arrow" or not pa.types.is_union(kind):  # which some versions of pyarrow write
            writing.check_writable(form, schema)


@pytest.mark.parametrize(("kind", "refused"), HELD, ids=[str(kind)[:60] for kind, _ in HELD])
def test_the_remedy_for_a_column_that_a_format_cannot_hold_is_one(kind: Any, refused: str) -> None:
    schema = pa.schema([pa.field("c", kind)])
    for form in refused.split():
        if form == "jsonl":
            continue
        with pytest.raises(ColumnError) as caught:
            writing.check_writable(form, schema)
        said = str(caught.value).rpartition("; ")[2]
        others = {"leave it out or write Parquet": "parquet", "leave it out or write JSON Lines": "jsonl"}
        if said == "leave it out":
            assert "parts" in refused or {"parquet", "jsonl"} <= set(refused.split())
        else:
            writing.check_writable(others[said], schema)
            writing.check_writable("parts", schema)


def test_a_value_that_a_format_cannot_hold_is_told() -> None:
    batch = pa.record_batch([pa.array([2**62], pa.timestamp("s"))], ["c"])
    with pytest.raises(ColumnError, match="a value that Parquet cannot hold: Integer overflow"):
        written("parquet", [batch], batch.schema)


def test_arrow_whose_buffers_are_faulty_is_told(tmp_path: Path) -> None:
    """Text that is no UTF-8, and offsets that lie outside of it, which reading would follow into other memory."""
    offsets, path = np.array([0, 1, 2], np.int32), tmp_path / "a.arrow"
    array = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xff")])
    batch = pa.record_batch([array], ["c"])
    with pa.ipc.new_stream(path, batch.schema) as writer:
        writer.write_batch(batch)
    bad_text = path.read_bytes()
    before, _, behind = bad_text.rpartition(offsets.tobytes())
    for faulty in (bad_text, before + np.array([0, 1, 10_000_000], np.int32).tobytes() + behind):
        with files.open_rows(io.BytesIO(faulty), "a.arrow", "arrow", as_lines=False) as rows:
            batches = rows.batches
            with pytest.raises(FormatError, match=r"^a\.arrow: "):
                list(batches)


@pytest.mark.parametrize("form", ["parquet", "csv", "arrow"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, form: str) -> None:
    """JSON Lines would lose one, and most readers refuse the file."""
    table, path = pa.table([[1], [2]], ["b", "b"]), tmp_path / "a"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "csv":
        path.write_text("b,b\n1,2\n")
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    refused = pytest.raises(FormatError, match="a: column 'b': there are 2 of this name")
    with path.open("rb") as file, refused, files.open_rows(file, "a", form, as_lines=False):
        pass


@pytest.mark.parametrize("as_lines", [False, True])
def test_a_byte_order_mark_before_lines_is_no_fault(as_lines: bool) -> None:
    file = io.BytesIO(b'\xef\xbb\xbf{"state": "a"}\n{"state": "b"}\n')
    with files.open_rows(file, "a", "jsonl", as_lines=as_lines) as rows:
        batches = list(rows.batches)
    assert written("jsonl", batches, rows.schema) == b'{"state": "a"}\n{"state": "b"}\n'


def test_numbers_of_lines_that_no_column_holds_are_told() -> None:
    for rows in ([10**30], [1] * 9000 + [10**30]):
        file = io.BytesIO("".join(json.dumps({"n": n}) + "\n" for n in rows).encode())
        refused = pytest.raises(FormatError, match=r"^a: .*too large.*; write JSON Lines")
        with refused, files.open_rows(file, "a", "jsonl", as_lines=False) as opened:
            list(opened.batches)


def of_lines(rows: list[Any]) -> Any:
    file = io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())
    with files.open_rows(file, "a", "jsonl", as_lines=False) as opened:
        return pa.Table.from_batches(list(opened.batches), opened.schema)


MISFITS: list[tuple[Any, Any, str]] = [
    (1, "x", "int64"),
    (1, 1.5, "int64"),  # which pyarrow takes for 1
    (1, True, "int64"),
    (True, 1, "bool"),
    (1.5, 2**60 + 1, "double"),
    ("x", 1, "string"),
    (None, 1, "null"),
    ([1], [2.5], "list<item: int64>"),
    ([], [1], "list<item: null>"),
    ([1], 1, "list<item: int64>"),
    ({"a": 1}, {"a": "x"}, "struct<a: int64>"),
    ({"a": 1}, {"a": 1, "b": 2}, "struct<a: int64>"),  # of which pyarrow leaves b out
    ({"a": [{"b": 1}]}, {"a": [{"c": 1}]}, "struct<a: list<item: struct<b: int64>>>"),
]


@pytest.mark.parametrize(("before", "value", "kind"), MISFITS, ids=[f"{a} {b}" for a, b, _ in MISFITS])
def test_a_value_that_its_column_cannot_hold_is_told_with_row_and_field(before: Any, value: Any, kind: str) -> None:
    """Never changed in silence."""
    some: list[Any] = [{"a": 1, "n": before}] * 9000
    with pytest.raises(FormatError) as caught:
        of_lines([*some, {"a": 1, "n": value}, *some])
    said = str(caught.value)
    assert said.startswith(f"a: row 9000: field 'n': expected {kind} as in the rows before, got {value!r} (")
    assert said.endswith("; write JSON Lines")


@pytest.mark.parametrize(
    ("values", "row"), [([1, None, "x"], 2), (["x", 1.5], 1), ([[1], 1], 1), ([True, True, 1], 2), ([1, 10**30], 1)]
)
def test_so_is_one_of_the_first_rows(values: list[Any], row: int) -> None:
    with pytest.raises(FormatError) as caught:
        of_lines([{"a": 1, "n": value} for value in values])
    assert str(caught.value).startswith(
        f"a: row {row}: field 'n': is of another type than before, got {values[row]!r} ("
    )


def test_lines_that_fit_become_columns_as_they_are() -> None:
    rows = [{"n": 1.5, "m": [1], "s": None}, {"n": 1, "m": [], "s": {"a": "x"}}, {"m": None, "k": True}] * 4000
    names = ("n", "m", "s", "k")  # in the order in which they come, in any of the first rows
    found = of_lines([*rows, {}])
    assert found.column_names == list(names)
    assert found.to_pylist() == [{name: row.get(name) for name in names} for row in [*rows, {}]]  # type: ignore[attr-defined]
