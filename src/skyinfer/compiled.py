"""Questions made ready once, for many states: only the state is tokenized in a call.

What users see of `runtime.prepared.Prepared`.
"""

from __future__ import annotations

import marshal
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from .core import border
from .errors import RequestError, warn
from .runtime.answers import faulty_weights
from .runtime.arrays import AnswerArrays, OnError, answer_arrays, answer_batches, checked_out
from .runtime.thresholds import thresholds_of
from .runtime.windows import long_response, scan_of, windows_of
from .schema import Question, ignored_said, parse_questions
from .values import kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .runtime.engine import Engine
    from .runtime.prepared import Prepared
    from .schema import MinConfidence, Questions, Response
    from .text.sequence import Sequence, StateTokens


class CompiledQuestions:
    """Typed questions, tokenized for one model. Made by `Model.compile`.

    Calling it, `many`, `step_many` and `logits` are safe from any number of threads. `step` and `run_tokens` use this
    object's own buffers: one thread at a time, one compiled object for each thread.

    Attributes:
        ids: question ids, in the order received.
        offsets: int32 [n_questions + 1]; question i's options are ``probabilities[offsets[i]:offsets[i + 1]]``.
        probabilities: float32 [n_options of all questions], what `step` wrote last, in the order of the options; a noul
            has two, (false, true).
    """

    if TYPE_CHECKING:
        ids: tuple[Any, ...]
        offsets: NDArray[np.int32]
        probabilities: NDArray[np.float32]
        _engine: Engine
        _prepared: Prepared
        _stepper: border.CoreStepper | None
        _making_stepper: threading.Lock

    def __init__(self) -> None:
        """Made by `Model.compile` alone."""
        raise TypeError("a skyinfer.CompiledQuestions is made by the compile method of a model")

    def __dir__(self) -> list[str]:
        return public_names(self)

    def __repr__(self) -> str:
        return f"<skyinfer.CompiledQuestions {list(self.ids)!r} for {self._engine.config.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "skyinfer.CompiledQuestions cannot be pickled or copied; load the model in each process and compile there"
        )

    def __call__(
        self,
        state: Any,
        *,
        temperature_clamp: bool | None = None,
        timing: bool = False,
        min_confidence: MinConfidence | None = None,
    ) -> Response:
        """Answers about one state, exactly as `Model.decide` gives them.

        Raises:
            RequestError: the state is null, or not text and not JSON; or `min_confidence` is no number from 0 to 1.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        start = time.perf_counter_ns()
        thresholds = thresholds_of(min_confidence)
        result = decided(self._engine, self._prepared, state, temperature_clamp)
        if thresholds is not None:
            thresholds.mark(result)
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def many(
        self,
        states: Iterable[Any],
        *,
        temperature_clamp: bool | None = None,
        min_confidence: MinConfidence | None = None,
    ) -> list[Response]:
        """Answers about each state, in order: bit by bit those of one call for each, in fewer forward passes.

        Raises:
            RequestError: as a call; its path then begins with "states" and the number of the faulty one. Or they are no
                list, but a text or an object.
            FormatError: as a call.
        """
        thresholds = thresholds_of(min_confidence)
        read, logits = _run(self, states)
        found = [
            self._prepared.answers(tokens, row, temperature_clamp) for tokens, row in zip(read, logits, strict=True)
        ]
        return found if thresholds is None else list(map(thresholds.mark, found))

    def long(
        self,
        state: Any,
        window: int | None = None,
        stride: int | None = None,
        *,
        temperature_clamp: bool | None = None,
        timing: bool = False,
    ) -> Response:
        """Answers about a state of any length, read in windows, exactly as `Model.decide_long` gives them.

        Raises as `Model.decide_long`.
        """
        start, prepared = time.perf_counter_ns(), self._prepared
        tokens = prepared.read(state)
        scan = scan_of(prepared, len(tokens.ids), window, stride)
        windows = windows_of(prepared, tokens, scan)
        logits = self._engine.run([prepared.ask(one) for one in windows])
        result = long_response(prepared, scan, windows, logits, temperature_clamp)
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def step_many(self, states: Iterable[Any], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """What `step` writes, for each state: float32 [n_states, n_options of all questions].

        The `probabilities` of `arrays`, which has the arguments and errors.
        """
        return self.arrays(states, out).probabilities

    def arrays(
        self,
        states: Iterable[Any],
        out: NDArray[np.float32] | None = None,
        *,
        temperature_clamp: bool | None = None,
        on_error: OnError = "raise",
        threads: int | None = None,
    ) -> AnswerArrays:
        """Answers about many states as arrays and not as dicts: probabilities, labels, values, confidence, truncation.

        The probabilities have the bits of `step`, and are those of a call rounded to float32, for each state. States
        are computed in batches on all CPUs that the process may use. Safe from any number of threads, as long as no
        two write to the same `out`.

        Args:
            states: as for `many`.
            out: float32 [n_states, n_options of all questions], contiguous, for the probabilities; by default a new
                array.
            temperature_clamp: overrides what the model was loaded with.
            on_error: what becomes of a state that cannot be answered: "raise", or "keep" for a row without answers
                and its error in `errors`.
            threads: batches that are computed at once. Default: the CPUs for a model whose passes are short, two for
                one whose passes are shared by threads.

        Raises:
            RequestError: as a call; its path then begins with "states" and the number of the first faulty one. Or the
                states are no list, but a text, an object or a table.
            FormatError: as a call.
            ValueError: `out` is of another shape or type, or not contiguous.
        """
        listed = states if isinstance(states, list) else list(_checked_states(states))
        return answer_arrays(
            self._engine, self._prepared, listed, out=out, temperature_clamp=temperature_clamp, on_error=on_error,
            threads=threads,
        )  # fmt: skip

    def batches(
        self,
        states: Iterable[Any],
        size: int = 1024,
        *,
        temperature_clamp: bool | None = None,
        on_error: OnError = "raise",
        threads: int | None = None,
    ) -> Generator[AnswerArrays, None, None]:
        """`arrays` of `size` states after `size` states, as they come: memory does not grow with their number.

        A state is taken from `states` not much before its turn, by the thread that asks for the next batch. Of
        `errors`, numbers count from the beginning of the batch; those in messages from the first state of all.

        Raises:
            RequestError, FormatError: as `arrays`, when the batch with the fault is asked for.
            ValueError: `size` is no whole number, or less than 1.
        """
        return answer_batches(
            self._engine, self._prepared, _checked_states(states), size, temperature_clamp=temperature_clamp,
            on_error=on_error, threads=threads,
        )  # fmt: skip

    def logits(self, state: Any) -> dict[Any, NDArray[np.float32]]:
        """Raw scores by question id: float32 [n_options], in the order of the options.

        Raises:
            RequestError: as a call.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        return self._prepared.logits_by_id(self._engine.run([self._prepared.ask(self._prepared.read(state))]))

    def activations(self, state: Any) -> dict[str, NDArray[np.float32]]:
        """Every activation of one forward pass by name, float32 [rows, width]."""
        trace: dict[str, NDArray[np.float32]] = {}
        self._engine.run([self._prepared.ask(self._prepared.read(state))], trace=trace)
        return trace

    def step(self, state: Any, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Writes every option's probability and gives the array that was written. Builds no answers.

        Args:
            state: as for a call.
            out: float32 [n_options of all questions]; by default `probabilities`.

        Raises:
            RequestError, FormatError: as a call.
            RuntimeError: another thread is stepping this object.
            TypeError, ValueError: `out` is no such array, or cannot be written.
        """
        tokens = self._prepared.read(state)
        return _stepped(self, tokens.ids, tokens.keep_tail, out)

    def run_tokens(
        self, ids: Iterable[int], *, keep_tail: bool = False, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """`step` for a state that is tokenized already.

        Args:
            ids: token ids of the state's text, without special tokens; an int32 array is not copied.
            keep_tail: where the state does not fit, keep its end (as for a list of turns) and not its beginning.
            out: as for `step`.

        Raises:
            ValueError: an id is outside the vocabulary, or `out` is of another size.
            TypeError: an id is no whole number.
            FormatError: as a call.
            RuntimeError: another thread is stepping this object.
        """
        try:
            read = border.token_ids(ids)
        except TypeError as error:
            raise TypeError(f"ids: expected token ids, which are whole numbers: {error}") from None
        return _stepped(self, read, keep_tail, out)

    def sequences(self, state: Any) -> list[Sequence]:
        """What the model reads for each question."""
        return self._prepared.sequences(self._prepared.read(state))


def compiled_questions(engine: Engine, prepared: Prepared) -> CompiledQuestions:
    """Prepared questions as users see them."""
    compiled = object.__new__(CompiledQuestions)
    compiled._engine, compiled._prepared = engine, prepared
    compiled.ids = prepared.ids
    compiled.offsets = prepared.offsets.copy()
    compiled.probabilities = np.zeros(prepared.n_options, np.float32)
    compiled._stepper = None
    compiled._making_stepper = threading.Lock()
    return compiled


def public_names(value: object) -> list[str]:
    """What `dir` shows of an object whose private names mean nothing to its users."""
    return sorted(name for name in object.__dir__(value) if name.startswith("__") or not name.startswith("_"))


def _stepped(
    compiled: CompiledQuestions, ids: NDArray[np.int32], keep_tail: bool, out: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    if compiled._stepper is None:
        with compiled._making_stepper:
            compiled._stepper = compiled._stepper or compiled._engine.stepper(compiled._prepared)
    if out is None:
        out = compiled.probabilities
    else:
        checked_out(out, compiled.probabilities.shape)
    with border.DefaultFloatMode():  # for the softmax
        finite = compiled._stepper.step(ids, keep_tail, out)
    if not finite:
        raise faulty_weights()
    return out


def _run(compiled: CompiledQuestions, states: Iterable[Any]) -> tuple[list[StateTokens], NDArray[np.float32]]:
    """The states, tokenized, and the scores of all questions about each: float32 [n_states, n_options]."""
    prepared = compiled._prepared
    read = [_read(prepared, number, state) for number, state in enumerate(_checked_states(states))]
    logits = compiled._engine.run([prepared.ask(tokens) for tokens in read])
    return read, logits.reshape(len(read), prepared.n_options)


def _checked_states(states: Iterable[Any]) -> Iterable[Any]:
    """The states, unless they are one value that could be taken for many."""
    if isinstance(states, (str, bytes, Mapping)):
        raise RequestError(("states",), f"must be a list of states, not one {type(states).__name__}")
    if not isinstance(states, Iterable):
        raise RequestError(("states",), f"must be a list of states, not {kind(states)}")
    if hasattr(states, "iterrows"):  # iterating a table of pandas gives the names of its columns
        raise RequestError(("states",), "must be a list of states, not a table; use its .to_dict('records')")
    return states


def _read(prepared: Prepared, number: int, state: Any) -> StateTokens:
    """A state tokenized; a refusal names it by its number."""
    try:
        return prepared.read(state)
    except RequestError as error:
        raise RequestError(("states", number, *error.loc[1:]), error.message) from error


def decided(engine: Engine, prepared: Prepared, state: Any, temperature_clamp: bool | None) -> Response:
    """The answers to prepared questions about one state. Raises as `Model.decide`."""
    tokens = prepared.read(state)
    return prepared.answers(tokens, engine.run([prepared.ask(tokens)]), temperature_clamp)


def prepared_questions(engine: Engine, questions: Questions) -> Prepared:
    """Questions as in a request, from the engine's cache where they were seen lately.

    The first time there is a warning where they have fields that mean nothing.

    The key is the questions' value in full (``marshal``, which tells 1 from 1.0 and True and keeps the order), so a
    dict that was changed since the last call is another key. Only plain JSON types are kept: equal bytes then mean
    equal text.

    Raises:
        RequestError: as `Model.decide`.
    """
    try:
        # version 2 writes no references, so equal values have equal bytes
        value = marshal.dumps(cast(Any, questions), 2)
    except ValueError:
        return engine.prepare(_parsed(questions))

    def parsed() -> list[Question]:
        same = marshal.loads(value)  # the key's questions, even where another thread changes the caller's meanwhile
        if not _is_plain(same):
            raise _NotPlainError
        return _parsed(same)

    try:
        return engine.prepared(b"marshal:" + value, parsed)
    except _NotPlainError:
        return engine.prepare(_parsed(questions))


def _parsed(questions: Questions) -> list[Question]:
    parsed = parse_questions(questions)
    for question in parsed:
        if question.ignored:
            warn(ignored_said(question.id, question.ignored))
    return parsed


class _NotPlainError(Exception):
    pass


_LEAVES = frozenset({str, int, float, bool, type(None)})


def _is_plain(value: Any) -> bool:
    """Whether a value is made of JSON's types and nothing else; a subclass of one is something else."""
    left = [value]  # not by recursion: a request may be nested more deeply than Python's stack
    while left:
        part = left.pop()
        if type(part) is dict:
            if not _LEAVES.issuperset(map(type, part)):
                return False
            left += part.values()
        elif type(part) is list:
            left += part
        elif type(part) not in _LEAVES:
            return False
    return True
