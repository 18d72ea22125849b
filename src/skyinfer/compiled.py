"""Questions made ready once, for many states: only the state is tokenized in a call.

What `Model.decide` keeps in its cache, and what `Model.compile` gives to a loop.
"""

from __future__ import annotations

import marshal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from .core import border
from .errors import RequestError, warn
from .runtime.answers import check_scores, faulty_weights, in_option_order, response
from .schema import QUESTION_TYPES, Question, ignored_said, parse_questions
from .text.sequence import StateTokens

if TYPE_CHECKING:
    from .runtime.engine import Engine, Work
    from .schema import Questions, Response
    from .text.sequence import Sequence


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

    def __init__(self, engine: Engine, questions: list[Question]) -> None:
        """`questions` as `schema.parse_questions` gives them."""
        self._engine = engine
        self._questions = questions
        self._prefixes = [engine.builder.prefix(question) for question in self._questions]
        self._types = [QUESTION_TYPES.index(question.type) for question in self._questions]
        self._core_prefixes = engine.core_prefixes(self._prefixes)
        # states up to this long go uncut into every sequence
        self._room = min((prefix.max_tokens - len(prefix.ids) - 1 for prefix in self._prefixes), default=0)
        # nothing about how they are laid out has to be said in an answer
        self._as_usual = all(
            prefix.options_distinct == len(prefix.markers) and prefix.max_tokens <= engine.config.max_tokens
            for prefix in self._prefixes
        )
        self.ids = tuple(question.id for question in self._questions)
        self.offsets = np.cumsum([0, *(len(question.options) for question in self._questions)], dtype=np.int32)
        self.probabilities = np.zeros(self.offsets[-1], np.float32)
        self._stepper: border.CoreStepper | None = None
        self._making_stepper = threading.Lock()

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
        tokens = self.read(state)
        result = self.answers(tokens, self.scores(tokens), temperature_clamp)
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def many(self, states: Iterable[Any], *, temperature_clamp: bool | None = None) -> list[Response]:
        """Answers about each state, in order: bit by bit those of one call for each, in fewer forward passes.

        Raises:
            RequestError: as a call; its path then begins with "states" and the number of the faulty one. Or they are no
                list, but a text or an object.
            FormatError: as a call.
        """
        if isinstance(states, (str, bytes, Mapping)):
            raise RequestError(("states",), f"must be a list of states, not one {type(states).__name__}")
        if hasattr(states, "iterrows"):  # iterating a table of pandas gives the names of its columns
            raise RequestError(("states",), "must be a list of states, not a table; use its .to_dict('records')")
        read = [self._read(number, state) for number, state in enumerate(states)]
        rows = iter(self._engine.run([work for tokens in read for work in self.work(tokens)]))
        n = len(self._prefixes)
        return [self.answers(tokens, [next(rows).tolist() for _ in range(n)], temperature_clamp) for tokens in read]

    def logits(self, state: Any) -> dict[Any, np.ndarray]:
        """Raw scores by question id: float32 [n_options], in the order of the options.

        Raises:
            RequestError: as a call.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        rows = self.scores(self.read(state))
        for row in rows:
            check_scores(row)
        return {
            question.id: np.array(in_option_order(question, row), np.float32)
            for question, row in zip(self._questions, rows, strict=True)
        }

    def activations(self, state: Any) -> dict[str, np.ndarray]:
        """Every activation of one forward pass by name, float32 [rows, width]."""
        trace: dict[str, np.ndarray] = {}
        self._engine.run(self.work(self.read(state)), trace)
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
            TypeError: an id is no whole number.
            FormatError: as a call.
            RuntimeError: another thread is stepping this object.
        """
        if self._stepper is None:
            with self._making_stepper:
                self._stepper = self._stepper or self._engine.stepper(self._core_prefixes, self._questions)
        if not self._stepper.step(list(ids), keep_tail, self.probabilities):
            raise faulty_weights()
        return self.probabilities

    def sequences(self, state: Any) -> list[Sequence]:
        """What the model reads for each question."""
        return self._laid_out(self.read(state))

    # ---- in parts, for those who tokenize, compute and answer at different times

    def read(self, state: Any) -> StateTokens:
        """The state, tokenized; only a null one is looked at where there are no questions.

        Raises:
            RequestError: as a call.
        """
        if not self._prefixes and state is not None:
            return StateTokens([], False)
        return self._engine.builder.state(state)

    def n_tokens(self, tokens: StateTokens) -> int:
        """How many tokens the model reads for all questions together."""
        return self._core_prefixes.n_tokens(len(tokens.ids))

    def cut(self, tokens: StateTokens) -> Sequence | None:
        """The first question's sequence that has no room for the whole state, if there is one."""
        if len(tokens.ids) <= self._room:
            return None
        return next((found for found in self._laid_out(tokens) if found.truncated), None)

    def work(self, tokens: StateTokens) -> list[Work]:
        """What `Engine.run` takes for these questions about a state."""
        return [
            (found.ids, found.markers, kind) for found, kind in zip(self._laid_out(tokens), self._types, strict=True)
        ]

    def scores(self, tokens: StateTokens) -> list[list[float]]:
        """What `Engine.run` gives for `work`, here and now."""
        return self._engine.run_prefixes(self._core_prefixes, tokens)

    def answers(self, tokens: StateTokens, rows: list[list[float]], temperature_clamp: bool | None = None) -> Response:
        """The response, from a question's scores in each row.

        Raises:
            FormatError: as a call.
        """
        sequences: list[Sequence] | list[None] = [None] * len(rows)  # nothing to say of how they were laid out
        if len(tokens.ids) > self._room or not self._as_usual:
            sequences = self._laid_out(tokens)
        return response(
            self._engine.config.name,
            self._questions,
            sequences,
            rows,
            self._engine.temperatures(temperature_clamp),
            input_tokens=self.n_tokens(tokens),
        )

    def _read(self, number: int, state: Any) -> StateTokens:
        """`read`, but a refusal names the state by its number."""
        try:
            return self.read(state)
        except RequestError as error:
            raise RequestError(("states", number, *error.loc[1:]), error.message) from error

    def _laid_out(self, tokens: StateTokens) -> list[Sequence]:
        return [self._engine.builder.assemble(prefix, tokens) for prefix in self._prefixes]


def compile_questions(engine: Engine, questions: Questions) -> CompiledQuestions:
    """Questions as a caller in Python gives them, with a warning where they have fields that mean nothing.

    Raises:
        RequestError: they cannot be asked.
    """
    parsed = parse_questions(questions)
    for question in parsed:
        if question.ignored:
            warn(ignored_said(question.id, question.ignored))
    return CompiledQuestions(engine, parsed)


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
        """The questions ready to be asked, from the cache where they are in it.

        Raises:
            RequestError: they cannot be asked.
        """
        try:
            key = marshal.dumps(
                cast(Any, questions), 2
            )  # version 2 writes no references, so equal values have equal bytes
        except ValueError:
            return compile_questions(self._engine, questions)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        if len(key) > self._key_bytes:
            return compile_questions(self._engine, questions)
        same = marshal.loads(key)  # the key's questions, even where another thread changes the caller's meanwhile
        if not _is_plain(same):
            return compile_questions(self._engine, questions)
        made = compile_questions(self._engine, same)
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
