"""The painted tokenizers of checkpoints.py by themselves, and the special ids that a model would have with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from checkpoints import TOKENIZERS, TokenizerKind

VOCAB = 1024
JSON = "tokenizer.huggingface.json"


def painted(kind: TokenizerKind) -> tuple[dict[str, Any], SimpleNamespace]:
    """tokenizer.json as an object, and the ids a ModelConfig would name."""
    data, roles = TOKENIZERS[kind](VOCAB)
    ids = {token["content"]: token["id"] for token in data["added_tokens"]}
    special = {f"{role}_id": ids[roles[role]] for role in ("cls", "sep", "mask")}
    return data, SimpleNamespace(vocab_size=VOCAB, **special)
