"""Sequences of s2: the state by itself, and each option with its question, which no state changes.

    [CLS] state [SEP]
    [CLS] question [SEP] [MASK] option [SEP]

Texts, and what an option keeps of its own, are s1's (sequence.py). No option takes room from another or from the state,
so none is refused for want of it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from ..schema import Question
from .sequence import LEAST_QUESTION, OPTION_TOKENS, SequenceBuilder

_BRACKETS = 3  # tokens of an option's sequence beside texts and marker: one [CLS], two [SEP]


class OptionPrefixes(NamedTuple):
    """What `Prefix` is to s1. In slot order: `ids`, the whole sequence of each option, and where its [MASK] is.

    `max_tokens` limits the state's sequence, and `front` begins it.
    """

    question: Question
    ids: tuple[tuple[int, ...], ...]
    markers: tuple[int, ...]
    max_tokens: int
    front: tuple[int, ...]

    @property
    def option_ids(self) -> tuple[tuple[int, ...], ...]:
        return self.ids

    @property
    def options_distinct(self) -> int:
        """How many options the model can tell apart."""
        return len(set(self.ids))

    @property
    def tokens_per_option(self) -> None:
        return None

    @property
    def n_bytes(self) -> int:
        return sys.getsizeof(self.ids) + sum(map(sys.getsizeof, self.ids))


class OptionSequenceBuilder(SequenceBuilder):
    """Lays out sequences for one s2 model. Immutable; safe to share between threads."""

    __slots__ = ()

    @property
    def usual_window(self) -> int:
        """All that a sequence holds of a state, from which no question takes anything."""
        return self.max_tokens - 2

    @staticmethod
    def longest_of(max_tokens: int, max_head_tokens: int, longest: int | None = None) -> int:
        longest_text = max(max_head_tokens, LEAST_QUESTION + OPTION_TOKENS + 1)
        return max(max_tokens, longest_text + _BRACKETS)

    def prefix(self, question: Question) -> OptionPrefixes:
        """Lay out each option with its question, in slot order.

        The option keeps 48 tokens, and the question gets what that and the marker leave of `max_head_tokens`, at least
        8 tokens.

        Raises:
            RequestError: a text cannot be tokenized.
        """
        tokenizer = self.tokenizer
        asked, options = self.texts(question)
        sequences, markers = [], []
        for option in options:
            room = max(LEAST_QUESTION, self.max_head_tokens - len(option))
            front = (tokenizer.cls_id, *asked[:room], tokenizer.sep_id)
            markers.append(len(front))
            sequences.append((*front, *option, tokenizer.sep_id))
        return OptionPrefixes(question, tuple(sequences), tuple(markers), self.max_tokens, (tokenizer.cls_id,))


BUILDERS: dict[str, type[SequenceBuilder]] = {"s1": SequenceBuilder, "s2": OptionSequenceBuilder}
