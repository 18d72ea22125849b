"""Files of CSV, read a megabyte at a time. What pyarrow would read in silence, a quote that is never closed and takes
the rows behind it for one value, is a fault here, and faults name row and column as those of other formats do."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from ..errors import FormatError

_BLOCK_BYTES = 1 << 20
_TO_TEXT = "--text takes every column for text"


def open_csv(file: BinaryIO, name: str, *, as_text: bool) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and the rows of a file. `as_text`: no column is taken for anything else.

    Raises:
        FormatError: it is no CSV in UTF-8, here or when a batch is read; the message names the row, from 0.
    """
    names = _names(file) if as_text else []
    text = _CheckedText(file, name)
    with _faults(text, name, ()):
        reader = pc.open_csv(
            text,
            pc.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pc.ParseOptions(newlines_in_values=True),
            pc.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False),
        )

    def batches() -> Iterator[pa.RecordBatch]:
        with _faults(text, name, reader.schema.names):
            yield from reader

    return reader.schema, batches()


def _names(file: BinaryIO) -> list[str]:
    """The names of the columns; none where the file is faulty. Not by pyarrow, which would go on to read the file in a
    thread of its own."""
    begin = io.TextIOWrapper(io.BytesIO(file.read(_BLOCK_BYTES)), "utf-8-sig", "replace", newline="")
    file.seek(0)
    try:
        return next((names for names in csv.reader(begin) if names), [])
    except csv.Error:
        return []


class _CheckedText(io.RawIOBase):
    """A file as it is read, refused where it is not UTF-8, of which pyarrow would take the column for binary, or say
    less; and where a quote is not closed."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._quotes, self._held = _Quotes(name), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._held + self._file.read(size - len(self._held))
        # pyarrow takes a line feed at the beginning of a block for the rest of a line's end, even within quotes
        self._held = b"\r" if data.endswith(b"\r") and len(data) > 1 else b""
        data = data.removesuffix(self._held)
        try:
            self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            bad = f"byte 0x{error.object[error.start]:02x}"
            raise FormatError(f"{self._name}: is not UTF-8 ({bad}); save it as UTF-8") from None
        self._quotes.feed(data)
        return data


# A value in quotes, and its end, unless it ends where the data does: a quote there may be the first of two.
_QUOTED = re.compile(rb'(?<=[,\r\n])"[^"]*(?:""[^"]*)*("(?=[^"]))?')


class _Quotes:
    """Where quotes of CSV open and close: one does only at the beginning of a value, and two are one of the text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before, self._is_first = b"\n", True
        self._n_lines = 0  # that have ended; lines within quotes and empty ones do not count
        self._open: int | None = None  # the line of the value that is not closed yet
        self._found: FormatError | None = None  # pyarrow may tell another fault that comes of it

    def feed(self, data: bytes) -> None:
        """The next bytes of the file; none at its end.

        Raises:
            FormatError: at the end a quote is open; or one closes in a later line and text follows it, as the next
                value in quotes closes one that was not.
        """
        if self._found is not None:
            raise self._found
        is_last = not data
        if self._is_first:
            data, self._is_first = data.removeprefix(codecs.BOM_UTF8), False
        data = self._before + (b"\n" if is_last else data)
        begun, self._open, self._before = self._open, None, data[-1:]
        n_inside = 0
        for found in _QUOTED.finditer(data) if b'"' in data else ():
            value = found[0]
            has_lines = b"\n" in value or b"\r" in value
            if found[1] is not None and not has_lines:
                begun = None
                continue
            if found[1] is None or data[found.end()] not in b",\r\n":
                line = self._n_lines + _n_lines(data[: found.start()]) - n_inside if begun is None else begun
                if found[1] is not None or is_last:
                    self._found = self._fault(line)
                    raise self._found
                # what the next bytes need of it: that it is open, has lines, and whether it may end here
                value, may_end = data[found.start() :], data.count(b'"', found.start() + 1) % 2
                self._open, self._before = line, b',"' + b"\n" * has_lines + b'"' * may_end
            n_inside += _n_lines(value)
            if self._open is not None:
                break
            begun = None
        self._n_lines += _n_lines(data) - n_inside

    def _fault(self, line: int) -> FormatError:
        place = f"row {line - 1}" if line else "the line of names"
        return FormatError(
            f"{self._name}: {place}: a quote opens here that is not closed before the end of its value; close it, or "
            'write """" for a value that is a quote'
        )


def _n_lines(data: bytes) -> int:
    """Lines that end here, without empty ones."""
    values = np.frombuffer(data, np.uint8)
    ends = (values == ord("\n")) | (values == ord("\r"))
    return int(np.count_nonzero(ends[1:] & ~ends[:-1]))


_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (.*?): invalid value '(.*)'", re.S
)
_ROW = re.compile(r"Row #(\d+): ")


@contextmanager
def _faults(text: _CheckedText, name: str, columns: list[str] | tuple[()]) -> Iterator[None]:
    """Faults that pyarrow tells, with our numbers of rows: its own begin with 1 in the line of names."""
    try:
        yield
    except pa.ArrowInvalid as error:
        message = str(error).strip()
        if "straddling" in message or "Empty CSV" in message:  # as for a quote that is never closed
            while text.read(_BLOCK_BYTES):
                pass
        if "straddling" in message:
            message = f"a row is longer than {_BLOCK_BYTES} bytes; write it as JSON Lines or Parquet"
        elif found := _CONVERSION.match(message):
            number, row, kind, value = found.groups()
            place = "" if row is None else f"row {int(row) - 2}: "
            message = f"{place}column {columns[int(number)]!r}: is {kind} by its first rows, got {value!r}; {_TO_TEXT}"
        elif "conversion error" in message:
            message = f"{message}; {_TO_TEXT}"
        else:
            message = _ROW.sub(lambda found: f"row {int(found[1]) - 2}: ", message)
        raise FormatError(f"{name}: {message}") from error
