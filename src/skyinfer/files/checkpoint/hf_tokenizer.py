"""The tokenizer that the Laya runtime makes of a checkpoint's files, written as one tokenizer.json.

The runtime loads a directory with transformers 5, which does more than read tokenizer.json. What it does is done here
again, with the ``tokenizers`` package alone, so that loading a directory and converting it need no transformers; the
rest of skyinfer sees the result only. tests/differential.py compares with the runtime itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import TYPE_CHECKING, Any

from ...core import scanners
from ...text.package_faults import faults_named
from ...text.tokenizer import parse
from ..json_file import JsonFile
from ..paths import read_text

if TYPE_CHECKING:
    from tokenizers import AddedToken

_SPECIAL_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Classes under which transformers takes tokenizer.json as it is.
_PLAIN_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
# Classes that build their pipeline themselves, and the special tokens that they have where none are stated.
_BERT_TOKENS = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_CLASS_TOKENS = {
    "GemmaTokenizer": {role: f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")},
    "BertTokenizer": _BERT_TOKENS,
    "DistilBertTokenizer": _BERT_TOKENS,
}


def canonical_tokenizer_json(directory: Path) -> str:
    """The tokenizer.json that behaves as the Laya runtime's tokenizer does on `directory`.

    The runtime loads the directory with transformers 5, whose tokenizer is not tokenizer.json
    alone: tokens of ``added_tokens_decoder`` in tokenizer_config.json are registered again and
    their attributes win (lstrip, rstrip, normalized, special); special tokens that tokenizer.json
    lacks are appended; truncation and padding are dropped, except that the side options are cut on
    stays. A GemmaTokenizer or BertTokenizer gets its pipeline from the class and only vocabulary and
    merges from the file.

    Raises:
        FormatError: a file is missing or faulty, or asks for what only transformers can do.
    """
    from tokenizers import AddedToken

    config = tokenizer_config(directory)
    kind = _class_of(config)
    if kind not in (*_PLAIN_CLASSES, *_CLASS_TOKENS):
        name = short_repr(config.get("tokenizer_class"))
        config.fail(
            "tokenizer_class",
            f"{name} builds its tokenizer in Python code; save the tokenizer as PreTrainedTokenizerFast",
        )
    if config.get("split_special_tokens"):
        config.fail("split_special_tokens", "is not supported; remove it")
    for key in ("truncation_side", "padding_side"):
        if config.content.get(key, "left") not in ("left", "right"):
            config.fail(key, f"{short_repr(config.get(key))} is neither 'left' nor 'right'")

    path = directory / "tokenizer.json"
    text = read_text(path)
    file = JsonFile.parse(path, text if kind in _CLASS_TOKENS else _without_model(text))
    standard = [_special(config, role) for role in _SPECIAL_ROLES]
    named, listed = ([_special_value(config, key, value) for key, value in part] for part in _extra_special(config))
    special = [token for token in (*standard, *named, *listed) if token]
    added = _added_tokens(directory, config, file, {str(token) for token in (*standard, *listed) if token})
    if kind in _CLASS_TOKENS:
        build = _gemma if kind == "GemmaTokenizer" else _bert
        text = json.dumps(build(file, config, str(standard[2])), ensure_ascii=False)
    backend, _ = parse(text, str(path))
    with faults_named(str(path)):
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        known |= {token.content for token in added}
        for token in special:
            if str(token) not in known:
                known.add(str(token))
                added.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        # a listed token has the flags that are stated
        names = {str(token) for token in (*standard, *named) if token}
        for token in added:
            if token.content in names:
                token.special = True
        backend.add_tokens(added)
        side = config.get("truncation_side") or (backend.truncation or {}).get("direction")
        backend.no_padding()
        backend.no_truncation()
        if side == "left":
            backend.enable_truncation(48, direction="left")
        return backend.to_str()


def _class_of(config: JsonFile) -> Any:
    """transformers' class of a tokenizer, without the ending that says nothing any more."""
    name = config.get("tokenizer_class") or "TokenizersBackend"
    return name.removesuffix("Fast") if isinstance(name, str) else name


def _without_model(text: str) -> str:
    """A tokenizer.json without its largest part, which only the ``tokenizers`` package reads."""
    try:
        begin, end = scanners.json_members(text, ("model",))["model"]
    except (KeyError, ValueError):
        return text
    return f"{text[:begin]}null{text[end:]}"


def tokenizer_config(directory: Path) -> JsonFile:
    """tokenizer_config.json of a checkpoint's tokenizer directory, as transformers reads it: where
    it has no ``added_tokens_decoder``, the older special_tokens_map.json overrides its keys.

    Raises:
        FormatError: a file is missing or is not a JSON object.
    """
    config = JsonFile.read(directory / "tokenizer_config.json")
    older = directory / "special_tokens_map.json"
    if "added_tokens_decoder" not in config.content and older.exists():
        return JsonFile(config.path, config.content | JsonFile.read(older).content)
    return config


