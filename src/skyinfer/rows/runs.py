"""A file of rows answered into another one, in parts that are kept until all are there: what is done is never lost.

Beside OUT lies the directory OUT.parts: `run.json`, which says of what the parts are, and an Arrow stream for each,
named by its first row and the one after its last. A part appears whole, at the latest a minute after the one before.
When the last is there OUT is written of all, appears whole, and the directory goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ..core import border, scanners
from ..errors import FormatError, SkyinferError, faults_named
from ..files.whole_file import WholeFile
from ..model import ISA_VARIABLE, Model
from ..runtime.precision import PRECISIONS
from .columns import ERROR
from .files import FaultsOfLines, LineStates, Rows, keeps_faulty_lines, open_rows
from .states import StateColumns
from .tables import States, answer_columns, answered
from .writing import PARTS, Writable, check_writable, write_rows

_PART_ROWS, _PART_BYTES, _PART_SECONDS = 1 << 16, 8 << 20, 60.0  # whichever is reached first
_RUN, _WRITING, _REPLACES = "run.json", "writing", "replaces"
_ISA = "instruction set"
_OTHER = {
    _ISA: f"on another {_ISA}", "state": "of other columns of the state", "questions": "of other questions",
    "options": "of other options", "formats": "of other formats",
}  # fmt: skip
_TEMPORARY = ".skyinfer"  # what names of unfinished files begin with (files/whole_file.py)

Progress = Callable[[int, "int | None"], None]


class UnfinishedError(SkyinferError):
    """There are parts of a run that was not finished."""


def answer_file(
    model: Model,
    questions: Mapping[str, Any],
    source: Path,
    source_format: str,
    out: WholeFile,
    out_format: str,
    *,
    state: list[str],
    shard: tuple[int, int] = (1, 1),
    as_text: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda done, total: None,
    **options: Any,
) -> int:
    """Answers every row of a file, and gives how many there are. `options`: as for `tables.answered`.

    `force` replaces an unfinished run; one that `resume` goes on with may replace what it might before.

    shard: (i, n), the i-th of n parts of equal size that follow each other, from 1 on.

    Raises:
        UnfinishedError: the parts of an earlier run are there, and neither `resume` nor `force` is set; or what they
            are of has changed.
        FormatError, ColumnError, RequestError, OSError: as the reading, answering and writing of rows.
    """
    parse_json = options.pop("parse_json", False)
    parts = parts_of(os.fspath(out.target))
    kept = dict(sorted(options.items()))
    kept.pop("threads", None)  # they change no bits
    about = {
        "source": [os.fspath(source.resolve()), *_stamp(source)], "model": _model_stamp(model),
        "precision": model.precision, _ISA: model.isa, "state": state, "questions": questions, "shard": list(shard),
        "formats": [source_format, out_format], "options": {"text": as_text, "parse_json": parse_json, **kept},
    }  # fmt: skip
    stamp = json.loads(json.dumps(about))
    with _begun(parts, stamp, resume=resume, force=force) as done:
        as_lines = source_format == out_format == "jsonl"
        with open(source, "rb") as file, open_rows(
            file, str(source), source_format, as_lines=as_lines, as_text=as_text,
            keep_faulty=options.get("on_error") == "keep",
        ) as rows:  # fmt: skip
            first, last = _range(rows, shard, source, source_format)
            states = _states(rows, state, _added(model, questions, options), as_lines, parse_json)
            left = _between(rows.batches, first + done, last)
            reader = answered(model, questions, rows.schema, left, states, first_row=first + done, **options)
            for form in (out_format, PARTS):
                check_writable(form, reader.schema)
            total = None if last is None else last - first
            for part in _parts(reader, done, lambda now: progress(now, total)):
                _check_unchanged(source, stamp)
                _write_part(parts, reader.schema, *part)
                scanners.trim_memory()  # that of batches, which are of all sizes and in several threads
            _check_unchanged(source, stamp)
            (parts / _WRITING).touch()
            with out.writing() as written:
                batches = _finished(parts)
                with out.faults_named():
                    write_rows(written, out_format, reader.schema, batches)
        return _n_done(parts)


def parts_of(out: str) -> Path:
    """Where the parts of a file lie."""
    return Path(f"{os.path.realpath(out)}.parts")


def replaces(out: str) -> bool:
    """Whether an unfinished run may replace the file: it was to, or had begun to write what stands there now."""
    parts = parts_of(out)
    with contextlib.suppress(OSError):
        return (parts / _WRITING).exists() or bool(_about(parts).get(_REPLACES))
    return False


def _stamp(path: Path) -> list[int]:
    with faults_named(path):
        found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _model_stamp(model: Model) -> list[Any]:
    path = model.path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[os.fspath(file), *_stamp(file)] for file in files if file.is_file()]


def _check_unchanged(source: Path, stamp: Mapping[str, Any]) -> None:
    if _stamp(source) != stamp["source"][1:]:
        raise FormatError(f"{source}: has changed since the run began; start over with --force")


@contextlib.contextmanager
def _begun(parts: Path, stamp: Any, *, resume: bool, force: bool) -> Iterator[int]:
    """Makes the directory or takes up the one that is there; gives how many rows are done. At the end of the block it
    goes, unless that came early and there is something to go on from."""
    with faults_named(parts):
        if parts.exists():
            with _alone(parts):
                _take_up(parts, stamp, resume=resume, force=force)
        parts.mkdir(exist_ok=True)
        with _alone(parts):
            if not (parts / _RUN).exists():
                with WholeFile(parts / _RUN, replace=True).writing() as file:
                    file.write(json.dumps({**stamp, _REPLACES: force}).encode())
            done = _n_done(parts)
    with _alone(parts):
        is_kept = False
        try:
            yield done
        except BaseException:
            is_kept = _n_done(parts) > 0
            raise
        finally:
            if not is_kept:
                shutil.rmtree(parts, ignore_errors=True)


def _take_up(parts: Path, stamp: Any, *, resume: bool, force: bool) -> None:
    """Refuses a directory that cannot be gone on with, or removes what is in it.

    Raises:
        UnfinishedError: there is a run, and neither `resume` nor `force`; or it was of something else.
        FormatError: it is of no run.
    """
    if not (parts / _RUN).exists():
        if any(not path.name.startswith(_TEMPORARY) for path in parts.iterdir()):  # what a kill leaves
            raise FormatError(f"{parts}: is not an unfinished run's; move it away, or name another file to write")
    elif force and not resume:
        shutil.rmtree(parts)
    elif not resume:
        raise UnfinishedError(f"{parts}: holds an unfinished run; --resume goes on with it, --force starts over")
    else:
        before = _about(parts)
        # as text, since the order of questions and of their options is that of columns and probabilities
        changed = [name for name in stamp if json.dumps(before.get(name)) != json.dumps(stamp[name])]
        if changed:
            raise UnfinishedError(f"{parts}: its run was {_before(changed[0], before, stamp)}; --force starts over")


def _before(name: str, before: Mapping[str, Any], stamp: Mapping[str, Any]) -> str:
    """What an unfinished run was of, and, where that may be had here, how it is gone on with."""
    was = before.get(name)
    if name == "precision" and was in PRECISIONS:
        return f"of another precision; --precision {was} goes on with it"
    if name == _ISA and was in border.isa_names():
        if border.isa_supported(was):
            return f"on another instruction set; {ISA_VARIABLE}={was} in the environment goes on with it"
        return f"on {was}, an instruction set that this CPU cannot run"
    if name == "options" and isinstance(was, dict):
        differ = [key for key, value in stamp[name].items() if key not in was or was[key] != value]
        return f"of other options ({', '.join('--' + key.replace('_', '-') for key in differ)})"
    return _OTHER.get(name, f"of another {name}")


def _about(parts: Path) -> dict[str, Any]:
    """What a run's file says of it; nothing where that is damaged."""
    try:
        found = json.loads((parts / _RUN).read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _alone(parts: Path) -> Iterator[None]:
    """Refuses to share the directory with another process, which a system that has locks of files tells."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    directory = os.open(parts, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnfinishedError(f"{parts}: another process is answering rows for it") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(directory)


def _finished_parts(parts: Path) -> Iterator[tuple[Path, int]]:
    """The parts that follow each other from the first row on, each with the row after its last."""
    ends = {}
    for path in parts.glob("*.arrows"):
        if name := re.fullmatch(r"([0-9]+)-([0-9]+)", path.stem):
            ends[int(name[1])] = path, int(name[2])
    at = 0
    while at in ends:
        path, at = ends[at]
        yield path, at


def _n_done(parts: Path) -> int:
    return max((end for _, end in _finished_parts(parts)), default=0)


def _finished(parts: Path) -> Iterator[pa.RecordBatch]:
    for path, _ in _finished_parts(parts):
        try:
            with pa.OSFile(os.fspath(path)) as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        except (pa.ArrowInvalid, OSError) as error:
            raise FormatError(f"{path}: cannot be read; start over with --force: {str(error).strip()}") from error


def _parts(
    reader: pa.RecordBatchReader, done: int, progress: Callable[[int], None]
) -> Iterator[tuple[int, int, list[pa.RecordBatch]]]:
    """(first row, the one after the last, batches) of each part. What was answered before an exception is one, too."""
    kept: list[pa.RecordBatch] = []
    n_bytes, first, since = 0, done, time.monotonic()
    progress(done)
    try:
        for batch in reader:
            kept.append(batch)
            done += len(batch)
            n_bytes += batch.nbytes
            progress(done)
            waited = time.monotonic() - since
            if done - first >= _PART_ROWS or n_bytes >= _PART_BYTES or waited >= _PART_SECONDS:
                some, begin = kept, first
                kept, n_bytes, first, since = [], 0, done, time.monotonic()
                yield begin, done, some
    except BaseException:
        if kept:
            yield first, done, kept
        raise
    if kept:
        yield first, done, kept


def _write_part(parts: Path, schema: pa.Schema, begin: int, end: int, batches: list[pa.RecordBatch]) -> None:
    whole = WholeFile(parts / f"{begin:015d}-{end:015d}.arrows", replace=True)
    with whole.writing() as file, whole.faults_named(), pa.ipc.new_stream(file, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def _range(rows: Rows, shard: tuple[int, int], source: Path, form: str) -> tuple[int, int | None]:
    """The rows of a shard: the first, and the one after the last; None where nobody has counted."""
    n_rows = rows.n_rows
    if shard == (1, 1):
        return 0, n_rows
    if n_rows is None:
        with open(source, "rb") as file, open_rows(file, str(source), form, as_lines=True, as_text=True) as counted:
            n_rows = sum(map(len, counted.batches))
    i, n = shard
    return n_rows * (i - 1) // n, n_rows * i // n


def _between(batches: Iterator[pa.RecordBatch], first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        begin, end = max(first - at, 0), len(batch) if last is None else min(last - at, len(batch))
        if begin < end:
            yield batch.slice(begin, end - begin)
        at += len(batch)
        if last is not None and at >= last:
            return


def answer_stream(
    model: Model,
    questions: Mapping[str, Any],
    source: BinaryIO,
    name: str,
    source_format: str,
    out: Writable,
    out_format: str,
    *,
    state: list[str],
    as_text: bool = False,
    progress: Progress = lambda done, total: None,
    **options: Any,
) -> int:
    """`answer_file` for streams that cannot be read twice: nothing is kept, and rows are written as they are answered.

    out: of a stream of JSON Lines whole lines are written at once.

    Raises as `answer_file`, but for UnfinishedError.
    """
    parse_json = options.pop("parse_json", False)
    as_lines = source_format == out_format == "jsonl"
    n_rows = 0
    keep_faulty = options.get("on_error") == "keep"
    with open_rows(source, name, source_format, as_lines=as_lines, as_text=as_text, keep_faulty=keep_faulty) as rows:
        states = _states(rows, state, _added(model, questions, options), as_lines, parse_json)
        reader = answered(model, questions, rows.schema, rows.batches, states, **options)

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal n_rows
            for batch in reader:
                yield batch
                n_rows += len(batch)
                progress(n_rows, rows.n_rows)

        write_rows(out, out_format, reader.schema, counted())
    return n_rows


def _added(model: Model, questions: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """The names of the answers' columns, but for that of errors, which may be there from an earlier run."""
    model.compile(questions)  # tells what is wrong with them by the place in the request
    return [name for name in answer_columns(questions, **options).schema.names if name != ERROR]


def _states(rows: Rows, names: list[str], added: list[str], as_lines: bool, parse_json: bool) -> States:
    if as_lines:
        return LineStates(names, added, parse_json=parse_json)
    columns = (names[0] if len(names) == 1 else names) if names else None
    found = StateColumns(rows.schema, columns, parse_json=parse_json)
    return FaultsOfLines(found) if keeps_faulty_lines(rows.schema) else found
