"""Questions made ready for one model: their prefixes in the core, and answers from scores; and a cache of them.

An engine makes and keeps them (engine.py), and all that answers shares them: `decide`, compiled questions, the server.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import border
from ..errors import RequestError
from ..schema import Question
from ..text.sequence import SequenceBuilder, StateTokens
from .answers import faulty_weights, response

if TYPE_CHECKING:
    from ..core.border import Ask, CoreModel
    from ..files.temperatures import Temperatures
    from ..schema import Response
    from ..text.sequence import Sequence

# What a question and an option take beside their texts and tokens: objects of Python.
_QUESTION_BYTES, _OPTION_BYTES = 1500, 250


class Prepared:
    """Typed questions, tokenized for one model. Immutable; safe to share between threads.

    Attributes:
        ids: question ids, in the order received.
        questions: the questions themselves.
        core: their prefixes in the core.
        offsets: int32 [n_questions + 1]; question i's options are offsets[i] to offsets[i + 1] of all.
        n_options: of all questions; as many scores come out of the core.
        n_bytes: about how much memory they take.
        room: states of up to so many tokens go uncut into every sequence.
        usual_window: tokens of a window of a long state by default, where there is room (windows.py).
    """

    def __init__(
        self,
        questions: list[Question],
        builder: SequenceBuilder,
        core: CoreModel,
        temperatures: Mapping[bool | None, Temperatures],
        *,
        model_name: str,
        max_tokens: int,
        threads: int = 1,
        check: Callable[[int], None] | None = None,
    ) -> None:
        """`temperatures`: by what a call says of the clamp. Raises RequestError as `SequenceBuilder.prefix`.

        So many `threads` encode options that have sequences of their own; before that `check` is given the number of
        their tokens, and may raise.
        """
        self.ids = tuple(question.id for question in questions)
        self.questions = questions
        self._builder, self._model_name = builder, model_name
        self._prefixes = prefixes = [builder.prefix(question) for question in questions]
        own = [ids for prefix in prefixes for ids in prefix.option_ids or ()]
        if own and check is not None:
            check(sum(map(len, own)))
        self.core = builder.core(prefixes, core, threads)
        self.offsets: np.ndarray = self.core.offsets
        self.n_options = int(self.offsets[-1])
        self._temperatures = {
            clamp: np.array([own.of(question.type, len(question.options)) for question in questions], np.float64)
            for clamp, own in temperatures.items()
        }
        self.room = min((prefix.max_tokens - len(prefix.front) - 1 for prefix in prefixes), default=0)
        # tokens of options that are read now and never again, less the one that the core counts for each
        self._read_before = sum(len(ids) - 1 for ids in own)
        self.usual_window = builder.usual_window
        # whether an answer has nothing to say about how its sequence was laid out
        self._as_usual = all(
            prefix.options_distinct == len(prefix.markers) and prefix.max_tokens <= max_tokens for prefix in prefixes
        )
        self.n_bytes = self.core.n_bytes + sum(
            _QUESTION_BYTES
            + prefix.n_bytes
            + sys.getsizeof(question.instructions)
            + sum(_OPTION_BYTES + sum(map(sys.getsizeof, option)) for option in question.options)
            for prefix, question in zip(prefixes, questions, strict=True)
        )

    def read(self, state: Any) -> StateTokens:
        """The state, tokenized; only a null one is looked at where there are no questions.

        Raises:
            RequestError: the state is null, or not text and not JSON.
        """
        if not self.questions and state is not None:
            return StateTokens(np.zeros(0, np.int32), False)
        return self._builder.state(state)

    def read_many(self, states: SequenceOf[Any]) -> list[StateTokens | RequestError]:
        """`read` for each state, tokenized together; what it raises for one stands in its place."""
        if self.questions:
            try:
                return list(self._builder.states(states))
            except RequestError:  # of one, which the next lines find
                pass
        return [self._read_or_fault(state) for state in states]

    def _read_or_fault(self, state: Any) -> StateTokens | RequestError:
        try:
            return self.read(state)
        except RequestError as error:
            return error

    def reread(self, ids: np.ndarray) -> StateTokens:
        """A part of a tokenized state, int32 [n], as a text of its own, tokenized as such. Raises as `read`."""
        return self._builder.window(ids)

    def n_tokens(self, tokens: StateTokens) -> int:
        """How many tokens a run computes for all questions together; an option that was read before is one."""
        return self.core.n_tokens(len(tokens.ids))

    def input_tokens(self, tokens: StateTokens) -> int:
        """How many tokens the model reads for all questions together, whether now or beforehand."""
        return self.core.n_tokens(len(tokens.ids)) + self._read_before

    def lengths(self, tokens: StateTokens) -> list[int]:
        """`n_tokens` of each question; where all share the state's tokens, those count for the first."""
        return self.core.lengths(len(tokens.ids))

    @property
    def least_tokens(self) -> int:
        """`n_tokens` for an empty state."""
        return self.core.n_tokens(0)

    def ask(self, tokens: StateTokens, first: int = 0, last: int | None = None) -> Ask:
        """What `Engine.run` takes: questions [first, last) about a state."""
        n = (len(self.questions) if last is None else last) - first
        return self.core, first, n, tokens.ids, tokens.keep_tail

    def sequences(self, tokens: StateTokens) -> list[Sequence]:
        """What the model reads for each question."""
        return self._builder.sequences(self._prefixes, self.core, tokens)

    def cut(self, tokens: StateTokens) -> Sequence | None:
        """The first question's sequence that has no room for the whole state, if there is one."""
        if len(tokens.ids) <= self.room:
            return None
        return next((found for found in self.sequences(tokens) if found.truncated), None)

    def temperatures(self, clamp: bool | None = None) -> np.ndarray:
        """float64 [n_questions]: clamped as the Laya runtime does, or the file's own; None: as the model was loaded."""
        return self._temperatures[None if clamp is None else bool(clamp)]

    def answers(self, tokens: StateTokens, logits: np.ndarray, temperature_clamp: bool | None = None) -> Response:
        """The response, from the scores of all questions: float32 [n_options], as `Engine.run` gives them.

        Raises:
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        sequences: SequenceOf[Sequence | None] = [None] * len(self.questions)
        if len(tokens.ids) > self.room or not self._as_usual:
            sequences = self.sequences(tokens)
        n_tokens = self.input_tokens(tokens)
        with border.DefaultFloatMode():
            probabilities = self.probabilities(logits, temperature_clamp)
            return response(self._model_name, self.questions, sequences, probabilities, input_tokens=n_tokens)

    def probabilities(self, logits: np.ndarray, temperature_clamp: bool | None = None) -> list[list[float]]:
        """Of each question those of its options, in their order. To be called in the default floating-point mode.

        Raises as `answers`.
        """
        found = self.core.probabilities(logits, self.temperatures(temperature_clamp))
        if found is None:
            raise faulty_weights()
        return found

    def logits_by_id(self, logits: np.ndarray) -> dict[Any, np.ndarray]:
        """The scores by question id: float32 [n_options of the question] in the options' order. Raises as `answers`."""
        if not np.isfinite(logits).all():
            raise faulty_weights()
        found = {}
        for question, begin, end in zip(self.questions, self.offsets, self.offsets[1:], strict=False):
            found[question.id] = row = logits[begin:end].copy()
            if question.option_order is not None:
                row[question.option_order] = logits[begin:end]
        return found


class PreparedCache:
    """Recently used questions by a key, bounded in bytes; safe to share between threads."""

    def __init__(self, most_bytes: int, most_of_one: int) -> None:
        """Keeps `most_bytes` at most, keys and questions together, and none that takes more than `most_of_one`."""
        self._most_bytes, self._most_of_one = most_bytes, most_of_one
        self._kept: OrderedDict[bytes, tuple[Prepared, int]] = OrderedDict()  # the last used last
        self._n_bytes = 0
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """What is kept now takes about so many."""
        return self._n_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> Prepared | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: bytes, made: Prepared) -> Prepared:
        """Keep what was made for a key that was not there. Gives what is kept: of threads that made it, the first."""
        n_bytes = len(key) + made.n_bytes
        if n_bytes > self._most_of_one:
            return made
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                return found[0]
            self._kept[key] = made, n_bytes
            self._n_bytes += n_bytes
            while self._n_bytes > self._most_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._n_bytes -= freed
        return made
