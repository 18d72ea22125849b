"""Files of CSV: quotes that are never closed, values over the border of two blocks, and the rows that faults name."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest
from commands import Run, saved
from test_compiled import QUESTIONS

from skyinfer import FormatError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.csv")

from skyinfer.rows import csv_files, files  # noqa: E402


def read(text: bytes, *, as_text: bool = False) -> Any:
    with files.open_rows(io.BytesIO(text), "a.csv", "csv", as_lines=False, as_text=as_text) as rows:
        return pa.Table.from_batches(list(rows.batches), rows.schema)


UNCLOSED = [
    (b'id,state\n1,ok\n2,"open quote\n3,c\n4,d\n5,e\n', "row 1"),
    (b'id,state\r\n\r\n1,ok\r\n\r\n2,"open quote\r\n3,c\r\n', "row 1"),
    (b'id,state\r1,ok\r2,"open quote\r3,c\r', "row 1"),
    (b'id,state\n"1","two\n\nlines"\n"2","a ""b"""\n"3","open\n', "row 2"),
    (b'"id","state"\n"1","ok"\n"2","open\n"3","c"\n"4","d"\n', "row 1"),  # the next quote closes it
    (b'id,state\n1,ok\n2,"open\n3,"c"\n4,d\n', "row 1"),
    (b'id,state\n"1,ok\n2,b\n', "row 0"),
    (b'id,state\n1,"', "row 0"),
    (b'id,state\n1,""""', None),
    (b'id,state\n1,"""', "row 0"),
    (b'id,"state\n1,ok\n', "the line of names"),
    (b'\xef\xbb\xbf"id,state\n1,ok\n', "the line of names"),
    (b'id,state\n1,a "quote" within\n2,5" or "6\n', None),
    (b'id,state\n1,"5" 6\n2,"5"\n', None),  # as pyarrow takes it
]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(("text", "place"), UNCLOSED)
def test_a_quote_that_is_not_closed_is_told_with_its_row(text: bytes, place: str | None, as_text: bool) -> None:
    if place is None:
        lines = text.decode().splitlines()[1:]
        assert read(text, as_text=as_text).num_rows == len(lines)
        return
    with pytest.raises(FormatError, match=rf"^a\.csv: {place}: a quote opens here that is not closed"):
        read(text, as_text=as_text)


@pytest.mark.parametrize("behind", [10, 1_000_000])
def test_so_is_one_far_behind_the_beginning(behind: int) -> None:
    """With less, and more, than a block of the file behind it."""
    text = b"id,state\n" + b"1,ok\n" * 500_000 + b'2,"open\n' + b"3,c\n" * behind
    with pytest.raises(FormatError, match=r"^a\.csv: row 500000: a quote opens here"):
        read(text)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values_over_the_border_of_blocks_are_those_of_another_reader(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Python's own module writes the file, and counts the rows before an opened quote."""
    for seed in range(60):
        rng = random.Random(seed)
        pieces = ["a", ",", '"', '""', "\n", "x\n\ny", end, " ", "é"]
        rows = [["".join(rng.choices(pieces, k=rng.randrange(1, 6))) for _ in range(2)] for _ in range(40)]
        written = io.StringIO(newline="")
        csv.writer(written, lineterminator=end, quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerows(
            [["first", "second"], *rows]
        )
        text = written.getvalue().encode()
        monkeypatch.setattr(csv_files, "_BLOCK_BYTES", rng.randrange(80, 200))
        assert [list(row.values()) for row in read(text, as_text=True).to_pylist()] == rows
        with pytest.raises(FormatError, match=r"^a\.csv: row 40: a quote opens here"):
            read(text + b'1,"open' + end.encode() + b"more" * rng.randrange(100), as_text=True)


def test_a_long_row_is_told() -> None:
    with pytest.raises(FormatError, match=r"^a\.csv: a row is longer than 1048576 bytes; write it as JSON Lines or"):
        read(b'id,state\n1,"' + b"o\n" * 3_000_000 + b'"\n')


def test_a_value_of_another_type_is_told_with_row_column_and_remedy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types are those of the first megabyte. Empty lines are no rows, and a value of two lines is one."""
    monkeypatch.chdir(tmp_path)
    text = b'state,b\n\n"x\ny",1\n' + b"x,1\n" * 299_999 + b"y,foo\n" + b"x,1\n" * 10
    with pytest.raises(FormatError) as caught:
        read(text)
    assert str(caught.value) == (
        "a.csv: row 300000: column 'b': is int64 by its first rows, got 'foo'; --text takes every column for text"
    )
    assert read(text, as_text=True)["b"][300_000].as_py() == "foo"
    Path("in.csv").write_bytes(text)
    saved(Path("q.json"), {"sure": QUESTIONS["sure"]})
    command = ("rows", "in.csv", "-q", "q.json", "-o", "out.csv", "--shard", "30001/30001")
    assert "row 300000: column 'b'" in run(*command).fault()
    assert run(*command, "--text").err.endswith("out.csv: 11 rows\n")  # rows are counted as text, too


def test_a_row_of_another_length_is_told_with_its_number() -> None:
    with pytest.raises(FormatError, match=r"^a\.csv: CSV parse error: row 1: Expected 2 columns, got 3: 2,b,c"):
        read(b"id,state\n1,a\n2,b,c\n")
