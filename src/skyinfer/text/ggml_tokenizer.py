"""The tokenizer that the `tokenizer.ggml.*` keys of a GGUF file stand for, as llama.cpp reads them.

It is what a file without `tokenizer.huggingface.json` is read by, and what a converted file is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .package_faults import faults_named
from .pre_tokenizers import METASPACE, PRE_TOKENIZERS, set_pre_tokenizer

if TYPE_CHECKING:
    import tokenizers

HUGGINGFACE_JSON = "tokenizer.huggingface.json"

# values of tokenizer.ggml.token_type (the GGUF specification)
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED = 1, 3, 4, 5
TOKENS_KEY, _TYPES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))
_PRE = "tokenizer.ggml.pre"
_NORMALIZER = "skycmd.tokenizer.normalizer"

_MAX_TOKENS = 1 << 22

# names of tokenizers whose mask token takes in the spaces on its left
_MASK_STRIPS = ("modern-bert", "mmbert", "granite-embed-multi-311m")


def rebuild(
    metadata: Mapping[str, Any], mask_id: int, *, as_llama_cpp: bool = False
) -> tuple[tokenizers.Tokenizer, int | None]:
    """The tokenizer that ``tokenizer.ggml.*`` stands for, by the name in ``tokenizer.ggml.pre``, and its largest id.

    Args:
        metadata: of the file.
        mask_id: the mask token.
        as_llama_cpp: also where llama.cpp does not do what the tokenizers do that it follows.

    Raises:
        FormatError: a key is missing or faulty, or the name is unknown.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokens = _string_list(metadata, TOKENS_KEY)
    merges = _string_list(metadata, _MERGES)
    types = metadata.get(_TYPES)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise FormatError(f"{_TYPES} must be a list of {len(tokens)} integers, one for each token")
    model = metadata.get("tokenizer.ggml.model", "gpt2")
    pre = metadata.get(_PRE)
    if model != "gpt2" or not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise FormatError(
            f"{_PRE} {short_repr(pre)} (model {short_repr(model)}) is not one that skyinfer can rebuild ("
            f"{', '.join(PRE_TOKENIZERS)}); convert the checkpoint with `skyinfer convert`, which writes "
            f"{HUGGINGFACE_JSON}"
        )
    byte_level = PRE_TOKENIZERS[pre].byte_level

    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != TOKEN_UNUSED}
    if len(vocab) + types.count(TOKEN_UNUSED) != len(tokens):
        raise FormatError(f"{TOKENS_KEY}: {len(tokens) - len(vocab)} tokens repeat another one's text")
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in merges]
    for i, pair in enumerate(pairs):
        if len(pair) != 2 or not all(pair):
            raise FormatError(f"{_MERGES}: entry {i} is not two tokens with one space between them")

    options: dict[str, Any] = {}
    if not byte_level:
        unknown = metadata.get("tokenizer.ggml.unknown_token_id")
        if type(unknown) is int and 0 <= unknown < len(tokens):
            options = {"unk_token": tokens[unknown], "fuse_unk": True}
        options["byte_fallback"] = True
    with faults_named(_MERGES):
        backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs, **options))
    with faults_named(TOKENS_KEY):
        form = _unicode_form(metadata, "NFC" if pre == "modern-bert" else "")
        set_pre_tokenizer(backend, pre, form, lines=as_llama_cpp)
        # from ids to text again, as the checkpoints' own tokenizers do it
        to_spaces = [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.ByteLevel() if byte_level else decoders.Sequence(to_spaces)

        # Neither GGUF nor llama.cpp says which tokens strip spaces.
        lstrip = _id_set(metadata, "lstrip", len(tokens), {mask_id} if pre in _MASK_STRIPS else set())
        rstrip = _id_set(metadata, "rstrip", len(tokens), set())
        backend.add_tokens(
            [
                AddedToken(
                    tokens[i],
                    special=kind == TOKEN_CONTROL,
                    normalized=kind == TOKEN_USER_DEFINED and byte_level,
                    lstrip=i in lstrip,
                    rstrip=i in rstrip,
                )
                for i, kind in enumerate(types)
                if kind in (TOKEN_CONTROL, TOKEN_USER_DEFINED)
            ]
        )
    return backend, max(vocab.values(), default=None)


def are_strings(values: list[Any]) -> bool:
    """Whether a list out of metadata, which may be long, holds nothing but strings."""
    return set(map(type, values)) <= {str}


def _string_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise FormatError(f"{key} is missing, and so is {HUGGINGFACE_JSON}: the file has no tokenizer")
    if not isinstance(value, list) or not are_strings(value):
        raise FormatError(f"{key} must be a list of strings")
    if len(value) > _MAX_TOKENS:
        raise FormatError(f"{key} has {len(value)} entries, more than {_MAX_TOKENS}")
    return value


def _unicode_form(metadata: Mapping[str, Any], default: str) -> str | None:
    name = metadata.get(_NORMALIZER, default)
    if name == "":
        return None
    if not isinstance(name, str) or name not in ("NFC", "NFD", "NFKC", "NFKD"):
        raise FormatError(f"{_NORMALIZER} {short_repr(name)} must be NFC, NFD, NFKC, NFKD or empty")
    return name


def _id_set(metadata: Mapping[str, Any], side: str, n_tokens: int, default: set[int]) -> set[int]:
    key = f"skycmd.tokenizer.{side}"
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < n_tokens for i in value):
        raise FormatError(f"{key} must be a list of token ids below {n_tokens}")
    return set(value)
