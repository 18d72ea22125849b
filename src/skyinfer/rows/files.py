"""Files of rows: Parquet, CSV, JSON Lines and Arrow, read some thousand rows at a time.

A line of JSON Lines stays as it is, in one column, until its state is read or the line is written again, so rows need
not have the same fields. Only where another format is written do they become columns, by what the first rows have; a
line that is none of these rows then has a column of its own.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types

from ..errors import FormatError, RequestError, faults_named
from ..files.streams import read_lines
from ..values import encodable, lone_surrogate
from .csv_files import open_csv
from .json_columns import batch_of, schema_of
from .states import refuse_repeated_names
from .tables import States

FORMATS = ("parquet", "csv", "jsonl", "arrow")
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
             ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}  # fmt: skip

LINE = "x_line"  # the column of lines of JSON: bytes, which need not be UTF-8, until they are written
_ALL_LINES, _FAULTY_LINES = {b"x_line": b"all"}, {b"x_line": b"faulty"}  # a schema's metadata: what the column holds
_LINES = pa.schema([(LINE, pa.binary())], metadata=_ALL_LINES)
# Rows that are read together: so many, or about so many bytes of them where that is less.
_READ_AT_ONCE, _READ_BYTES = 8192, 2 << 20
_BUFFER_BYTES = 1 << 18  # of a column in a row group of Parquet, which would else be read as a whole


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
def open_rows(
    file: BinaryIO, name: str, form: str, *, as_lines: bool, as_text: bool = False, keep_faulty: bool = False
) -> Iterator[Rows]:
    """The rows of a file. `as_lines`: JSON stays lines. `as_text`: no column of CSV is taken for anything else.
    `keep_faulty`: a line that is no row becomes one of nulls, and the line in the column `LINE`.

    Raises:
        FormatError: not of this format, here or when a batch is read.
        RequestError: a line is no row, and is not to be kept; the path is ("rows", its number).
        OSError: it cannot be read.
    """
    with _faults(name):
        rows = _opened(file, name, form, as_lines, as_text, keep_faulty)
    for column in rows.schema.names:
        if (n := len(rows.schema.get_all_field_indices(column))) > 1:
            raise FormatError(f"{name}: column {column!r}: there are {n} of this name; rename them")
    yield Rows(rows.schema, _named(rows.batches, name), rows.n_rows)


def _opened(file: BinaryIO, name: str, form: str, as_lines: bool, as_text: bool, keep_faulty: bool) -> Rows:
    if form == "jsonl":
        lines = _lines(file, name, first_by_bytes=as_lines)
        return Rows(_LINES, lines, None) if as_lines else _columns_of(lines, name, keep_faulty)
    if form == "parquet":
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        about = parquet.metadata
        n_bytes = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        at_once = min(_READ_AT_ONCE, max(1, _READ_BYTES * about.num_rows // max(1, n_bytes)))
        return _decoded(parquet.schema_arrow, parquet.iter_batches(at_once), about.num_rows)
    if form == "csv":
        return _decoded(*open_csv(file, name, as_text=as_text), None)
    start = file.read(6)
    file.seek(0)
    if start == b"ARROW1":
        arrow = pa.ipc.open_file(file)
        n_rows = sum(arrow.get_batch(i).num_rows for i in range(arrow.num_record_batches))
        return _decoded(arrow.schema, map(arrow.get_batch, range(arrow.num_record_batches)), n_rows)
    stream = pa.ipc.open_stream(file)
    return _decoded(stream.schema, iter(stream), None)


def _decoded(schema: pa.Schema, batches: Iterator[pa.RecordBatch], n_rows: int | None) -> Rows:
    """Rows without dictionaries, of which a file of Arrow holds one for each column only, and without views of text,
    whose bytes in a file tell of the batches that they came in."""
    plain = pa.schema([field.with_type(_plain(field.type)) for field in schema], metadata=schema.metadata)

    def sound() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch.validate(full=True)  # else offsets may lie outside of the file, and text may be none
            yield batch if plain.equals(schema) else batch.cast(plain)

    return Rows(plain, sound(), n_rows)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that holds the same values without dictionaries and views, inside of lists and structs, too."""
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind.fields])
    for is_one, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if is_one(kind):
            return make(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    return kind


def _lines(file: BinaryIO, name: str, *, first_by_bytes: bool) -> Iterator[pa.RecordBatch]:
    """Lines that hold something. `first_by_bytes`: the first batch, too, may have few rows, because they are long."""
    some: list[bytes] = []
    n_bytes, by_bytes = 0, first_by_bytes
    is_first = True
    for line in read_lines(file, name):
        if is_first:
            line, is_first = line.removeprefix(codecs.BOM_UTF8), False
        if not line.strip():
            continue
        some.append(line)
        n_bytes += len(line)
        if len(some) == _READ_AT_ONCE or (by_bytes and n_bytes >= _READ_BYTES):
            yield pa.record_batch([pa.array(some, pa.binary())], schema=_LINES)
            some, n_bytes, by_bytes = [], 0, True
    if some:
        yield pa.record_batch([pa.array(some, pa.binary())], schema=_LINES)


def _columns_of(lines: Iterator[pa.RecordBatch], name: str, keep_faulty: bool) -> Rows:
    """Lines of JSON as columns: those, and of the types, that the first batch of lines has."""
    first = next(lines, None)
    if first is None:
        raise FormatError(f"{name}: has no rows, which would say what columns it has; write JSON Lines")
    parsed = _objects(first, 0, keep_faulty)
    with _of(name):
        schema = schema_of(_sound(parsed), 0)
    if keep_faulty:
        if LINE in schema.names:
            raise FormatError(
                f"{name}: field {LINE!r} is to hold lines that are no rows; rename it, or write JSON Lines"
            )
        with_lines = schema.append(pa.field(LINE, pa.binary())).with_metadata(_FAULTY_LINES)

    def batches() -> Iterator[pa.RecordBatch]:
        number, some = 0, parsed
        while some:
            with _of(name):
                found = batch_of(_sound(some), schema, number)
            if keep_faulty:
                faulty = pa.array([row if isinstance(row, bytes) else None for row in some], pa.binary())
                found = pa.record_batch([*found.columns, faulty], schema=with_lines)
            yield found
            number += len(some)
            batch = next(lines, None)
            some = [] if batch is None else _objects(batch, number, keep_faulty)

    return Rows(with_lines if keep_faulty else schema, batches(), None)


def _sound(rows: list[dict[str, Any] | bytes]) -> list[dict[str, Any] | None]:
    return [row if isinstance(row, dict) else None for row in rows]


@contextmanager
def _of(name: str) -> Iterator[None]:
    """Gives faults of rows the name of their file."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from error


def _objects(batch: pa.RecordBatch, first: int, keep_faulty: bool) -> list[dict[str, Any] | bytes]:
    """The rows that lines are; in place of a faulty one, which is to be kept, the line."""
    found: list[dict[str, Any] | bytes] = []
    for number, line in enumerate(batch.column(0).to_pylist(), first):
        row = _encodable_row(line)
        if not isinstance(row, RequestError):
            found.append(row)
        elif keep_faulty:
            found.append(line)
        else:
            raise RequestError(("rows", number), encodable(row.message))
    return found


def _encodable_row(line: bytes) -> dict[str, Any] | RequestError:
    """The object that a line is, or why it is none that columns can hold."""
    row = parsed_line(line)
    if not isinstance(row, RequestError) and b"\\u" in line:
        bad = lone_surrogate(json.dumps(row, ensure_ascii=False))
        if bad is not None:
            return RequestError((), f"holds the lone surrogate {bad}, which no column can; write JSON Lines")
    return row


def parsed_line(line: bytes) -> dict[str, Any] | RequestError:
    """The object that a line is, or why it is none."""
    try:
        row = json.loads(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        return RequestError((), f"is not UTF-8 (byte 0x{line[error.start]:02x} at offset {error.start})")
    except RecursionError:
        return RequestError((), "is nested too deeply; flatten it")
    except ValueError as error:
        return RequestError((), f"is not JSON: {error}")
    return row if isinstance(row, dict) else RequestError((), "is not an object; write {...} on each line")


class FaultsOfLines:
    """The states of columns that lines of JSON became, and what is wrong with the lines that became none."""

    def __init__(self, columns: States) -> None:
        self._columns = columns

    def states(self, batch: pa.RecordBatch) -> list[Any]:
        return [
            state if line is None else _encodable_row(line)
            for state, line in zip(self._columns.states(batch), batch.column(LINE).to_pylist(), strict=True)
        ]


class LineStates:
    """The states of lines of JSON: one field of each, or several as an object, in the order named."""

    def __init__(self, names: Sequence[str], taken: Iterable[str], *, parse_json: bool = False) -> None:
        """`taken`: names of fields that a row must not have, since its answers will."""
        self._names, self._parse_json, self._taken = names or ("state",), parse_json, frozenset(taken)
        refuse_repeated_names(self._names)

    def states(self, batch: pa.RecordBatch) -> list[Any]:
        return [self._state(parsed_line(line)) for line in batch.column(0).to_pylist()]

    def _state(self, row: dict[str, Any] | RequestError) -> Any:
        if isinstance(row, RequestError):
            return row
        if not self._taken.isdisjoint(row):
            name = next(name for name in row if name in self._taken)
            return RequestError((name,), "an answer's field has this name; rename it or the question, or give a prefix")
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


def keeps_faulty_lines(schema: pa.Schema) -> bool:
    """Whether rows were read with `keep_faulty`, and have the column for it."""
    return _FAULTY_LINES.items() <= (schema.metadata or {}).items()


def holds_lines(schema: pa.Schema) -> bool:
    """Whether rows were read `as_lines`, and the first column has them."""
    return _ALL_LINES.items() <= (schema.metadata or {}).items()


def text_of(line: bytes) -> str:
    """A line as text, with an escape in place of each byte that is none."""
    return line.decode("utf-8", "backslashreplace").strip()


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
