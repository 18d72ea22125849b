"""Questions made ready once, for many states: only the state is tokenized in a call.

What `Model.decide` keeps in its cache, and what `Model.compile` gives to a loop.
"""

from __future__ import annotations

import marshal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _core
from .answer import check_scores, in_option_order, probabilities, response
from .errors import FormatError, RequestError
from .schema import QUESTION_TYPES, Question, parse_questions
from .sequence import StateTokens

if TYPE_CHECKING:
    from .engine import Engine, Work
    from .schema import Questions, Response
    from .sequence import Sequence


class CompiledQuestions:
    """Typed questions, tokenized for one model. Made by `Model.compile`.

    Calling it, `many` and `logits` are safe from any number of threads. `step` and `run_tokens` write into this
    object's own array: one thread at a time, one compiled object for each thread.

    Attributes:
        ids: question ids, in the order received.
        offsets: int32 [n_questions + 1]; question i's options are ``probabilities[offsets[i]:offsets[i + 1]]``.
        probabilities: float32 [n_options of all questions], what `step` wrote last, in the order of the options; a noul
            has two, (false, true).
    """

    def __init__(self, engine: Engine, questions: Questions, parsed: list[Question] | None = None) -> None:
        """`parsed` are the questions where the caller has parsed them already; `questions` is not looked at then."""
        self._engine = engine
        self._questions = parse_questions(questions) if parsed is None else parsed
        self._heads = [engine.builder.head(question) for question in self._questions]
        self._types = [QUESTION_TYPES.index(question.type) for question in self._questions]
        self.ids = tuple(question.id for question in self._questions)
        self.offsets = np.cumsum([0, *(len(question.options) for question in self._questions)], dtype=np.int32)
        self.probabilities = np.zeros(self.offsets[-1], np.float32)
        self._stepper: _core.CoreStepper | None = None

    def __repr__(self) -> str:
        return f"<skyinfer.CompiledQuestions {list(self.ids)!r} for {self._engine.config.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "skyinfer.CompiledQuestions cannot be pickled or copied; load the model in each process and compile there"
        )

    def __call__(self, state: Any, *, temperature_clamp: bool | None = None, timing: bool = False) -> Response:
        """Answers about one state, exactly as `Model.decide` gives them.

        Raises:
            RequestError: the state is null, or not text and not JSON.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        start = time.perf_counter_ns()
        sequences = self.sequences(state)
        result = self.response(sequences, self._engine.run(self.work(sequences)), temperature_clamp)
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def many(self, states: Iterable[Any], *, temperature_clamp: bool | None = None) -> list[Response]:
        """Answers about each state, in order: bit by bit those of one call for each, in fewer forward passes.

        Raises:
            RequestError: as a call; its path then begins with "states" and the number of the faulty one.
            FormatError: as a call.
        """
        by_state = [self._sequences_of(number, state) for number, state in enumerate(states)]
        rows = iter(self._engine.run([work for sequences in by_state for work in self.work(sequences)]))
        return [self.response(some, [next(rows) for _ in some], temperature_clamp) for some in by_state]

    def logits(self, state: Any) -> dict[Any, np.ndarray]:
        """Raw scores by question id: float32 [n_options], in the order of the options.

        Raises:
            RequestError: as a call.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        rows = self._engine.run(self.work(self.sequences(state)))
        for row in rows:
            check_scores(row.tolist())
        return {
            question.id: np.array(in_option_order(question, row), np.float32)
            for question, row in zip(self._questions, rows, strict=True)
        }

    def activations(self, state: Any) -> dict[str, np.ndarray]:
        """Every activation of one forward pass by name, float32 [rows, width]."""
        trace: dict[str, np.ndarray] = {}
        self._engine.run(self.work(self.sequences(state)), trace)
        return trace

    def step(self, state: Any) -> np.ndarray:
        """Writes every option's probability into `probabilities` and gives that array. Builds no answers.

        Raises:
            RequestError, FormatError: as a call.
            RuntimeError: another thread is stepping this object.
        """
        tokens = self._engine.builder.state(state)
        return self.run_tokens(tokens.ids, keep_tail=tokens.keep_tail)

    def run_tokens(self, ids: SequenceOf[int], *, keep_tail: bool = False) -> np.ndarray:
        """`step` for a state that is tokenized already.

        Args:
            ids: token ids of the state's text, without special tokens.
            keep_tail: where the state does not fit, keep its end (as for a list of turns) and not its beginning.

        Raises:
            ValueError: an id is outside the vocabulary.
            FormatError: as a call.
            RuntimeError: another thread is stepping this object.
        """
        if any(head.max_tokens > self._engine.config.max_tokens for head in self._heads):
            return self._run_grown(StateTokens(list(ids), keep_tail))
        if self._stepper is None:
            self._stepper = self._make_stepper()
        with self._engine.share_of_threads() as n_threads:
            finite = self._stepper.step(list(ids), keep_tail, self.probabilities, n_threads)
        if not finite:
            raise FormatError("the model's scores are not finite: its weights are faulty")
        return self.probabilities

    def _run_grown(self, state: StateTokens) -> np.ndarray:
        """`run_tokens` where a sequence is longer than those that a stepper lays out."""
        sequences = [self._engine.builder.assemble(head, state) for head in self._heads]
        rows = self._engine.run(self.work(sequences))
        temperatures = self._engine.temperatures()
        for i, (question, row) in enumerate(zip(self._questions, rows, strict=True)):
            p = probabilities(row.tolist(), temperatures.of(question.type, len(row)))
            self.probabilities[self.offsets[i] : self.offsets[i + 1]] = in_option_order(question, p)
        return self.probabilities

    def sequences(self, state: Any) -> list[Sequence]:
        """What the model reads for each question."""
        return self._engine.builder.build(state, self._heads)

    def _sequences_of(self, number: int, state: Any) -> list[Sequence]:
        """`sequences`, but a refusal names the state by its number."""
        try:
            return self.sequences(state)
        except RequestError as error:
            raise RequestError(("states", number, *error.loc[1:]), error.message) from error

    def work(self, sequences: list[Sequence]) -> list[Work]:
        """What the engine runs for `sequences`, those of one state."""
        return [(found.ids, found.markers, kind) for found, kind in zip(sequences, self._types, strict=True)]

    def response(self, sequences: list[Sequence], rows: list[np.ndarray], temperature_clamp: bool | None) -> Response:
        """The answers, from what the engine gave for `work(sequences)`."""
        temperatures = self._engine.temperatures(temperature_clamp)
        return response(
            self._engine.config.name, self._questions, sequences, (row.tolist() for row in rows), temperatures
        )

    def _make_stepper(self) -> _core.CoreStepper:
        temperatures = self._engine.temperatures()
        return _core.CoreStepper(
            self._engine.core,
            [
                (
                    head.ids,
                    head.markers,
                    question_type,
                    temperatures.of(head.question.type, len(head.markers)),
                    head.question.option_order or list(range(len(head.markers))),
                )
                for head, question_type in zip(self._heads, self._types, strict=True)
            ],
            max_tokens=self._engine.config.max_tokens,
            sep_id=self._engine.builder.sep_id,
            n_threads=self._engine.threads,
        )


class QuestionCache:
    """Recently seen questions, compiled; safe to share between threads.

    The key is the questions' value in full (``marshal``, which tells 1 from 1.0 and True and keeps the order), so a
    dict that was changed since the last call is another key. Only plain JSON types are kept: equal bytes then mean
    equal text.
    """

    def __init__(self, engine: Engine, entries: int, key_bytes: int) -> None:
        """Keeps at most `entries` question sets whose keys are at most `key_bytes` long each."""
        self._engine = engine
        self._entries, self._key_bytes = entries, key_bytes
        self._kept: OrderedDict[bytes, CompiledQuestions] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, questions: Questions) -> CompiledQuestions:
        try:
            key = marshal.dumps(questions, 2)  # version 2 writes no references, so equal values have equal bytes
        except ValueError:
            return CompiledQuestions(self._engine, questions)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = CompiledQuestions(self._engine, questions)
        if len(key) <= self._key_bytes and _is_plain(questions):
            with self._lock:
                self._kept[key] = made
                if len(self._kept) > self._entries:
                    self._kept.popitem(last=False)
        return made


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
