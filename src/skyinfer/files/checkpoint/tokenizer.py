"""The tokenizer of a checkpoint directory as GGUF keys, in llama.cpp's form.

hf_tokenizer.py makes one tokenizer.json of the directory's files; this file derives from it what llama.cpp's converter
writes: token texts and types in id order, merges, special ids, and the name of the pre-tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...schema import QUESTION_TYPES
from ...text.ggml_tokenizer import TOKEN_CONTROL, TOKEN_NORMAL, TOKEN_UNUSED, TOKEN_USER_DEFINED
from ...text.pre_tokenizers import METASPACE, PRE_TOKENIZERS
from ...text.template import KEY as TEMPLATE_KEY
from ..json_file import JsonFile
from .hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config
from .pre_tokenizer import name_of

# `tokenizer.ggml.model` of a tokenizer that llama.cpp does not have: it reads no file with a name that it does not know
UNKNOWN_MODEL = "huggingface"


def tokenizer_metadata(
    directory: Path, vocab_size: int, pre: str | None, *, template: Callable[[str, str, str], str] | None
) -> dict[str, Any]:
    """GGUF keys of the vocabulary, the special tokens and the template.

    Args:
        directory: the checkpoint's tokenizer/.
        vocab_size: rows of the embedding.
        pre: `tokenizer.ggml.pre`; None: the name of llama.cpp's that splits text as the tokenizer does.
        template: gives the template for the texts of the cls, sep and mask tokens; None for a model without.

    Raises:
        FormatError: a file is missing or faulty, or the tokenizer is one that GGUF cannot describe.
    """
    settings = tokenizer_config(directory)
    canonical = canonical_tokenizer_json(directory)
    tokenizer = JsonFile.parse(directory / "tokenizer.json", canonical)
    model = tokenizer.content["model"]
    is_wordpiece = model.get("type") == "WordPiece"
    if model.get("type") != "BPE" and not is_wordpiece:
        tokenizer.fail("model.type", f"{model.get('type')!r} is not supported (BPE and WordPiece are)")
    added = {token["id"]: token for token in tokenizer.content["added_tokens"]}
    ids = _vocabulary(tokenizer, model, added, vocab_size)

    def required(role: str) -> tuple[str, int]:
        text = special_token_text(settings, role)
        if text not in ids:
            settings.fail(f"{role}_token", f"{text!r} is not in the vocabulary")
        return text, ids[text]

    def optional(role: str) -> int | None:
        if settings.get(f"{role}_token") is None:
            return None
        return ids.get(special_token_text(settings, role))

    (cls_text, cls_id), (sep_text, sep_id) = required("cls"), required("sep")
    mask_text, mask_id = required("mask")
    eos_id = optional("eos")
    if is_wordpiece:
        described = _wordpiece(tokenizer, model, *_tokens(ids, added, vocab_size, runs_of_spaces=False))
    else:
        pre = pre or name_of(tokenizer.content, mask_lstrip=added.get(mask_id, {}).get("lstrip") is True)
        tokens, token_types = _tokens(ids, added, vocab_size, runs_of_spaces=not PRE_TOKENIZERS[pre].byte_level)
        described = {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": token_types,
            "merges": _merges(model),
        }

    keys: dict[str, Any] = {
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": True,
        **described,
        "bos_token_id": cls_id,
        "eos_token_id": sep_id if eos_id is None else eos_id,
        "unknown_token_id": optional("unk"),
        "seperator_token_id": sep_id,
        "padding_token_id": optional("pad"),
        "mask_token_id": mask_id,
        "token_type_count": len(QUESTION_TYPES),
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    if template is not None:
        metadata[TEMPLATE_KEY] = template(cls_text, sep_text, mask_text)
        metadata["tokenizer.chat_templates"] = ["systemone"]
    metadata["tokenizer.huggingface.json"] = canonical
    normalizer = tokenizer.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
        metadata["skycmd.tokenizer.normalizer"] = normalizer["type"]
    for side in ("lstrip", "rstrip"):
        stripping = [token_id for token_id, token in sorted(added.items()) if token.get(side) is True]
        if stripping:
            metadata[f"skycmd.tokenizer.{side}"] = stripping
    return metadata


def _wordpiece(tokenizer: JsonFile, model: dict[str, Any], tokens: list[str], token_types: list[int]) -> dict[str, Any]:
    """What llama.cpp reads of a WordPiece tokenizer in BERT's form: a mark where a word begins, in place of one where
    it goes on. For any other it is given a model that it does not know, and refuses the file."""
    normalizer, pre_tokenizer = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer") or {}
    is_bert = (
        normalizer.get("type") == "BertNormalizer"
        and normalizer.get("clean_text") is True
        and normalizer.get("handle_chinese_chars") is True
        and pre_tokenizer.get("type") == "BertPreTokenizer"
        and model.get("continuing_subword_prefix") == "##"
        and model.get("unk_token") in tokens
    )
    if not is_bert:
        return {"model": UNKNOWN_MODEL, "tokens": tokens, "token_type": token_types}
    for i, (text, kind) in enumerate(zip(tokens, token_types, strict=True)):
        if kind != TOKEN_CONTROL:
            tokens[i] = text[2:] if text.startswith("##") else METASPACE + text
    lowercase, strip_accents = normalizer.get("lowercase") is True, normalizer.get("strip_accents")
    return {
        "model": "bert",
        "tokens": tokens,
        "token_type": token_types,
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": lowercase if strip_accents is None else strip_accents is True,
    }


def _vocabulary(
    tokenizer: JsonFile,
    model: dict[str, Any],
    added: Mapping[int, dict[str, Any]],
    vocab_size: int,
) -> dict[str, int]:
    """Text -> id of every token, each id inside the embedding."""
    ids: dict[str, int] = model["vocab"] | {token["content"]: token_id for token_id, token in added.items()}
    for text, token_id in ids.items():
        if not 0 <= token_id < vocab_size:
            tokenizer.fail("model.vocab", f"id {token_id} of {text!r} is outside {vocab_size} rows")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            tokenizer.fail("model.vocab", f"token {token_id} is not Unicode text: {text!r}")
    return ids


def _tokens(
    ids: Mapping[str, int],
    added: Mapping[int, dict[str, Any]],
    vocab_size: int,
    *,
    runs_of_spaces: bool,
) -> tuple[list[str], list[int]]:
    """Token texts and types in id order, as llama.cpp's converter gives them."""
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TOKEN_UNUSED] * vocab_size
    for text, token_id in ids.items():
        tokens[token_id], types[token_id] = text, TOKEN_NORMAL
    for token_id, token in added.items():
        text = token["content"]
        if token.get("special") is True or _looks_special(text):
            types[token_id] = TOKEN_CONTROL
        else:
            types[token_id], text = TOKEN_USER_DEFINED, text.replace(METASPACE, " ")
            # the reference never matches the added runs of spaces, so they must not be cut out of text
            if runs_of_spaces and text and not text.strip(" "):
                types[token_id], text = TOKEN_NORMAL, METASPACE * len(text)
        tokens[token_id] = text
    return tokens, types


def _looks_special(text: str) -> bool:
    """Control tokens that some tokenizers forget to mark; the list is llama.cpp's."""
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(start) and text.endswith(end)
        for start, end in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    )


def _merges(model: dict[str, Any]) -> list[str]:
    """Merges as "left right"; a space inside a part is written as its byte-level letter, as llama.cpp does."""
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    for i, merge in enumerate(merges):
        if merge.count(" ") != 1:  # few have one inside a part
            pair = model["merges"][i]
            parts = pair.split(" ", 1) if isinstance(pair, str) else pair
            merges[i] = " ".join(part.replace(" ", "\u0120") for part in parts)
    return merges
