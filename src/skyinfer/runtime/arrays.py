"""Answers about many states as arrays, and batches of them computed by several threads at once, in order.

A batch is tokenized, run and scored by one thread. The core works without the GIL and so does the tokenizer for long
texts, so small models, whose passes are too short to be shared, use as many CPUs as there are batches under way. For a
model that shares its passes two batches are: one is tokenized while the other runs, or both run with half the threads.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, count, islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from ..errors import RequestError
from ..values import whole_number
from .answers import faulty_weights
from .cpus import available_cpus, checked_threads
from .repeats import Repeats, key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..text.sequence import StateTokens
    from .engine import Engine
    from .prepared import Prepared

OnError = Literal["raise", "keep"]

# States that one thread takes at a time: long enough that a thread seldom waits for the GIL, short enough that a list
# of some hundreds is divided.
_STATES_AT_ONCE = 64
# States of one call of the core, which does not hear of Ctrl-C meanwhile. More in one pass are no faster.
_STATES_OF_A_RUN = 16

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, eq=False)
class AnswerArrays:
    """Answers to questions about n states, in order.

    Attributes:
        probabilities: float32 [n, n_options of all questions], as `CompiledQuestions.step` writes them.
        labels: int32 [n, n_questions], the number of the most probable option of each question, of equal ones the
            first; of a noul 1 where it is more probably true than not.
        values: float32 [n, n_questions], the number that an answer gives: of a choice the label's probability, of a
            score the mean level (`score`), of a noul the probability that it is true (`noul`).
        confidence: float32 [n, n_questions], as an answer's; a noul's, which has none there, is that of a choice
            between two.
        truncated: bool [n, n_questions], whether the model did not see the whole state.
        errors: what was wrong with faulty states, by their number. Their rows are NaN, -1 and False.
    """

    probabilities: NDArray[np.float32]
    labels: NDArray[np.int32]
    values: NDArray[np.float32]
    confidence: NDArray[np.float32]
    truncated: NDArray[np.bool_]
    errors: Mapping[int, RequestError]

    def __len__(self) -> int:
        return len(self.probabilities)

    def rows(self, begin: int, end: int) -> AnswerArrays:
        """The states from number `begin` up to `end`: views of the same arrays."""
        kept = slice(begin, end)
        return AnswerArrays(
            self.probabilities[kept],
            self.labels[kept],
            self.values[kept],
            self.confidence[kept],
            self.truncated[kept],
            {number - begin: error for number, error in self.errors.items() if begin <= number < end},
        )


def answer_arrays(
    engine: Engine,
    prepared: Prepared,
    states: SequenceOf[Any],
    *,
    out: NDArray[np.float32] | None = None,
    temperature_clamp: bool | None = None,
    on_error: OnError = "raise",
    threads: int | None = None,
    first: int = 0,
    repeats: Repeats | None = None,
) -> AnswerArrays:
    """Answers about states that are all there. `CompiledQuestions.arrays` has the contract.

    first: the number of the first state in errors that are raised.
    repeats: of calls with the same questions and temperatures, what `repeats_of` gives; by default of this call alone.
    """
    checked_on_error(on_error)
    n, shape = len(states), (len(states), prepared.n_options)
    checked_threads(threads)
    out = np.empty(shape, np.float32) if out is None else checked_out(out, shape)
    arrays = empty_arrays(n, prepared, out)
    if repeats is None:
        repeats = repeats_of(prepared, n)
    temperatures = prepared.temperatures(temperature_clamp)
    stopped = threading.Event()

    def answer(begin: int) -> dict[int, RequestError]:
        end = min(begin + _STATES_AT_ONCE, n)
        read = prepared.read_many(states[begin:end])
        errors = {
            begin + i: _numbered(error, first + begin + i)
            for i, error in enumerate(read)
            if isinstance(error, RequestError)
        }
        if errors and on_error == "raise":
            raise errors[min(errors)]
        _write(engine, prepared, read, arrays.rows(begin, end), temperatures, stopped, repeats)
        return errors

    errors: dict[int, RequestError] = {}
    try:
        with closing(in_order(answer, range(0, n, _STATES_AT_ONCE), threads or batches_at_once(engine))) as batches:
            for found in batches:
                errors.update(found)
    finally:
        stopped.set()
    return replace(arrays, errors=errors)


def checked_on_error(on_error: Any) -> None:
    """Refuses what says nothing about faulty states.

    Raises:
        ValueError: it is neither "raise" nor "keep".
    """
    if on_error not in ("raise", "keep"):
        raise ValueError(f"on_error: expected 'raise' or 'keep', got {on_error!r}")


def checked_out(out: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An array of the caller's to write to, or what shares its memory; contiguous float32 of a shape.

    Raises:
        TypeError: it is no array, and no buffer.
        ValueError: it is of another type or shape, not contiguous, or read-only.
    """
    wanted = f"out: expected contiguous float32 {list(shape)}"
    try:
        array: np.ndarray = out if isinstance(out, np.ndarray) else np.asarray(memoryview(out))
    except TypeError:
        raise TypeError(f"{wanted}, got {type(out).__name__}") from None
    if array.shape != shape or array.dtype != np.float32:
        raise ValueError(f"{wanted}, got {array.dtype} {list(array.shape)}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{wanted}, got one that is {'read-only' if array.flags.c_contiguous else 'not contiguous'}")
    return array