def special_token_text(config: JsonFile, role: str) -> str:
    """Text of the special token `role` ("cls", "sep", "mask", ...) in a tokenizer_config.json.

    Raises:
        FormatError: the key is missing, or neither a string nor an object with `content`.
    """
    token = _special(config, role)
    if not token or not str(token):
        config.fail(f"{role}_token", "is missing")
    return token if isinstance(token, str) else str(token.content)


def _special(config: JsonFile, role: str) -> Any:
    """The special token as it is stated, or as the tokenizer's class has it; or None."""
    defaults = _CLASS_TOKENS.get(_class_of(config)) if isinstance(_class_of(config), str) else None
    return _special_value(config, f"{role}_token", config.get(f"{role}_token")) or (defaults or {}).get(role)


def _special_value(config: JsonFile, key: str, value: Any) -> Any:
    """A special token as the str or AddedToken that transformers makes of it, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        return _added_token(config, key, value)
    config.fail(key, "must be a string or an object with `content`")


def _extra_special(config: JsonFile) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Special tokens that have a name of the model's own, and those that are listed without one, with their keys.

    The Laya runtime gives names to those that `extra_special_tokens` lists.
    """
    named = [
        (key, value)
        for key, value in config.content.items()
        if key.endswith("_token") and key.removesuffix("_token") not in _SPECIAL_ROLES and isinstance(value, str)
    ]
    listed: list[tuple[str, Any]] = []
    for key in ("extra_special_tokens", "additional_special_tokens"):
        extra = config.get(key)
        if not extra:
            continue
        if isinstance(extra, Mapping):
            named += extra.items()
        elif isinstance(extra, list):
            (named if key == "extra_special_tokens" else listed).extend((key, value) for value in extra)
        else:
            config.fail(key, "must be a list or an object")
    # which transformers looks for where nothing else has a name
    stated = config.get("model_specific_special_tokens")
    if stated and not named:
        if not isinstance(stated, Mapping):
            config.fail("model_specific_special_tokens", "must be an object")
        named += stated.items()
    return named, listed


def _added_tokens(directory: Path, config: JsonFile, file: JsonFile, special: set[str]) -> list[AddedToken]:
    """The tokens that transformers registers on top of tokenizer.json, in the order it does.

    Without ``added_tokens_decoder`` those are the ones of the older added_tokens.json and of
    tokenizer.json itself.
    """
    # the id as it is written, where it was found, the token
    listed: list[tuple[Any, JsonFile, str, Any]] = []
    entries = config.get("added_tokens_decoder")
    if entries is None:
        if (directory / "added_tokens.json").exists():
            older = JsonFile.read(directory / "added_tokens.json")
            for text, token in older.content.items():
                flag = text in special
                listed.append((token, older, text, {"content": text, "special": flag, "normalized": not flag}))
        own = file.get("added_tokens")
        for i, entry in enumerate(own if isinstance(own, list) else []):
            if isinstance(entry, Mapping):
                listed.append((entry.get("id"), file, f"added_tokens[{i}]", entry))
    elif isinstance(entries, Mapping):
        listed += [(token, config, f"added_tokens_decoder.{token}", entry) for token, entry in entries.items()]
    else:
        config.fail("added_tokens_decoder", "must be an object")
    by_id = {}
    for token, source, key, entry in listed:
        try:
            number = int(token)
        except (TypeError, ValueError, OverflowError):
            source.fail(key, f"{short_repr(token)} is not a token id")
        by_id[number] = source, key, entry  # the last one of an id counts
    return [_added_token(*by_id[number]) for number in sorted(by_id)]


def _added_token(source: JsonFile, key: str, value: Any) -> Any:
    from tokenizers import AddedToken

    if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
        source.fail(key, "must be an object with `content`")
    flags = {
        name: bool(value[name])
        for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
        if name in value
    }
    with faults_named(f"{source.path}: {key}"):  # a lone surrogate is not text
        return AddedToken(value["content"], **flags)


def _bert(file: JsonFile, config: JsonFile, unknown: str) -> dict[str, Any]:
    """tokenizer.json with the pipeline that the class BertTokenizer always gives itself."""
    data, model = _without_tokens(file)
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        vocab = {entry[0] if isinstance(entry, list) and entry else str(entry): i for i, entry in enumerate(vocab)}

    def flag(key: str, default: bool | None) -> bool | None:
        value = config.content.get(key, default)
        if not isinstance(value, bool) and not (value is None and default is None):
            config.fail(key, f"expected true or false, found {short_repr(value)}")
        return value

    data["model"] = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": vocab,
    }
    data["normalizer"] = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": flag("tokenize_chinese_chars", True),
        "strip_accents": flag("strip_accents", None),
        "lowercase": flag("do_lower_case", True),
    }
    data["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    return data


def _without_tokens(file: JsonFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tokenizer.json without its added tokens, and its model."""
    model = file.get("model")
    if not isinstance(model, dict):
        file.fail("model", "must be an object")
    return file.content | {"added_tokens": []}, model


def _gemma(file: JsonFile, config: JsonFile, unknown: str) -> dict[str, Any]:
    """tokenizer.json with the pipeline that the class GemmaTokenizer always gives itself."""
    data, model = _without_tokens(file)
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
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    data["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    return data
