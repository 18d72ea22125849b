"""A byte-level BPE tokenizer of a given size, learned from the text that a model will read.

In ModernBERT's form, which every reader of Laya checkpoints knows: NFC, the GPT-2 split, special tokens behind the
vocabulary, `[MASK]` taking in the space on its left. The ``tokenizers`` package learns the merges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ROLES = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}

# every byte, and every special token
LEAST_SIZE = 256 + len(ROLES)


def learn_tokenizer(texts: Iterable[str], size: int) -> dict[str, Any]:
    """The tokenizer.json learned from `texts`, as an object: at most `size` tokens, fewer where the texts have no more.

    The same texts, however they are ordered, give the same tokenizer.
    """
    import json

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(ROLES), min_frequency=1, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    learned = json.loads(backend.to_str())["model"]
    n = len(learned["vocab"])
    ids = {content: n + i for i, content in enumerate(ROLES.values())}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": content, "single_word": False, "lstrip": content == ROLES["mask"], "rstrip": False,
             "normalized": False, "special": True}
            for content, token in ids.items()
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level | {"add_prefix_space": False},
        "post_processor": _post_processor(ids),
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": learned["vocab"], "merges": learned["merges"],
        },
    }  # fmt: skip


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """The tokenizer_config.json that belongs to it."""
    special: dict[str, Any] = {f"{role}_token": content for role, content in ROLES.items()}
    return special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }


def _post_processor(ids: dict[str, int]) -> dict[str, Any]:
    """[CLS] text [SEP], and [CLS] text [SEP] text [SEP] for a pair: what ModernBERT's has, though no sequence of a
    decision model is made with it."""
    cls, sep = ROLES["cls"], ROLES["sep"]

    def special(token: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def text(name: str, type_id: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    return {
        "type": "TemplateProcessing",
        "single": [special(cls, 0), text("A", 0), special(sep, 0)],
        "pair": [special(cls, 0), text("A", 0), special(sep, 0), text("B", 1), special(sep, 1)],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (cls, sep)},
    }
