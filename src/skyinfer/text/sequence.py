"""From a state and a question to token ids and marker positions.

    [CLS] question [SEP] ([MASK] option)* [SEP] state [SEP]

That is s1's; option_sequences.py has s2's, whose options have sequences of their own. Every part is
tokenized by itself and the brackets are token ids put between them here, so no text can end its part.
Budgets are the Laya runtime's (laya 0.4.15, ``build_sequence``). Text comes rendered from schema.py and
template.py; ids come from tokenizer.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..core.border import CoreQuestions
from ..errors import FormatError, RequestError
from ..schema import QUESTION_TYPES, Question, parse_questions, render_state
from ..values import lone_surrogate
from .template import PromptTemplate
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..core.border import CoreModel

_Text = TypeVar("_Text")
_Found = TypeVar("_Found")

# Tokens of text that an option keeps, its marker not counted.
OPTION_TOKENS = 48
# Below this many tokens left for the question, options are shortened; see `SequenceBuilder.prefix`.
_QUESTION_ROOM = 16
_LEAST_OPTION, LEAST_QUESTION = 4, 8
# Of the window in which a long state is read by default (laya 0.4.15, `window_budget`).
_LEAST_WINDOW, _WINDOW_MARGIN = 64, 8
# As many options as the System One API knows; a sequence that may grow has room for them.
_MOST_OPTIONS = 255


@dataclass(slots=True)
class Sequence:
    """What the model reads for one question, and what had to be left out.

    ids: [n_tokens]; markers: [n_options] positions in `ids`, in slot order (slot s shows option
    ``option_order[s]``). `tokens_per_option` is the cap on an option's tokens, marker included,
    where options had to be shortened to fit, else None. `grown_past` is the model's own `max_tokens`
    where the sequence was allowed more for the sake of its options, else None. In s2 `ids` is the state's
    sequence, which all questions share, and `option_ids` has a sequence for each option, in which its marker is.
    """

    ids: list[int]
    markers: list[int]
    state_tokens: int
    state_tokens_used: int
    options: int
    options_distinct: int
    tokens_per_option: int | None
    grown_past: int | None = None
    option_ids: list[list[int]] | None = None

    @property
    def truncated(self) -> bool:
        """Whether the model does not see the whole state."""
        return self.state_tokens_used < self.state_tokens


class Prefix(NamedTuple):
    """The sequence up to and with the [SEP] in front of the state, for any state.

    `max_tokens` limits the whole sequence: the builder's own limit, or more where it had to grow.
    """

    question: Question
    ids: tuple[int, ...]
    markers: tuple[int, ...]
    options_distinct: int
    tokens_per_option: int | None
    max_tokens: int

    @property
    def front(self) -> tuple[int, ...]:
        """What is in front of a state's tokens in a sequence."""
        return self.ids

    @property
    def option_ids(self) -> tuple[tuple[int, ...], ...] | None:
        """The options' own sequences, where they have any."""
        return None

    @property
    def n_bytes(self) -> int:
        """Memory that the ids take in Python."""
        return sys.getsizeof(self.ids)


class AnyPrefix(Protocol):
    """What is made of a question for any state: a `Prefix`, or what another architecture has in its place."""

    @property
    def question(self) -> Question: ...
    @property
    def front(self) -> tuple[int, ...]: ...
    @property
    def option_ids(self) -> tuple[tuple[int, ...], ...] | None: ...
    @property
    def markers(self) -> tuple[int, ...]: ...
    @property
    def options_distinct(self) -> int: ...
    @property
    def tokens_per_option(self) -> int | None: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...


class StateTokens(NamedTuple):
    """A tokenized state: int32 [n]. `keep_tail`: what does not fit is cut from the front (a list of turns)."""

    ids: np.ndarray
    keep_tail: bool


def longest_grown(max_tokens: int, context_tokens: int) -> int:
    """The most tokens of a sequence that may grow: up to the model's context as many as 255 options of any length take.

    Short ones get their room even beyond: a context says how far a model was trained, and rotary positions go on.
    """
    least, most = (max_tokens + _MOST_OPTIONS * size + _QUESTION_ROOM for size in (_LEAST_OPTION, OPTION_TOKENS + 1))
    return max(least, min(context_tokens, most))


