"""Text to token ids, from what a model file or a checkpoint says about its tokenizer.

The work itself is done by the ``tokenizers`` package. This module decides *which* tokenizer that
is: the file's own ``tokenizer.huggingface.json``, or one rebuilt from ``tokenizer.ggml.*`` where a
file has no such key. It leaves the layout of a sequence to sequence.py and never sees a request.

Both sources are untrusted. Everything that can be wrong in them is a FormatError at load time, and
a loaded Tokenizer is never changed again, so threads may share it without a lock.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from reprlib import repr  # values of a hostile file may be long or deeply nested
from typing import TYPE_CHECKING, Any, Protocol

from .errors import FormatError

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken

HUGGINGFACE_JSON = "tokenizer.huggingface.json"
_TOKENS, _TYPES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))
_PRE = "tokenizer.ggml.pre"
_NORMALIZER = "skycmd.tokenizer.normalizer"

# Values of tokenizer.ggml.token_type (GGUF specification).
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

_MAX_JSON_BYTES = 256 << 20
_MAX_TOKENS = 1 << 22
# A normalizer may put this many characters in place of one match: enough for any real one, too few
# for a file that turns a short text into gigabytes (test_tokenizer.py::test_growing_normalizer).
_MAX_REPLACEMENT = 16
# Steps multiply: nine replacements of one letter by 16 turn one into 7e10. All steps together may lengthen a text this
# many times; ALBERT's, the longest chain of a real tokenizer, reaches 648.
_MAX_GROWTH = 1024
_LENGTHENING = {"ByteLevel": 4.0, "NFKC": 18.0, "NFKD": 18.0, "NFD": 4.0, "NFC": 3.0, "BertNormalizer": 4.0}

# Questions come back request after request; remembering their tokens saves most of the tokenizing.
# Bounds are chosen so that the memory of a hostile caller's texts stays at a few megabytes.
_REMEMBERED_TEXTS, _REMEMBERED_LENGTH = 1024, 512


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
        cls_id, sep_id, mask_id: token ids of the layout; cls_text, sep_text, mask_text: their
        texts. keeps_tail: a text cut to a number of tokens keeps its last ones (``truncation_side``
        "left"
            in the checkpoint), as the Laya runtime does for options. Nearly always False.
    """

    __slots__ = (
        "_encode_one",
        "_remember",
        "cls_id",
        "cls_text",
        "keeps_tail",
        "mask_id",
        "mask_text",
        "sep_id",
        "sep_text",
    )

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialIds, source: str) -> None:
        """Take over `backend`, which nobody else may change; `source` names its key in errors."""
        truncation = backend.truncation
        self.keeps_tail = truncation is not None and truncation["direction"] == "left"
        backend.no_truncation()
        backend.no_padding()
        _check_model(backend, source)
        with _faults_named(source):
            _check_growth([json.loads(part.__getstate__()) for part in _steps(backend)], source)
        _check_ids(backend, special, source)
        # Not a batch call: those are some 20 % faster, but start the package's own pool of threads,
        # which a process that forks or has a CPU quota did not ask for.
        self._encode_one = backend.encode
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
        if text is not None:
            if not isinstance(text, str):
                raise FormatError(f"{HUGGINGFACE_JSON} must be a string")
            return cls(_parse(text, HUGGINGFACE_JSON), special, HUGGINGFACE_JSON)
        return cls(_rebuild(metadata, special.mask_id), special, _TOKENS)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` by itself: no special tokens are added, nothing is cut.

        Text that spells a special token gives that token's id, as in the Laya runtime.

        Raises:
            UnicodeEncodeError: the text holds a lone surrogate.
            FormatError: the model's tokenizer fails on this text.
        """
        try:
            return self._encode_one(text, add_special_tokens=False).ids
        except BaseException as error:
            if not isinstance(error, Exception) and not _is_panic(error):
                raise
            text.encode()  # a lone surrogate is the caller's fault and says so itself
            raise FormatError(f"the model's tokenizer fails on a text: {error}") from error

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, one after another: a thread pool costs more than short texts."""
        return [self.encode(text) for text in texts]

    def encode_repeated(self, text: str) -> Sequence[int]:
        """`encode` for texts that tend to come again (instructions, options), remembering some."""
        return self._remember(text) if len(text) <= _REMEMBERED_LENGTH else self.encode(text)

    def _encode_tuple(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


# ------------------------------------------------------------------------------ what may go wrong


def _is_panic(error: BaseException) -> bool:
    # pyo3's PanicException derives from BaseException and cannot be imported.
    return type(error).__name__ == "PanicException"


@contextmanager
def _faults_named(source: str) -> Iterator[None]:
    """Turn every failure of the ``tokenizers`` package, panics included, into a FormatError."""
    try:
        yield
    except FormatError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or _is_panic(error):
            raise FormatError(f"{source}: not a usable tokenizer ({error})") from error
        raise


def _parse(text: str, source: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    if len(text) > _MAX_JSON_BYTES:
        raise FormatError(f"{source}: larger than {_MAX_JSON_BYTES} bytes")
    with _faults_named(source):
        # before the package sees it, which normalizes the added tokens at once
        content = json.loads(text)
        _check_growth([content.get("normalizer"), content.get("pre_tokenizer")], source)
        return Backend.from_str(text)


def _steps(backend: tokenizers.Tokenizer) -> list[Any]:
    return [part for part in (backend.normalizer, backend.pre_tokenizer) if part is not None]


def _check_model(backend: tokenizers.Tokenizer, source: str) -> None:
    dropout = getattr(backend.model, "dropout", None)
    if dropout:
        raise FormatError(f"{source}: BPE dropout {dropout} would make token ids random; remove it")


def _check_growth(steps: Iterable[Any], source: str) -> None:
    """Refuse normalizers and pre-tokenizers, given as in tokenizer.json, that multiply the length of a text."""
    growth = 1.0

    def visit(part: Any) -> None:
        nonlocal growth
        if isinstance(part, Mapping):
            growth *= _growth(part)
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


def _check_ids(backend: tokenizers.Tokenizer, special: SpecialIds, source: str) -> None:
    with _faults_named(source):
        largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < 0:
        raise FormatError(f"{source}: the vocabulary is empty")
    if largest >= special.vocab_size:
        raise FormatError(f"{source}: token id {largest} lies outside the embedding table of {special.vocab_size} rows")


def _text_of(backend: tokenizers.Tokenizer, token: int, role: str, source: str) -> str:
    text = backend.id_to_token(token) if 0 <= token < 1 << 32 else None
    if not text:
        raise FormatError(f"{source}: the {role} token, id {token}, is not in the vocabulary")
    return text


# ------------------------------------------------------------- without tokenizer.huggingface.json


def _rebuild(metadata: Mapping[str, Any], mask_id: int) -> tokenizers.Tokenizer:
    """The tokenizer that ``tokenizer.ggml.*`` stands for, by the name in ``tokenizer.ggml.pre``."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    tokens = _string_list(metadata, _TOKENS)
    merges = _string_list(metadata, _MERGES)
    types = metadata.get(_TYPES)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise FormatError(f"{_TYPES} must be a list of {len(tokens)} integers, one for each token")
    model = metadata.get("tokenizer.ggml.model", "gpt2")
    pre = metadata.get(_PRE)
    if model != "gpt2" or pre not in ("modern-bert", "gpt-2", "mmbert"):
        raise FormatError(
            f"{_PRE} {repr(pre)} (model {repr(model)}) is not one that skyinfer can rebuild (modern-bert,"
            f" gpt-2, mmbert); convert the checkpoint with `skyinfer convert`, which writes"
            f" {HUGGINGFACE_JSON}"
        )
    metaspace = pre == "mmbert"

    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    if len(vocab) + types.count(_UNUSED) != len(tokens):
        raise FormatError(f"{_TOKENS}: {len(tokens) - len(vocab)} tokens repeat another one's text")
    pairs: list[tuple[str, str]] = []
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise FormatError(f"{_MERGES}: entry {i} is not two tokens with one space between them")
        pairs.append((left, right))

    options: dict[str, Any] = {}
    if metaspace:
        unknown = metadata.get("tokenizer.ggml.unknown_token_id")
        if type(unknown) is int and 0 <= unknown < len(tokens):
            options = {"unk_token": tokens[unknown], "fuse_unk": True}
        options["byte_fallback"] = True
    with _faults_named(_MERGES):
        backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs, **options))
    with _faults_named(_TOKENS):
        steps = _unicode_form(metadata, "NFC" if pre == "modern-bert" else "")
        if metaspace:
            # Every text starts a word and so does every space (llama.cpp's rule for this name).
            steps.append(normalizers.Replace(" ", "\u2581"))
            backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        else:
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if steps:
            backend.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)

        # Neither GGUF nor llama.cpp says which tokens strip spaces; both known families strip on
        # the left of the mask token.
        lstrip = _id_set(metadata, "lstrip", len(tokens), set() if pre == "gpt-2" else {mask_id})
        rstrip = _id_set(metadata, "rstrip", len(tokens), set())
        backend.add_tokens(
            [
                AddedToken(
                    tokens[i],
                    special=kind == _CONTROL,
                    normalized=kind == _USER_DEFINED and not metaspace,
                    lstrip=i in lstrip,
                    rstrip=i in rstrip,
                )
                for i, kind in enumerate(types)
                if kind in (_CONTROL, _USER_DEFINED)
            ]
        )
    return backend


def _string_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise FormatError(f"{key} is missing, and so is {HUGGINGFACE_JSON}: the file has no tokenizer")
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        raise FormatError(f"{key} must be a list of strings")
    if len(value) > _MAX_TOKENS:
        raise FormatError(f"{key} has {len(value)} entries, more than {_MAX_TOKENS}")
    return value


def _unicode_form(metadata: Mapping[str, Any], default: str) -> list[Any]:
    from tokenizers import normalizers

    name = metadata.get(_NORMALIZER, default)
    if name == "":
        return []
    if name not in ("NFC", "NFD", "NFKC", "NFKD"):
        raise FormatError(f"{_NORMALIZER} {repr(name)} must be NFC, NFD, NFKC, NFKD or empty")
    return [getattr(normalizers, name)()]


def _id_set(metadata: Mapping[str, Any], side: str, n_tokens: int, default: set[int]) -> set[int]:
    key = f"skycmd.tokenizer.{side}"
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < n_tokens for i in value):
        raise FormatError(f"{key} must be a list of token ids below {n_tokens}")
    return set(value)


# -------------------------------------------------------------------------------- from a checkpoint


_SPECIAL_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Classes under which transformers takes tokenizer.json as it is.
_PLAIN_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")


def canonical_tokenizer_json(tokenizer_dir: str | Path) -> str:
    """The tokenizer.json that behaves as the Laya runtime's tokenizer does on `tokenizer_dir`.

    The runtime loads the directory with transformers 5, whose tokenizer is not tokenizer.json
    alone: tokens of ``added_tokens_decoder`` in tokenizer_config.json are registered again and
    their attributes win (lstrip, rstrip, normalized, special); special tokens that tokenizer.json
    lacks are appended; truncation and padding are dropped, except that the side options are cut on
    stays. A GemmaTokenizer gets its pipeline from the class and only vocabulary and merges from the
    file.

    Raises:
        FormatError: a file is missing or faulty, or asks for what only transformers can do.
    """
    from tokenizers import AddedToken

    directory = Path(tokenizer_dir)
    config = tokenizer_config(directory)
    name = config.get("tokenizer_class") or "TokenizersBackend"
    kind = name.removesuffix("Fast") if isinstance(name, str) else name
    if kind not in (*_PLAIN_CLASSES, "GemmaTokenizer"):
        raise FormatError(
            f"tokenizer_config.json: tokenizer_class {repr(name)} builds its tokenizer in Python code;"
            f" save the tokenizer as PreTrainedTokenizerFast first"
        )
    if config.get("split_special_tokens"):
        raise FormatError("tokenizer_config.json: split_special_tokens is not supported; remove it")

    file = _read(directory, "tokenizer.json")
    source = "tokenizer/tokenizer.json"
    roles = dict.fromkeys(_SPECIAL_ROLES)
    if kind == "GemmaTokenizer":
        roles.update({role: f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")})
    special = [_special(config, role) or default for role, default in roles.items()]
    special += [_special_value(key, value) for key, value in _extra_special(config)]
    added = _added_tokens(directory, config, file, {str(token) for token in special if token})
    if kind == "GemmaTokenizer":
        file = json.dumps(_gemma(file, str(special[2])), ensure_ascii=False)
    backend = _parse(file, source)
    with _faults_named(source):
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        known |= {token.content for token in added}
        for token in special:
            if token and str(token) not in known:
                known.add(str(token))
                added.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        named = {str(token) for token in special if token}
        for token in added:
            if token.content in named:
                token.special = True
        backend.add_tokens(added)
        side = config.get("truncation_side") or (backend.truncation or {}).get("direction")
        backend.no_padding()
        backend.no_truncation()
        if side == "left":
            backend.enable_truncation(48, direction="left")
        return backend.to_str()


def tokenizer_config(tokenizer_dir: str | Path) -> dict[str, Any]:
    """tokenizer_config.json of a checkpoint's tokenizer directory, as transformers reads it: where
    it has no ``added_tokens_decoder``, the older special_tokens_map.json overrides its keys.

    Raises:
        FormatError: the file is missing or is not a JSON object.
    """
    directory = Path(tokenizer_dir)
    config = _json_object(_read(directory, "tokenizer_config.json"), "tokenizer_config.json")
    if "added_tokens_decoder" not in config and (directory / "special_tokens_map.json").exists():
        name = "special_tokens_map.json"
        config.update(_json_object(_read(directory, name), name))
    return config


def special_token_text(config: Mapping[str, Any], role: str) -> str:
    """Text of the special token `role` ("cls", "sep", "mask", ...) in a tokenizer_config.json.

    Raises:
        FormatError: the key is missing, or neither a string nor an object with `content`.
    """
    token = _special(config, role)
    if not token or not str(token):
        raise FormatError(f"tokenizer_config.json: {role}_token is missing")
    return token if isinstance(token, str) else str(token.content)


def _read(directory: Path, name: str) -> str:
    path = directory / name
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise FormatError(f"{path}: larger than {_MAX_JSON_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FormatError(f"{path} is missing: a checkpoint keeps its tokenizer there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(f"{name}: must hold a JSON object")
    return value


def _special(config: Mapping[str, Any], role: str) -> Any:
    return _special_value(f"{role}_token", config.get(f"{role}_token"))


def _special_value(key: str, value: Any) -> Any:
    """A special token as the str or AddedToken that transformers makes of it, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        return _added_token(value, key)
    raise FormatError(f"tokenizer_config.json: {key} must be a string or an object with `content`")


def _extra_special(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Model-specific ``*_token`` keys and extra special tokens, in the order they are added."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named = [
        (key, value)
        for key, value in config.items()
        if key.endswith("_token") and key.removesuffix("_token") not in _SPECIAL_ROLES and isinstance(value, str)
    ]
    if isinstance(extra, Mapping):
        return named + list(extra.items())
    if isinstance(extra, list):
        return named + [("extra_special_tokens", value) for value in extra]
    raise FormatError("tokenizer_config.json: extra_special_tokens must be a list or an object")


def _added_tokens(directory: Path, config: Mapping[str, Any], file: str, special: set[str]) -> list[AddedToken]:
    """The tokens that transformers registers on top of tokenizer.json, in the order it does.

    Without ``added_tokens_decoder`` those are the ones of the older added_tokens.json and of
    tokenizer.json itself.
    """
    entries = config.get("added_tokens_decoder")
    listed: list[tuple[Any, Any]] = []
    if entries is None:
        if (directory / "added_tokens.json").exists():
            older = _json_object(_read(directory, "added_tokens.json"), "added_tokens.json")
            for text, token in older.items():
                flag = text in special
                listed.append((token, {"content": text, "special": flag, "normalized": not flag}))
        own = _json_object(file, "tokenizer.json").get("added_tokens")
        for entry in own if isinstance(own, list) else []:
            if isinstance(entry, Mapping):
                listed.append((entry.get("id"), entry))
    elif isinstance(entries, Mapping):
        listed += entries.items()
    else:
        raise FormatError("tokenizer_config.json: added_tokens_decoder must be an object")
    try:
        by_id = {int(token): value for token, value in listed}  # the last one of an id counts
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"tokenizer_config.json: added_tokens_decoder: {error}") from error
    return [_added_token(by_id[token], f"added_tokens_decoder.{token}") for token in sorted(by_id)]


def _added_token(value: Any, key: str) -> Any:
    from tokenizers import AddedToken

    if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
        raise FormatError(f"tokenizer_config.json: {key} must be an object with `content`")
    flags = {
        name: bool(value[name])
        for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
        if name in value
    }
    with _faults_named(f"tokenizer_config.json: {key}"):  # a lone surrogate is not text
        return AddedToken(value["content"], **flags)


def _gemma(file: str, unknown: str) -> dict[str, Any]:
    """tokenizer.json with the pipeline that the class GemmaTokenizer always gives itself."""
    data = _json_object(file, "tokenizer.json")
    model = data.get("model")
    if not isinstance(model, dict):
        raise FormatError("tokenizer.json: model must be an object")
    data["model"] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": model.get("vocab"),
        "merges": model.get("merges"),
    }
    data["added_tokens"] = []
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    data["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    return data
