"""Tables, datasets and readers of Arrow, answered as a reader: input columns, and the answers' beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from ..compiled import CompiledQuestions, prepared_questions
from ..errors import RequestError
from ..model import Model
from ..runtime.arrays import (
    AnswerArrays,
    OnError,
    answer_arrays,
    batches_at_once,
    checked_on_error,
    in_order,
    repeats_of,
)
from ..runtime.cpus import checked_threads
from ..runtime.thresholds import Thresholds, thresholds_of
from ..schema import MinConfidence, Question, Questions, parse_questions
from ..values import encodable
from .columns import AnswerColumns, Probabilities
from .states import StateColumns

# Rows of a batch that comes out, and that one thread answers.
ROWS_AT_ONCE = 1024


def answer_rows(
    model: Model,
    questions: Questions,
    source: pa.RecordBatch | pa.Table | ds.Dataset | pa.RecordBatchReader,
    *,
    state: str | Sequence[str] | None = None,
    parse_json: bool = False,
    probabilities: Probabilities = "list",
    prefix: str = "",
    on_error: OnError = "raise",
    min_confidence: MinConfidence | None = None,
    threads: int | None = None,
) -> pa.RecordBatchReader:
    """Answers to the same questions about every row.

    Args:
        source: its columns come out again, in front of the answers'.
        state: the column whose value is a row's state, or the columns that become one object, in this order. Default:
            the column "state".
        parse_json: the state's text is JSON.
        probabilities: "list" for one column of fixed-size lists for each question, "columns" for one for each option.
        prefix: what the names of the answers' columns begin with.
        on_error: "raise" ends with the first faulty row; "keep" gives it null answers, and what is wrong with it in the
            column x_error.
        min_confidence: adds columns that say of which answers the probability is less, as in `Model.decide`.
        threads: batches that are computed at once, as for `CompiledQuestions.arrays`.

    Returns:
        A reader of batches of at most 1024 rows. Rows are read not much before they are answered.

    Raises:
        ColumnError: a column is missing, of a type that no state can hold, or of a name that an answer's has.
        RequestError: a question is faulty; or, when its batch is read, a row, which the path names: ("rows", number),
            counted from 0.
        TypeError: `source`, `state` or `prefix` is of another type.
        ValueError: `threads` is no number from 1 to 256, or `on_error` or `probabilities` none of its words.
    """
    schema, batches = _opened(source)
    return answered(
        model, questions, schema, batches, StateColumns(schema, state, parse_json=parse_json),
        probabilities=probabilities, prefix=prefix, on_error=on_error, min_confidence=min_confidence, threads=threads,
    )  # fmt: skip


def answer_columns(
    questions: Questions,
    *,
    probabilities: Probabilities = "list",
    prefix: str = "",
    on_error: OnError = "raise",
    min_confidence: MinConfidence | None = None,
    threads: int | None = None,
) -> AnswerColumns:
    """The columns that `answer_rows` adds. Raises as it does of these options."""
    return AnswerColumns(
        parse_questions(questions), prefix=prefix, probabilities=probabilities, with_errors=on_error == "keep",
        with_abstained=thresholds_of(min_confidence) is not None,
    )  # fmt: skip


class States(Protocol):
    """What gives the state of each row of a batch; in place of one that cannot be read a RequestError."""

    def states(self, batch: pa.RecordBatch) -> list[Any]: ...


def answered(
    model: Model,
    questions: Questions,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    states: States,
    *,
    probabilities: Probabilities = "list",
    prefix: str = "",
    on_error: OnError = "raise",
    min_confidence: MinConfidence | None = None,
    threads: int | None = None,
    first_row: int = 0,
) -> pa.RecordBatchReader:
    """`answer_rows` for batches of one schema and any way to states. `first_row`: the number of the first in errors."""
    compiled, thresholds = model.compile(questions), thresholds_of(min_confidence)
    prepared = prepared_questions(model.engine, questions)
    repeats = repeats_of(prepared)
    checked_threads(threads)
    checked_on_error(on_error)
    parsed = parse_questions(questions)
    columns = answer_columns(
        questions, probabilities=probabilities, prefix=prefix, on_error=on_error, min_confidence=min_confidence
    )
    joined = columns.joined(schema)

    def answer(numbered: tuple[int, pa.RecordBatch]) -> pa.RecordBatch:
        first, batch = numbered
        read = states.states(batch)
        not_json = {i: error for i, error in enumerate(read) if isinstance(error, RequestError)}
        sound = [None if i in not_json else value for i, value in enumerate(read)]
        arrays = answer_arrays(model.engine, prepared, sound, on_error="keep", threads=1, repeats=repeats)
        errors = {i: not_json.get(i, error) for i, error in arrays.errors.items()}
        # in a row an error is about its field, not about a state of many; Arrow carries the text, as UTF-8
        of_rows = {
            i: RequestError(
                tuple(
                    encodable(part) if isinstance(part, str) else part
                    for part in (error.loc if i in not_json else error.loc[2:])
                ),
                encodable(error.message),
            )
            for i, error in errors.items()
        }
        if errors and on_error == "raise":
            i = min(errors)
            raise RequestError(("rows", first_row + first + i, *of_rows[i].loc), of_rows[i].message)
        said = [str(of_rows[i]) if i in errors else None for i in range(len(read))] if errors else None
        below = None if thresholds is None else _abstained(compiled, parsed, sound, arrays, thresholds)
        return pa.record_batch([*batch.columns, *columns.arrays(arrays, said, below)], schema=joined)

    def done() -> Iterator[pa.RecordBatch]:
        at_once = threads or batches_at_once(model.engine)
        with closing(in_order(answer, _pieces(batches), at_once)) as found:
            yield from found

    return pa.RecordBatchReader.from_batches(joined, done())


def _abstained(
    compiled: CompiledQuestions,
    questions: Sequence[Question],
    states: Sequence[Any],
    arrays: AnswerArrays,
    thresholds: Thresholds,
) -> NDArray[np.bool_]:
    """bool [n_rows, n_questions]: which answers abstain, exactly those of `decide` with these thresholds.

    That compares in float64, so what lies within the rounding of float32 is answered again.
    """
    found = np.zeros(arrays.labels.shape, np.bool_)
    offsets, close = compiled.offsets, np.zeros(len(arrays), np.bool_)
    for i, question in enumerate(questions):
        answered = arrays.probabilities[:, offsets[i] : offsets[i + 1]].max(axis=1).astype(np.float64)
        least = thresholds.of(question.type, len(question.options))
        found[:, i] = answered < least
        close |= np.abs(answered - least) <= np.finfo(np.float32).eps
    for number in np.flatnonzero(close).tolist():  # of a faulty row, NaN is not close
        response = thresholds.mark(compiled(states[number]))
        found[number] = ["x_abstained" in answer for answer in response["answers"].values()]
    return found


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches cut into pieces, each with the number of its first row."""
    first = 0
    for batch in batches:
        for begin in range(0, len(batch), ROWS_AT_ONCE):
            piece = batch.slice(begin, ROWS_AT_ONCE)
            yield first + begin, piece
        first += len(batch)


def _opened(source: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    if isinstance(source, pa.RecordBatch):
        return source.schema, iter([source])
    if isinstance(source, pa.Table):
        return source.schema, iter(source.to_batches(ROWS_AT_ONCE))
    if isinstance(source, pa.RecordBatchReader):
        return source.schema, iter(source)
    if isinstance(source, ds.Dataset):
        # little ahead: else a whole row group of every file would be in memory
        scanner = source.scanner(batch_size=16 * ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)
        return scanner.projected_schema, scanner.to_batches()
    raise TypeError(f"source: expected a RecordBatch, Table, Dataset or RecordBatchReader of pyarrow, got "
                    f"{type(source).__name__}")  # fmt: skip
