"""Pieces of a tokenizer.json that its Rust code takes on trust, of a hostile prompt template, of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# what releases of transformers take from encoder/config.json
ENCODER_ENTRIES = list(
    json.loads((Path(__file__).parents[1] / "golden" / "encoder_config.json").read_text(encoding="utf-8"))["keys"]
)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_REGEXES = [
    "(a+)+$", "(a|a)*c", "", "a*", "(?=a)", "(?<=a", "[", r"\p{L}+", "(.*)*x", "^", r"(\w+\s?)+!", ".", "(?i)[^\\r]?+",
]  # fmt: skip
_NORMALIZERS: list[Any] = [
    {"type": "NFC"}, {"type": "NFKD"}, {"type": "Nmt"}, {"type": "Lowercase"}, {"type": "StripAccents"},
    {"type": "ByteLevel"}, {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="},
    {"type": "Precompiled", "precompiled_charsmap": "CAAAAP////8AAAAAYQBiAA=="},
    {"type": "Prepend", "prepend": "\u2581" * 16},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
    "lowercase": True},
    {"type": "Sequence", "normalizers": [_replace({"String": "a"}, "a" * 16)] * 9},
    {"type": "Sequence", "normalizers": [_replace({"String": ""}, "a" * 16)] * 6},
    {"type": "Sequence", "normalizers": [_replace({"Regex": "."}, "ab")] * 30},
    {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}, _replace({"String": "a"}, "b" * 40),
    {"type": "Sequence", "normalizers": []}, *[_replace({"Regex": regex}, "b") for regex in _REGEXES],
]  # fmt: skip
_PRE_TOKENIZERS: list[Any] = [
    _BYTE_LEVEL, {"type": "Sequence", "pretokenizers": [_BYTE_LEVEL] * 40}, {"type": "Whitespace"},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "UnicodeScripts"}, {"type": "Digits", "individual_digits": True}, {"type": "BertPreTokenizer"},
    {"type": "CharDelimiterSplit", "delimiter": "a"}, {"type": "FixedLength", "length": 0},
    {"type": "FixedLength", "length": 5}, {"type": "Sequence", "pretokenizers": []},
    *[_split(regex) for regex in _REGEXES],
]  # fmt: skip
_MODELS: list[Any] = [
    {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
    {"type": "WordPiece", "vocab": {"a": 0, "##a": 1}, "unk_token": "a", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 10},
    {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "no", "continuing_subword_prefix": "",
    "max_input_chars_per_word": 0},
    {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], ["b", 0.0]], "byte_fallback": True},
    {"type": "Unigram", "unk_id": None, "vocab": [["a", 0]]}, {"type": "Unigram", "unk_id": 9, "vocab": []},
    {"type": "BPE", "vocab": {}, "merges": []}, {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]},
    {"type": "BPE", "vocab": {"a": 4294967295}, "merges": [], "dropout": 1.0},
    {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": [], "unk_token": "zz"},
]  # fmt: skip
_TRUNCATIONS: list[Any] = [
    {"direction": "Left", "max_length": 2**64 - 1, "strategy": "LongestFirst", "stride": 2**64 - 1},
    {"direction": "Right", "max_length": 0, "strategy": "OnlyFirst", "stride": 5}, None, "x",
]  # fmt: skip
_PADDINGS: list[Any] = [
    {"strategy": {"Fixed": 2**60}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 7, "pad_type_id": 0,
    "pad_token": ""},
]  # fmt: skip
TOKENIZER_PARTS = {
    "normalizer": _NORMALIZERS, "pre_tokenizer": _PRE_TOKENIZERS, "model": _MODELS, "truncation": _TRUNCATIONS,
    "padding": _PADDINGS, "post_processor": [None, _BYTE_LEVEL], "decoder": [None, {"type": "Fuse"}, _BYTE_LEVEL],
}  # fmt: skip

JINJA = [
    "{% for i in range(999999999) %}x{% endfor %}", "{{ ''.__class__ }}", "{{ options|length }}", "{% set x = 1 %}",
    "{{ 1/0 }}", "{% for o in options %}{% for p in options %}{{ p.key }}{% endfor %}{% endfor %}",
    "{{ 'x' * 999999999 }}", "{% raw %}", "{#", "{{ state | tojson }}", "{{ 10 ** 10 ** 10 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% include 'x' %}", "{{ self }}", "{{ o.key }}",
    "{{ instructions }}", "{{ state }}", "{{ type }}", "{{ '\\d' }}", "{{ '\\777' }}", "{{ 'a' is string }}",
    "{{ 1 is 1 }}", "{{ 'a' 'b' }}", "{% if type == 'choice' %}a{% endif %}", "{{ 1e999 }}", "{{ " + "9" * 5000 + " }}",
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{{ " + "not " * 2000 + "1 }}", "[SEP]", "[MASK]", "[CLS]",
    "{{ none | tojson }}", "{% break %}", "{% if a %}" * 200, "{{ '{' }}", "\0", "\ue000",
    "{% for o in options recursive %}{{ loop(options) }}{% endfor %}", "{{ undefined_name }}", "{{ 'x'.format(1) }}",
    "{{ o['key'] }}", "{{ o[0:1] }}", "{{ true and false or 1 == 2 < 3 }}", "{{ '\\N{DIGIT ONE}' }}", "{{ '\\ud800' }}",
    "{{ type if type }}", "{{- state -}}", "{%- if 1 %}",
]  # fmt: skip
