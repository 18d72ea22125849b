"""Text to token ids, from what a model file or a checkpoint says about its tokenizer.

The work itself is done by the ``tokenizers`` package. This module decides *which* tokenizer that
is: the file's own ``tokenizer.huggingface.json``, or one that ggml_tokenizer.py rebuilds from ``tokenizer.ggml.*``
where a file has no such key. files/checkpoint/hf_tokenizer.py makes such a text of a checkpoint directory,
sequence.py lays sequences out.

Both sources are untrusted. Everything that can be wrong in them is a FormatError at load time, and
a loaded Tokenizer is never changed again, so threads may share it without a lock.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ..core import scanners
from ..errors import FormatError
from .ggml_tokenizer import HUGGINGFACE_JSON, TOKENS_KEY, rebuild
from .package_faults import faults_named, is_panic
from .words import words_of

if TYPE_CHECKING:
    import tokenizers

_MAX_JSON_CHARACTERS = 256 << 20
# A normalizer may put this many characters in place of one match: enough for any real one, too few
# for a file that turns a short text into gigabytes (test_tokenizer.py::test_growing_normalizer).
_MAX_REPLACEMENT = 16
# Steps multiply: nine replacements of one letter by 16 turn one into 7e10. All steps together may lengthen a text this
# many times; ALBERT's, the longest chain of a real tokenizer, reaches 648.
_MAX_GROWTH = 1024
# And their steps all together; known tokenizers have a dozen.
_MAX_STEPS = 256
_LENGTHENING = {"ByteLevel": 4.0, "NFKC": 18.0, "NFKD": 18.0, "NFD": 4.0, "NFC": 3.0, "BertNormalizer": 4.0}

# Questions come back request after request; remembering their tokens saves most of the tokenizing.
# A character takes at most 4 bytes and a token 36 (test_tokenizer.py::test_what_is_remembered_is_bounded).
_REMEMBERED_TEXTS, _REMEMBERED_LENGTH, _REMEMBERED_TOKENS = 1024, 512, 128

# Tokens from which on freed memory is returned to the system after parsing: 190 MB for 256,000.
_LARGE_VOCABULARY = 1 << 15

# Characters from which on a text is tokenized by a batch call: some 20 ms of tokenizing. Where the package was told not
# to start threads, such a call has no drawback, and other threads go on for texts of half a millisecond already.
_LONG_TEXT, _LONG_TEXT_SERIAL = 1 << 14, 1 << 9


class SpecialIds(Protocol):
    """The part of ModelConfig that a tokenizer is checked against."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def cls_id(self) -> int: ...
    @property
    def sep_id(self) -> int: ...
    @property
    def mask_id(self) -> int: ...


