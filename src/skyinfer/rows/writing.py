"""Rows written as Parquet, CSV, JSON Lines or Arrow: the same bytes whatever batches they come in."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from ..core import scanners
from ..errors import RequestError
from .columns import ERROR
from .files import LINE, holds_lines, keeps_faulty_lines, parsed_line, text_of
from .states import ColumnError, json_values, refuse_repeated_fields

# Rows that are written together: so many, or about so many bytes of them where that is less.
_WRITTEN_AT_ONCE, _WRITTEN_BYTES = 1 << 16, 4 << 20
PARTS = "parts"  # the format of an unfinished run's parts
_FIRST_WRITTEN = 1 << 8  # rows of the first table, whose bytes nobody knows


class Writable(Protocol):
    """What lines are written to; other formats need a file of binary mode."""

    def write(self, data: bytes, /) -> int: ...


def check_writable(form: str, schema: pa.Schema) -> None:
    """Refuses columns that a format cannot hold, before any row is answered.

    Raises:
        ColumnError: names the column.
    """
    for field in schema:
        if form == "jsonl":
            refuse_repeated_fields(field.type, field.name)
        if not _is_held(form, field, schema):
            others = [name for other, name in _REMEDIES.items() if _is_held(PARTS, field, schema)
                      and _is_held(other, field, schema)]  # fmt: skip
            kind = str(field.type)
            kind = kind if len(kind) <= _SHOWN else f"{kind[:_SHOWN]}..."
            remedy = " or ".join(["leave it out", *(f"write {name}" for name in others[:1])])
            raise ColumnError(f"column {field.name!r}: {_NAMES[form]} cannot hold {kind}; {remedy}")


def _is_held(form: str, field: pa.Field, schema: pa.Schema) -> bool:
    if form == "jsonl":
        try:
            refuse_repeated_fields(field.type, field.name)
        except ColumnError:
            return False
        return True
    alone = _written_schema(form, pa.schema([field.with_nullable(True)], schema.metadata))
    if form == "csv" and (types.is_nested(field.type) or _is_binary(alone.field(0).type)):
        return False
    try:
        with _writer(io.BytesIO(), form, alone) as writer:
            writer.write_table(pa.table([pa.nulls(1, alone.field(0).type)], schema=alone))
    except pa.ArrowException:
        return False
    return True


_SHOWN = 200  # characters of a type
_REMEDIES = {"parquet": "Parquet", "jsonl": "JSON Lines"}
_NAMES = {"csv": "CSV", "parquet": "Parquet", "arrow": "Arrow", PARTS: "an unfinished run"}


def _is_binary(kind: pa.DataType) -> bool:
    """Whether a column holds bytes, which need not be text."""
    return any(test(kind) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary))


def _written_schema(form: str, schema: pa.Schema) -> pa.Schema:
    """The columns as they are written."""
    if LINE in schema.names and keeps_faulty_lines(schema):
        schema = schema.set(schema.names.index(LINE), pa.field(LINE, pa.string())).remove_metadata()
    if form != "csv":
        return schema
    return pa.schema([field.with_type(pa.string()) if types.is_dictionary(field.type) else field for field in schema])


def _writer(file: Any, form: str, schema: pa.Schema) -> Any:
    """What writes tables. An Arrow file's end is written by closing it, and the caller's file stays open."""
    if form == "parquet":
        return pq.ParquetWriter(file, schema)
    if form == "csv":
        return pc.CSVWriter(file, schema)
    return pa.ipc.new_stream(file, schema) if form == PARTS else pa.ipc.new_file(file, schema)


def write_rows(file: Writable, form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Writes batches; the bytes depend on the rows alone, not on the batches that they come in.

    Raises:
        ColumnError: the format cannot hold a column, or a value of one.
    """
    check_writable(form, schema)
    if keeps_faulty_lines(schema):
        number = schema.names.index(LINE)
        schema = _written_schema(form, schema)
        batches = (_with_text(batch, number, schema) for batch in batches)
    if form == "jsonl":
        for batch in batches:
            write_lines(file, batch)
        return
    schema = _written_schema(form, schema)
    with _writer(file, form, schema) as writer:
        for table in _together(batches, schema):
            try:
                writer.write_table(table)
            except pa.ArrowException as error:
                if isinstance(error, OSError):
                    raise
                message = f"a value that {_NAMES[form]} cannot hold: {str(error).strip()}; write JSON Lines"
                raise ColumnError(message) from error


def _together(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Tables of as many rows as take some megabytes, judged by the table before: by the rows alone, so that the bytes
    of a file tell nothing of the batches that they came in."""
    kept: list[pa.RecordBatch] = []
    n_rows, wanted = 0, _FIRST_WRITTEN
    for batch in batches:
        while n_rows + len(batch) >= wanted:
            kept.append(batch.slice(0, wanted - n_rows))
            batch = batch.slice(wanted - n_rows)
            table = _table(kept, schema)
            scanners.trim_memory()  # that of the batches before, which are of all sizes
            by_bytes = _WRITTEN_BYTES * len(table) // max(1, table.nbytes)
            kept, n_rows, wanted = [], 0, min(_WRITTEN_AT_ONCE, max(1, by_bytes))
            yield table
        kept.append(batch)
        n_rows += len(batch)
    if n_rows:
        yield _table(kept, schema)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    # with an empty one in front a single batch is copied, too: a slice of one is written with other bytes than a copy
    return pa.Table.from_batches([batches[0].slice(0, 0), *batches]).combine_chunks().cast(schema)


def _with_text(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    columns = batch.columns
    texts = [None if line is None else text_of(line) for line in columns[number].to_pylist()]
    columns[number] = pa.array(texts, pa.string())
    return pa.record_batch(columns, schema=schema)


def write_lines(file: Writable, batch: pa.RecordBatch) -> None:
    """A row a line, as JSON; what a line of the input had comes first."""
    text = io.StringIO()
    lines, names = holds_lines(batch.schema), batch.schema.names
    for values in zip(*(json_values(column, exact=True) for column in batch.columns), strict=True):
        if lines:
            given, row = parsed_line(values[0]), dict(zip(names[1:], values[1:], strict=True))
            # one that has a field of an answer's name is faulty, too; what is said of an error is said anew
            if isinstance(given, RequestError) or not (row.keys() - {ERROR}).isdisjoint(given):
                row = {LINE: text_of(values[0]), **row}
            else:
                row = {**given, **row}
        else:
            row = dict(zip(names, values, strict=True))
        text.write(json.dumps(row, ensure_ascii=False, default=_text))
        text.write("\n")
    file.write(text.getvalue().encode("utf-8", "backslashreplace"))


def _text(value: Any) -> str:
    """What has no JSON, as bytes and decimals, as text."""
    return text_of(value) if isinstance(value, bytes) else str(value)
