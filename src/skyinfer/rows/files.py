"""Files of rows: Parquet, CSV, JSON Lines and Arrow, read and written some thousand rows at a time.

A line of JSON Lines stays text, in one column, until its state is read or the line is written again, so rows need not
have the same fields. Only where another format is written do they become columns, by what the first rows have.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from ..errors import FormatError, RequestError, faults_named
from ..files.streams import read_lines
from ..values import lone_surrogate
from .columns import ERROR
from .states import ColumnError

FORMATS = ("parquet", "csv", "jsonl", "arrow")
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
             ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}  # fmt: skip

LINE = "x_line"  # the column of lines of JSON
_LINES = pa.schema([(LINE, pa.string())])
_READ_AT_ONCE = 8192  # rows
# Rows that are written together, whatever batches they come in, so that a file's bytes tell nothing of those.
_WRITTEN_AT_ONCE = 1 << 16


class Writable(Protocol):
    """What lines are written to; other formats need a file of binary mode."""

    def write(self, data: bytes, /) -> int: ...


class Rows(NamedTuple):
    """Rows of a file: batches of one schema, and how many rows there are, where that is known before."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    n_rows: int | None


def format_of(path: str, given: str | None) -> str:
    """The format of a file, by its name where none is given; "-", a standard stream, is JSON Lines.

    Raises:
        ValueError: the name does not tell.
    """
    found = given or ("jsonl" if path == "-" else _SUFFIXES.get(Path(path).suffix.lower()))
    if found is None:
        raise ValueError(f"{path}: its format cannot be told; name it {', '.join(_SUFFIXES)}")
    return found


@contextmanager
def open_rows(file: BinaryIO, name: str, form: str, *, as_lines: bool, as_text: bool = False) -> Iterator[Rows]:
    """The rows of a file. `as_lines`: JSON stays text. `as_text`: no column of CSV is taken for anything else.

    Raises:
        FormatError: not of this format, here or when a batch is read.
        OSError: it cannot be read.
    """
    with _faults(name):
        rows = _opened(file, name, form, as_lines, as_text)
    yield Rows(rows.schema, _named(rows.batches, name), rows.n_rows)


def _opened(file: BinaryIO, name: str, form: str, as_lines: bool, as_text: bool) -> Rows:
    if form == "jsonl":
        lines = _lines(file, name)
        return Rows(_LINES, lines, None) if as_lines else _columns_of(lines, name)
    if form == "parquet":
        parquet = pq.ParquetFile(file, pre_buffer=False)
        return _decoded(parquet.schema_arrow, parquet.iter_batches(_READ_AT_ONCE), parquet.metadata.num_rows)
    if form == "csv":
        options = pc.ReadOptions(use_threads=False, block_size=1 << 20)
        if as_text:
            names = pc.open_csv(file, read_options=options).schema.names
            file.seek(0)
            reader = pc.open_csv(file, options, convert_options=pc.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False))  # fmt: skip
        else:
            reader = pc.open_csv(file, options)
        return _decoded(reader.schema, iter(reader), None)
    start = file.read(6)
    file.seek(0)
    if start == b"ARROW1":
        arrow = pa.ipc.open_file(file)
        n_rows = sum(arrow.get_batch(i).num_rows for i in range(arrow.num_record_batches))
        return _decoded(arrow.schema, map(arrow.get_batch, range(arrow.num_record_batches)), n_rows)
    stream = pa.ipc.open_stream(file)
    return _decoded(stream.schema, iter(stream), None)


def _decoded(schema: pa.Schema, batches: Iterator[pa.RecordBatch], n_rows: int | None) -> Rows:
    """Rows without dictionaries, of which a file of Arrow holds one for each column only."""
    plain = pa.schema(
        [field.with_type(field.type.value_type) if types.is_dictionary(field.type) else field for field in schema],
        metadata=schema.metadata,
    )
    return Rows(plain, batches if plain.equals(schema) else (batch.cast(plain) for batch in batches), n_rows)


def _lines(file: BinaryIO, name: str) -> Iterator[pa.RecordBatch]:
    number = 0
    lines = (line for line in read_lines(file, name) if line.strip())
    while some := list(islice(lines, _READ_AT_ONCE)):
        try:
            texts = [line.decode("utf-8").strip() for line in some]
        except UnicodeDecodeError as error:
            raise FormatError(f"{name}: rows {number} to {number + len(some) - 1} are not all UTF-8: {error}") from None
        number += len(some)
        yield pa.record_batch([pa.array(texts, pa.string())], schema=_LINES)