def answer_batches(
    engine: Engine,
    prepared: Prepared,
    states: Iterable[Any],
    size: int,
    *,
    temperature_clamp: bool | None = None,
    on_error: OnError = "raise",
    threads: int | None = None,
) -> Generator[AnswerArrays, None, None]:
    """Answers about states as they come. `CompiledQuestions.batches` has the contract."""
    size = min(whole_number(size, "size", 1), sys.maxsize)
    checked_threads(threads)
    checked_on_error(on_error)
    numbers, repeats = count(0, size), repeats_of(prepared)
    left = iter(states)

    def answer(batch: tuple[int, list[Any]]) -> AnswerArrays:
        first, some = batch
        return answer_arrays(
            engine, prepared, some, temperature_clamp=temperature_clamp, on_error=on_error, threads=1, first=first,
            repeats=repeats,
        )  # fmt: skip

    batches = iter(lambda: (next(numbers), list(islice(left, size))), None)
    return in_order(answer, takewhile(lambda batch: batch[1], batches), threads or batches_at_once(engine))


def in_order(
    work: Callable[[_In], _Out], items: Iterable[_In], threads: int, stop: Callable[[], None] | None = None
) -> Generator[_Out, None, None]:
    """`work` of each item, in order, several at a time; no more than two items beyond those are taken from `items`.

    Items are taken by the caller's thread. What `work` raises comes out in the place of its item, and ends the rest;
    so does closing the generator. The end waits for what is under way: `stop` is called before, to hasten that.
    """
    left = iter(items)
    ahead = list(islice(left, 2))
    if threads == 1 or len(ahead) < 2:  # nothing to do at once
        yield from map(work, chain(ahead, left))
        return
    under_way: deque[Future[_Out]] = deque()
    with ThreadPoolExecutor(threads, "skyinfer-batch") as pool:
        try:
            for item in chain(ahead, left):
                under_way.append(pool.submit(work, item))
                if len(under_way) > threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if stop is not None:
                stop()


def batches_at_once(engine: Engine) -> int:
    """How many batches are best computed at the same time."""
    return available_cpus() if engine.threads == 1 else min(2, available_cpus())


def columns_of(arrays: AnswerArrays) -> tuple[NDArray[Any], ...]:
    """The arrays, each [n, ..]."""
    return arrays.probabilities, arrays.labels, arrays.values, arrays.confidence, arrays.truncated


def empty_arrays(n: int, prepared: Prepared, probabilities: NDArray[np.float32] | None = None) -> AnswerArrays:
    """Arrays for answers to questions about n states, not written yet."""
    shape = (n, len(prepared.ids))
    return AnswerArrays(
        np.empty((n, prepared.n_options), np.float32) if probabilities is None else probabilities,
        np.empty(shape, np.int32),
        np.empty(shape, np.float32),
        np.empty(shape, np.float32),
        np.empty(shape, np.bool_),
        {},
    )


def repeats_of(prepared: Prepared, most: int | None = None) -> Repeats:
    """What remembers answers to these questions from call to call, about so many states at most."""
    return Repeats(columns_of(empty_arrays(0, prepared)), most)


def _write(
    engine: Engine,
    prepared: Prepared,
    read: SequenceOf[StateTokens | RequestError],
    arrays: AnswerArrays,
    temperatures: NDArray[np.float64],
    stopped: threading.Event,
    repeats: Repeats,
) -> None:
    """The answers about tokenized states into arrays, until it is stopped: each different state is computed once.

    Raises:
        FormatError: a score is NaN or infinite, so the model's weights are faulty.
    """
    columns = columns_of(arrays)
    rows: dict[bytes, list[int]] = {}  # of each different state
    states: list[StateTokens] = []
    faulty = []
    for i, tokens in enumerate(read):
        if isinstance(tokens, RequestError):
            faulty.append(i)
            continue
        own = rows.setdefault(key_of(tokens), [])
        if not own:
            states.append(tokens)
        own.append(i)
    if faulty:
        for array, nothing in zip(columns, (np.nan, -1, np.nan, np.nan, False), strict=True):
            array[faulty] = nothing
    keys, firsts = list(rows), [own[0] for own in rows.values()]
    missing = repeats.take(keys, firsts, columns)
    computed = arrays if len(missing) == len(read) else empty_arrays(len(missing), prepared)
    if not _compute(engine, prepared, [states[i] for i in missing], computed, temperatures, stopped):
        return
    repeats.put([keys[i] for i in missing], columns_of(computed))
    if computed is not arrays:
        own_rows = [firsts[i] for i in missing]
        for array, some in zip(columns, columns_of(computed), strict=True):
            array[own_rows] = some
    if len(keys) + len(faulty) < len(read):
        again = [i for own in rows.values() for i in own[1:]]
        of = [own[0] for own in rows.values() for _ in own[1:]]
        for array in columns:
            array[again] = array[of]


def _compute(
    engine: Engine,
    prepared: Prepared,
    states: SequenceOf[StateTokens],
    arrays: AnswerArrays,
    temperatures: NDArray[np.float64],
    stopped: threading.Event,
) -> bool:
    """The answers about states, one by one; False where it was stopped before. Raises as `_write`."""
    for begin in range(0, len(states), _STATES_OF_A_RUN):
        if stopped.is_set():
            return False
        some, part = states[begin : begin + _STATES_OF_A_RUN], arrays.rows(begin, begin + _STATES_OF_A_RUN)
        logits = engine.run([prepared.ask(tokens) for tokens in some])
        n_done = prepared.core.write_answers(
            logits.reshape(part.probabilities.shape),
            np.array([len(tokens.ids) for tokens in some], np.int64),
            temperatures,
            part.probabilities,
            part.labels,
            part.values,
            part.confidence,
            part.truncated.view(np.uint8),
        )
        if n_done < len(some):
            raise faulty_weights()
    return True


def _numbered(error: RequestError, number: int) -> RequestError:
    """The refusal of a state that names it by its number."""
    return RequestError(("states", number, *error.loc[1:]), error.message)