class SequenceBuilder:
    """Lays out sequences for one model. Immutable; safe to share between threads."""

    __slots__ = ("_longest", "_template", "max_head_tokens", "max_tokens", "tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: PromptTemplate,
        max_tokens: int,
        max_head_tokens: int,
        longest: int | None = None,
    ) -> None:
        """`max_tokens` limits a sequence, `max_head_tokens` its question and options.

        With `longest`, options that lie beyond `max_tokens` are not refused: both limits grow by the same number of
        tokens for that question, until its options fit or the sequence is `longest`.
        """
        self.tokenizer = tokenizer
        self._template = template
        self.max_tokens = max_tokens
        self.max_head_tokens = max_head_tokens
        self._longest = longest

    @property
    def usual_window(self) -> int:
        """Tokens of a window where nobody says how many: the room beside a question of the most tokens, at least 64."""
        return max(_LEAST_WINDOW, self.max_tokens - self.max_head_tokens - _WINDOW_MARGIN)

    @staticmethod
    def longest_of(max_tokens: int, max_head_tokens: int, longest: int | None = None) -> int:
        """`longest` of a builder of these limits."""
        return longest or max_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that it ever lays out."""
        return self.longest_of(self.max_tokens, self.max_head_tokens, self._longest)

    @property
    def sep_id(self) -> int:
        """The token that closes a sequence."""
        return self.tokenizer.sep_id

    def build(self, state: Any, prefixes: SequenceOf[AnyPrefix]) -> list[Sequence]:
        """One sequence for each prefix. The state is not looked at where there are none.

        Raises:
            RequestError: the state cannot be tokenized.
        """
        if not prefixes:
            if state is None:
                render_state(state)  # refused whatever is asked
            return []
        return self.sequences(prefixes, self.core(prefixes), self.state(state))

    def encode(self, state: Any, questions: Any) -> dict[Any, Sequence]:
        """Validate `questions` (as in a request) and lay them out, by question id."""
        prefixes = [self.prefix(question) for question in parse_questions(questions)]
        return {prefix.question.id: found for prefix, found in zip(prefixes, self.build(state, prefixes), strict=True)}

    def state(self, state: Any) -> StateTokens:
        """Render and tokenize a state, whole."""
        text = self._template.state(render_state(state))
        ids = _tokens(self.tokenizer.encode, text, ("state",))
        return StateTokens(np.array(ids, np.int32), isinstance(state, list))

    def states(self, states: SequenceOf[Any]) -> list[StateTokens]:
        """`state` for each, tokenized together. Raises as `state`, for one of them."""
        texts = [self._template.state(render_state(state)) for state in states]
        encoded = _tokens(self.tokenizer.encode_many, texts, ("state",))
        together = np.array(list(chain.from_iterable(encoded)), np.int32)
        ends = list(accumulate(map(len, encoded), initial=0))
        return [
            StateTokens(together[begin:end], isinstance(state, list))
            for begin, end, state in zip(ends, ends[1:], states, strict=False)
        ]

    def window(self, ids: np.ndarray) -> StateTokens:
        """A part of a tokenized state as a text of its own, tokenized as such. Raises as `state`."""
        return self.state(self.tokenizer.decode(ids.tolist()))

    def prefix(self, question: Question) -> AnyPrefix:
        """Lay out the question and its options, in slot order, within `max_head_tokens`.

        Options keep 48 tokens of text each. Where that leaves fewer than 16 tokens for the
        question, all are cut to an even share (at least 4, marker included); the question then gets
        what is left, at least 8 tokens.

        Raises:
            RequestError: a text cannot be tokenized, or a marker falls beyond `max_tokens` and may not.
        """
        loc = ("questions", question.id)
        most = self._longest or self.max_tokens
        if len(question.options) >= most:  # said before they are all tokenized
            raise RequestError(
                (*loc, "criteria"),
                f"{len(question.options)} options do not fit in the model's {most} tokens; use fewer options",
            )
        asked, options = self.texts(question)
        laid_out = self._lay_out(question, asked, options, 0)
        markers = laid_out.markers
        if markers[-1] >= laid_out.max_tokens and self._longest is not None:
            # room for the whole options, and for as much of the question as any question may have
            wanted = sum(map(len, options)) + max(_QUESTION_ROOM, min(len(asked), self.max_head_tokens))
            grown = min(wanted - self.max_head_tokens, self._longest - self.max_tokens)
            laid_out = self._lay_out(question, asked, options, max(0, grown))
            markers = laid_out.markers
        if markers[-1] >= laid_out.max_tokens:
            fit = sum(marker < laid_out.max_tokens for marker in markers)
            raise RequestError(
                (*loc, "criteria"),
                f"only {fit} of {len(markers)} options fit in the model's {laid_out.max_tokens} tokens; "
                "use fewer options",
            )
        return laid_out

    def texts(self, question: Question) -> tuple[SequenceOf[int], list[tuple[int, ...]]]:
        """Tokens of the question's text, and of each option in slot order: its marker and as much as it keeps."""
        tokenizer, template, kind = self.tokenizer, self._template, question.type
        encode, loc = tokenizer.encode_repeated, ("questions", question.id)
        asked = _tokens(encode, template.question(kind, question.instructions), (*loc, "instructions"))
        options: list[tuple[int, ...]] = []
        for i in question.option_order or range(len(question.options)):
            text = template.option(kind, i, question.options[i])
            ids = _tokens(encode, text, (*loc, *_place_of(question, i)))
            ids = ids[-OPTION_TOKENS:] if tokenizer.keeps_tail else ids[:OPTION_TOKENS]
            options.append((tokenizer.mask_id, *ids))
        return asked, options

    def _lay_out(
        self, question: Question, asked: SequenceOf[int], options: list[tuple[int, ...]], grown: int
    ) -> Prefix:
        """`prefix` for tokens, where both limits are `grown` tokens larger. A marker may lie beyond `max_tokens`."""
        tokenizer, max_head_tokens = self.tokenizer, self.max_head_tokens + grown
        room = max_head_tokens - sum(map(len, options))
        per_option = None
        if room < _QUESTION_ROOM:
            share = (max_head_tokens - _QUESTION_ROOM) // len(options)
            per_option = max(_LEAST_OPTION, share)
            options = [ids[:per_option] for ids in options]
            room = max_head_tokens - sum(map(len, options))

        ids = [tokenizer.cls_id, *asked[: max(LEAST_QUESTION, room)], tokenizer.sep_id]
        markers = []
        for option in options:
            markers.append(len(ids))
            ids += option
        ids.append(tokenizer.sep_id)
        return Prefix(question, tuple(ids), tuple(markers), len(set(options)), per_option, self.max_tokens + grown)

    def core(self, prefixes: SequenceOf[AnyPrefix], model: CoreModel | None = None, threads: int = 1) -> CoreQuestions:
        """The prefixes for the core, which puts states behind them; with the packed weights, it also runs them.

        Options that have sequences of their own go through the encoder now, on so many threads.
        """
        option_ids = [ids for prefix in prefixes for ids in prefix.option_ids or ()]
        return CoreQuestions(
            model,
            [
                (prefix.front, prefix.markers, QUESTION_TYPES.index(prefix.question.type), prefix.max_tokens)
                for prefix in prefixes
            ],
            [prefix.question.option_order or list(range(len(prefix.question.options))) for prefix in prefixes],
            sep_id=self.tokenizer.sep_id,
            option_ids=option_ids or None,
            n_threads=threads,
        )

    def sequences(self, prefixes: SequenceOf[AnyPrefix], core: CoreQuestions, state: StateTokens) -> list[Sequence]:
        """The whole sequence of each prefix about a state. `core`: what `core` gave for these prefixes."""
        found = []
        for i, prefix in enumerate(prefixes):
            ids, used = core.sequence(i, *state)
            grown_past = self.max_tokens if prefix.max_tokens > self.max_tokens else None
            found.append(
                Sequence(
                    ids, list(prefix.markers), len(state.ids), used, len(prefix.markers), prefix.options_distinct,
                    prefix.tokens_per_option, grown_past,
                    None if prefix.option_ids is None else [list(option) for option in prefix.option_ids],
                )
            )  # fmt: skip
        return found


def _place_of(question: Question, i: int) -> tuple[str | int, ...]:
    """Where in a question the text of option `i` is given, of which it turned out that it is none."""
    if question.type != "noul":
        return "criteria", i
    option = question.options[i]
    return ("criteria" if lone_surrogate(option.name) is None else "labels"), option.key


def _tokens(encode: Callable[[_Text], _Found], text: _Text, loc: tuple[Any, ...]) -> _Found:
    try:
        return encode(text)
    except UnicodeEncodeError as error:
        bad = f"U+{ord(error.object[error.start]):04X}"
        raise RequestError(loc, f"holds the lone surrogate {bad}, which is not text") from error
    except FormatError as error:
        raise RequestError(loc, str(error)) from error
