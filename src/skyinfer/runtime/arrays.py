"""Answers about many states as arrays, and batches of them computed by several threads at once, in order.

A batch is tokenized, run and scored by one thread. The core works without the GIL and so does the tokenizer for long
texts, so small models, whose passes are too short to be shared, use as many CPUs as there are batches under way. For a
model that shares its passes two batches are: one is tokenized while the other runs, or both run with half the threads.
"""

from __future__ import annotations

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
) -> AnswerArrays:
    """Answers about states that are all there. `CompiledQuestions.arrays` has the contract.

    `first`: the number of the first state in errors that are raised.
    """
    if on_error not in ("raise", "keep"):
        raise ValueError(f"on_error: expected 'raise' or 'keep', got {on_error!r}")
    n, shape = len(states), (len(states), prepared.n_options)
    checked_threads(threads)
    out = np.empty(shape, np.float32) if out is None else checked_out(out, shape)
    arrays = _empty(out, len(prepared.ids))
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
        _write(engine, prepared, read, arrays.rows(begin, end), temperatures, stopped)
        return errors

    errors: dict[int, RequestError] = {}
    try:
        with closing(in_order(answer, range(0, n, _STATES_AT_ONCE), threads or batches_at_once(engine))) as batches:
            for found in batches:
                errors.update(found)
    finally:
        stopped.set()
    return replace(arrays, errors=errors)


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
    whole_number(size, "size", 1)
    checked_threads(threads)
    numbers = count(0, size)
    left = iter(states)

    def answer(batch: tuple[int, list[Any]]) -> AnswerArrays:
        first, some = batch
        return answer_arrays(
            engine, prepared, some, temperature_clamp=temperature_clamp, on_error=on_error, threads=1, first=first
        )

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


def _empty(probabilities: NDArray[np.float32], n_questions: int) -> AnswerArrays:
    shape = (len(probabilities), n_questions)
    return AnswerArrays(
        probabilities,
        np.empty(shape, np.int32),
        np.empty(shape, np.float32),
        np.empty(shape, np.float32),
        np.empty(shape, np.bool_),
        {},
    )


def _write(
    engine: Engine,
    prepared: Prepared,
    read: SequenceOf[StateTokens | RequestError],
    arrays: AnswerArrays,
    temperatures: NDArray[np.float64],
    stopped: threading.Event,
) -> None:
    """The answers about tokenized states into arrays, until it is stopped.

    Raises:
        FormatError: a score is NaN or infinite, so the model's weights are faulty.
    """
    sound = [tokens for tokens in read if not isinstance(tokens, RequestError)]
    if len(sound) < len(read):
        kept = np.array([not isinstance(tokens, RequestError) for tokens in read])
        compact = _empty(np.empty((len(sound), prepared.n_options), np.float32), len(prepared.ids))
        _write(engine, prepared, sound, compact, temperatures, stopped)
        for name, nothing in (("probabilities", np.nan), ("labels", -1), ("values", np.nan), ("confidence", np.nan),
                              ("truncated", False)):  # fmt: skip
            array = getattr(arrays, name)
            array[~kept] = nothing
            array[kept] = getattr(compact, name)
        return
    for begin in range(0, len(sound), _STATES_OF_A_RUN):
        if stopped.is_set():
            return
        some, part = sound[begin : begin + _STATES_OF_A_RUN], arrays.rows(begin, begin + _STATES_OF_A_RUN)
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


def _numbered(error: RequestError, number: int) -> RequestError:
    """The refusal of a state that names it by its number."""
    return RequestError(("states", number, *error.loc[1:]), error.message)
