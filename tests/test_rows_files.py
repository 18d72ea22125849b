"""Files of rows: the same bytes whatever batches the rows came in, and columns of types that formats hold in parts."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from skyinfer.rows import files  # noqa: E402

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
    files.write_rows(file, form, schema, iter(batches))
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