class Tokenizer:
    """An immutable tokenizer and the three special tokens that a sequence is laid out with.

    Attributes:
        cls_id, sep_id, mask_id: token ids of the layout.
        cls_text, sep_text, mask_text: their texts.
        keeps_tail: an option cut to a number of tokens keeps its last ones, as the Laya runtime does where the
            checkpoint has ``truncation_side`` "left". Nearly always False.
    """

    __slots__ = (
        "_decode",
        "_encode_batch",
        "_encode_one",
        "_long_text",
        "_remember",
        "_words",
        "cls_id",
        "cls_text",
        "keeps_tail",
        "mask_id",
        "mask_text",
        "sep_id",
        "sep_text",
    )

    def __init__(
        self, backend: tokenizers.Tokenizer, special: SpecialIds, source: str, largest_id: int | None = None
    ) -> None:
        """Use `backend`, which must not be changed afterwards.

        `source` names its key in errors; `largest_id` is that of its model, added tokens aside, where it is known.
        """
        truncation = backend.truncation
        self.keeps_tail = truncation is not None and truncation["direction"] == "left"
        backend.no_truncation()
        backend.no_padding()
        _check_model(backend, source)
        with faults_named(source):
            normalizer, pre_tokenizer = (
                json.loads(part.__getstate__()) if part is not None else None
                for part in (backend.normalizer, backend.pre_tokenizer)
            )
            _check_growth([normalizer, pre_tokenizer], source)
        _check_ids(backend, special, source, largest_id)
        # A batch call lets go of the GIL, but starts the package's own pool of threads, which a process that forks
        # or has a CPU quota did not ask for: it is for texts that would hold up other threads for long. The fast
        # form leaves out offsets, which are not needed.
        self._encode_one, self._encode_batch = backend.encode, backend.encode_batch_fast
        self._decode = backend.decode
        self._long_text = _LONG_TEXT_SERIAL if _is_serial() else _LONG_TEXT
        self._words = words_of(backend, normalizer, pre_tokenizer)
        self._remember = lru_cache(_REMEMBERED_TEXTS)(self._encode_tuple)
        self.cls_id, self.cls_text = (
            special.cls_id,
            _text_of(backend, special.cls_id, "cls", source),
        )
        self.sep_id, self.sep_text = (
            special.sep_id,
            _text_of(backend, special.sep_id, "sep", source),
        )
        self.mask_id = special.mask_id
        self.mask_text = _text_of(backend, special.mask_id, "mask", source)
        if special.mask_id in (special.cls_id, special.sep_id):
            raise FormatError(f"{source}: the mask token, id {special.mask_id}, has another role, too")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], special: SpecialIds) -> Tokenizer:
        """The tokenizer of a model file, from its GGUF metadata.

        Raises:
            FormatError: no tokenizer there, or a faulty one; names the key.
        """
        text = metadata.get(HUGGINGFACE_JSON)
        if text is not None and not isinstance(text, str):
            raise FormatError(f"{HUGGINGFACE_JSON} must be a string")
        source = TOKENS_KEY if text is None else HUGGINGFACE_JSON
        backend, largest = rebuild(metadata, special.mask_id) if text is None else parse(text, source)
        if special.vocab_size > _LARGE_VOCABULARY:
            scanners.trim_memory()
        return cls(backend, special, source, largest)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` by itself: no special tokens are added, nothing is cut.

        Text that spells a special token gives that token's id, as in the Laya runtime. Long texts are tokenized
        without the GIL, so other threads go on.

        Raises:
            UnicodeEncodeError: the text holds a lone surrogate.
            FormatError: the model's tokenizer fails on this text.
        """
        try:
            known = self._words.ids(text) if self._words is not None else None
            if known is not None:
                return known
            if len(text) > self._long_text:
                return self._encode_batch([text], add_special_tokens=False)[0].ids
            return self._encode_one(text, add_special_tokens=False).ids
        except BaseException as error:
            if not _is_of_a_text(error):
                raise
            text.encode()  # a lone surrogate is the caller's fault: this raises the error for it
            raise FormatError(f"the model's tokenizer fails on a text: {error}") from error

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for each text. Those not made of remembered words go together, without the GIL where long.

        Raises:
            UnicodeEncodeError, FormatError: as `encode`, for the first text that has a fault.
        """
        try:
            words = self._words
            found: list[list[int] | None] = [None if words is None else words.ids(text) for text in texts]
            unknown = [i for i, ids in enumerate(found) if ids is None]
            if sum(len(texts[i]) for i in unknown) > self._long_text:
                encoded = self._encode_batch([texts[i] for i in unknown], add_special_tokens=False)
                for i, encoding in zip(unknown, encoded, strict=True):
                    found[i] = encoding.ids
        except BaseException as error:
            if not _is_of_a_text(error):
                raise
            found = [None] * len(texts)  # one by one, so that the error is that of the one at fault
        return [self.encode(text) if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Bytes that are no UTF-8, as half a character, become U+FFFD.

        Raises:
            FormatError: the model's tokenizer fails on these ids.
        """
        try:
            return self._decode(ids, skip_special_tokens=False)
        except BaseException as error:
            if not _is_of_a_text(error):
                raise
            raise FormatError(f"the model's tokenizer fails on token ids: {error}") from error

    def encode_repeated(self, text: str) -> Sequence[int]:
        """`encode` for texts that tend to come again (instructions, options).

        The last 1024 different ones are remembered, of those that have at most 512 characters and 128 tokens: less
        than 10 MB, whatever the texts.
        """
        if len(text) > _REMEMBERED_LENGTH:
            return self.encode(text)
        try:
            return self._remember(text)
        except _TooManyTokens as error:
            return error.ids

    def _encode_tuple(self, text: str) -> tuple[int, ...]:
        ids = tuple(self.encode(text))
        if len(ids) > _REMEMBERED_TOKENS:  # what is raised is not remembered
            raise _TooManyTokens(ids)
        return ids


def _is_serial() -> bool:
    """Whether the package was told not to use threads of its own, as it reads that."""
    return os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in ("", "off", "false", "f", "no", "n", "0")


class _TooManyTokens(Exception):
    def __init__(self, ids: tuple[int, ...]) -> None:
        super().__init__()
        self.ids = ids


# ------------------------------------------------------------------------------ what may go wrong


def _is_of_a_text(error: BaseException) -> bool:
    """Whether the package raised it about a text; else it is Ctrl-C, what a signal handler raises, or no memory."""
    return is_panic(error) or type(error) is Exception or isinstance(error, (TypeError, ValueError))


def parse(text: str, source: str) -> tuple[tokenizers.Tokenizer, int | None]:
    """The ``tokenizers`` package's tokenizer of a tokenizer.json, once its steps are known to be bounded.

    Beside it comes the largest id of its model, added tokens aside, or None where only the tokenizer knows it.

    Raises:
        FormatError: faulty; the message begins with `source`.
    """
    from tokenizers import Tokenizer as Backend

    if len(text) > _MAX_JSON_CHARACTERS:
        raise FormatError(f"{source}: longer than {_MAX_JSON_CHARACTERS} characters")
    with faults_named(source):
        # before the package sees it, which normalizes the added tokens at once; the package parses the whole anyway
        places = scanners.json_members(text, ("normalizer", "pre_tokenizer", "model"))
        parts = {name: text[begin:end] for name, (begin, end) in places.items()}
        model = parts.pop("model", "")
        _check_growth(map(json.loads, parts.values()), source)
        backend = Backend.from_str(text)
        return backend, _largest_id(model, backend)


def _check_model(backend: tokenizers.Tokenizer, source: str) -> None:
    dropout = getattr(backend.model, "dropout", None)
    if dropout:
        raise FormatError(f"{source}: BPE dropout {dropout} would make token ids random; remove it")


def _check_growth(steps: Iterable[Any], source: str) -> None:
    """Refuse steps, given as in tokenizer.json, that multiply the length of a text or are more than a tokenizer has."""
    growth, n_steps = 1.0, 0

    def visit(part: Any) -> None:
        nonlocal growth, n_steps
        if isinstance(part, Mapping):
            growth *= _growth(part)
            n_steps += "type" in part
            if n_steps > _MAX_STEPS:  # each takes time for every text, and some lengthen it
                raise FormatError(f"{source}: its normalizers and pre-tokenizers have more than {_MAX_STEPS} steps")
            for key, value in part.items():
                if (
                    key in ("content", "prepend", "replacement")
                    and isinstance(value, str)
                    and len(value) > _MAX_REPLACEMENT
                ):
                    raise FormatError(f"{source}: a normalizer's {key} has {len(value)} characters")
                visit(value)
        elif isinstance(part, list):
            for value in part:
                visit(value)

    for step in steps:
        visit(step)
    if growth > _MAX_GROWTH:
        raise FormatError(f"{source}: its normalizers can lengthen a text {growth:.3g} times, more than {_MAX_GROWTH}")


def _growth(step: Mapping[str, Any]) -> float:
    """How many times longer, in characters, one step can make a long text; 1 for what only splits or shortens."""
    if "pattern" in step and "content" in step:
        pattern = step["pattern"].get("String")
        # a pattern that matches nothing inserts its content at every character
        return max(1.0, len(step["content"]) / len(pattern) if pattern else 1.0 + len(step["content"]))
    if "precompiled_charsmap" in step:
        charsmap = base64.b64decode(step["precompiled_charsmap"])
        replacements = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
        return float(max(len(text.decode("utf-8", "replace")) for text in [b".", *replacements.split(b"\0")]))
    return _LENGTHENING.get(str(step.get("type")), 1.0)


def _check_ids(backend: tokenizers.Tokenizer, special: SpecialIds, source: str, largest_id: int | None) -> None:
    with faults_named(source):
        if largest_id is None:
            largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        else:
            largest = max([largest_id, *backend.get_added_tokens_decoder()])
    if largest < 0:
        raise FormatError(f"{source}: the vocabulary is empty")
    if largest >= special.vocab_size:
        raise FormatError(f"{source}: token id {largest} lies outside the embedding table of {special.vocab_size} rows")


def _largest_id(model: str, backend: tokenizers.Tokenizer) -> int | None:
    """The largest id in the text of a BPE model that `backend` was made of; None where the text does not tell.

    To ask for the vocabulary, which comes as a dict, takes a quarter of the time that making the tokenizer takes.
    """
    try:
        begin, end = scanners.json_members(model, ("vocab",))["vocab"]
        n_tokens, largest = scanners.json_numbers(model[begin:end])
    except (KeyError, ValueError):
        return None
    # the numbers differ where one text has several ids in the file, of which one counts
    is_told = type(backend.model).__name__ == "BPE" and backend.get_vocab_size(with_added_tokens=False) == n_tokens
    return largest if is_told and n_tokens else None


def _text_of(backend: tokenizers.Tokenizer, token: int, role: str, source: str) -> str:
    text = backend.id_to_token(token) if 0 <= token < 1 << 32 else None
    if not text:
        raise FormatError(f"{source}: the {role} token, id {token}, is not in the vocabulary")
    return text