def _columns_of(lines: Iterator[pa.RecordBatch], name: str) -> Rows:
    """Lines of JSON as columns: those, and of the types, that the first batch of lines has."""
    first = next(lines, None)
    if first is None:
        raise FormatError(f"{name}: has no rows, which would say what columns it has; write JSON Lines")
    parsed = _objects(first, name, 0)
    try:
        schema = pa.Table.from_pylist(parsed).schema
    except pa.ArrowException as error:
        raise FormatError(f"{name}: its rows have no common columns: {error}; write JSON Lines") from error

    def batches() -> Iterator[pa.RecordBatch]:
        number, some = 0, parsed
        while some:
            unknown = next((key for row in some for key in row if key not in schema.names), None)
            try:
                if unknown is not None:
                    raise FormatError(f"{name}: field {unknown!r}, after row {number}, is new; write JSON Lines")
                yield from pa.Table.from_pylist(some, schema=schema).combine_chunks().to_batches()
            except pa.ArrowException as error:
                message = f"{name}: rows from {number} on are not as those before: {error}; write JSON Lines"
                raise FormatError(message) from error
            number += len(some)
            batch = next(lines, None)
            some = [] if batch is None else _objects(batch, name, number)

    return Rows(schema, batches(), None)


def _objects(batch: pa.RecordBatch, name: str, first: int) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(batch.column(0).to_pylist(), first):
        row = parsed_line(line)
        if isinstance(row, RequestError):
            raise FormatError(f"{name}: row {number} {row.message}")
        if "\\u" in line and (bad := lone_surrogate(json.dumps(row, ensure_ascii=False))) is not None:
            raise FormatError(
                f"{name}: row {number} holds the lone surrogate {bad}, which no column can; write JSON Lines"
            )
        found.append(row)
    return found


def parsed_line(line: str) -> dict[str, Any] | RequestError:
    """The object that a line is, or why it is none."""
    try:
        row = json.loads(line)
    except RecursionError:
        return RequestError((), "is nested too deeply; flatten it")
    except ValueError as error:
        return RequestError((), f"is not JSON: {error}")
    return row if isinstance(row, dict) else RequestError((), "is not an object; write {...} on each line")


class LineStates:
    """The states of lines of JSON: one field of each, or several as an object, in the order named."""

    def __init__(self, names: Sequence[str], *, parse_json: bool = False) -> None:
        self._names, self._parse_json = names or ("state",), parse_json

    def states(self, batch: pa.RecordBatch) -> list[Any]:
        return [self._state(parsed_line(line)) for line in batch.column(0).to_pylist()]

    def _state(self, row: dict[str, Any] | RequestError) -> Any:
        if isinstance(row, RequestError):
            return row
        for name in self._names:
            if name not in row:
                return RequestError((name,), "is missing")
        if len(self._names) > 1:
            return {name: row[name] for name in self._names}
        value = row[self._names[0]]
        if self._parse_json and isinstance(value, str):
            try:
                return json.loads(value)
            except (ValueError, RecursionError) as error:
                return RequestError((self._names[0],), f"is not JSON: {error}")
        return value


# ---------------------------------------------------------------------------------------- writing


def write_rows(file: Writable, form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Writes batches; the bytes depend on the rows alone, not on the batches that they come in."""
    if form == "jsonl":
        for batch in batches:
            write_lines(file, batch)
        return
    if form == "csv":
        schema = pa.schema(
            [field.with_type(pa.string()) if types.is_dictionary(field.type) else field for field in schema]
        )
        for field in schema:
            if types.is_nested(field.type):
                raise ColumnError(f"column {field.name!r}: CSV cannot hold {field.type}; leave it out or write Parquet")
    # an arrow file's end is written by closing it, and the caller's file stays open
    with (
        pq.ParquetWriter(file, schema) if form == "parquet"
        else pc.CSVWriter(file, schema) if form == "csv"
        else pa.ipc.new_file(file, schema)
    ) as writer:  # fmt: skip
        for table in _together(batches, schema):
            writer.write_table(table)


def _together(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    n_rows = 0
    for batch in batches:
        while n_rows + len(batch) >= _WRITTEN_AT_ONCE:
            yield _table([*kept, batch.slice(0, _WRITTEN_AT_ONCE - n_rows)], schema)
            batch, kept, n_rows = batch.slice(_WRITTEN_AT_ONCE - n_rows), [], 0
        kept.append(batch)
        n_rows += len(batch)
    if n_rows:
        yield _table(kept, schema)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches).combine_chunks().cast(schema)


def write_lines(file: Writable, batch: pa.RecordBatch) -> None:
    """A row a line, as JSON; what a line of the input had comes first."""
    text = io.StringIO()
    lines = LINE in batch.schema.names
    for row in batch.to_pylist():
        if lines:
            line = row.pop(LINE)
            given = parsed_line(line)
            row = {LINE: line, **row} if isinstance(given, RequestError) else _merged(given, row)
        text.write(json.dumps(row, ensure_ascii=False, default=str))
        text.write("\n")
    file.write(text.getvalue().encode("utf-8", "backslashreplace"))


def _merged(given: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    for name in answers:
        if name in given and name != ERROR:
            raise ColumnError(f"field {name!r}: a row has it already; give another prefix")
    return {**given, **answers}


@contextmanager
def _faults(name: str) -> Iterator[None]:
    with faults_named(name):
        try:
            yield
        except pa.ArrowException as error:
            if isinstance(error, OSError):
                raise
            raise FormatError(f"{name}: {str(error).strip()}") from error


def _named(batches: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    while True:
        with _faults(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
