"""Token ids of ASCII texts, put together word by word from what the ``tokenizers`` package gave for each word.

A game's state is the same few words and numbers in every frame. Where the tokenizer splits a text into words first and
gives each its tokens by itself (byte-level BPE with GPT-2's pattern), remembered words give the same ids as the package
does for the text, in a tenth of the time. Everything else is left to the package.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core import scanners

if TYPE_CHECKING:
    import tokenizers

# A longer text holds the GIL for too long, and a longer word hardly comes again. All words together take a few MB.
_MAX_TEXT, _MAX_WORD, _MAX_WORDS = 1 << 14, 32, 8192
# A new word costs a call of the package, so learning has a budget: so many words at first, one more for every text that
# was known, and one for every eighth that was not. Texts whose words never come again soon cost next to nothing, and a
# loop that begins later is known after some of its states.
_BUDGET, _UNKNOWN_TEXTS_PER_WORD = 64, 8
# Added tokens that one search through a text can look for.
_MAX_ADDED = 500


class Words:
    """Remembered words of one tokenizer. Safe to share between threads: an entry, once there, is never changed."""

    __slots__ = ("_begins_added", "_budget", "_encode", "_ids")

    def __init__(self, encode: Callable[[str], Sequence[int]], begins_added: Callable[[str], Any]) -> None:
        """`encode` is the package's own; `begins_added` finds what it would look for before it splits into words."""
        self._encode, self._begins_added = encode, begins_added
        self._ids: dict[str, tuple[int, ...]] = {}
        self._budget = float(_BUDGET)  # threads that change it at once may lose a change, which does no harm

    def ids(self, text: str) -> list[int] | None:
        """Token ids of `text`; None where they have to come from the package.

        Raises:
            Exception: whatever the package raises for a word.
        """
        if len(text) > _MAX_TEXT or not text.isascii() or self._begins_added(text):
            return None
        ids = scanners.known_ids(text, self._ids)
        if ids is None:
            return self._learn(scanners.split_words(text))
        if self._budget < _BUDGET:
            self._budget += 1
        return ids

    def _learn(self, words: list[str]) -> list[int] | None:
        """Remembers as many of the words as the budget allows, and gives the ids of all where now all are known."""
        self._budget = min(self._budget + 1 / _UNKNOWN_TEXTS_PER_WORD, _BUDGET)
        if max(map(len, words)) > _MAX_WORD:
            return None
        if len(self._ids) > _MAX_WORDS:
            self._ids = {}  # what is still in use comes back
        known = self._ids
        for word in words:
            if word not in known:
                if self._budget < 1:
                    return None
                self._budget -= 1
                known[word] = tuple(self._encode(word))
        return [token for word in words for token in known[word]]


def words_of(backend: tokenizers.Tokenizer, normalizer: Any, pre_tokenizer: Any) -> Words | None:
    """Memory for the words of a tokenizer that gives every word of an ASCII text its tokens by itself; None for others.

    `normalizer` and `pre_tokenizer` are the backend's, as in tokenizer.json.
    """
    if not (
        normalizer in (None, {"type": "NFC"})
        and isinstance(pre_tokenizer, Mapping)
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("add_prefix_space") is False
        and pre_tokenizer.get("use_regex", True) is True
        and type(backend.model).__name__ == "BPE"
    ):
        return None
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    # Two characters tell them from a text's own well enough. What is not ASCII is not in an ASCII text.
    forms = {form[:2] for token in added for form in (token, unicodedata.normalize("NFC", token)) if form[:2].isascii()}
    if len(forms) > _MAX_ADDED or "" in forms:
        return None
    begins_added = re.compile("|".join(map(re.escape, sorted(forms))) or r"(?!)").search
    return Words(lambda word: backend.encode(word, add_special_tokens=False).ids, begins_added)
