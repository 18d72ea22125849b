"""Mutated model files and mutated requests, by the hundred thousand: nothing but the documented errors may come out.

    python tests/fuzz.py files|requests|both --rounds N --seed S [--first ROUND] [--minutes M]

A round is made from (kind, seed, round) alone, so a fault is seen again with `--first ROUND --rounds 1`. Rounds run in
a child process under a watchdog: a crash, a hang, a memory blow-up and a wrong exception are all reported with the
round that did it, and its input is saved. Exit status 1 where there was a fault. A short run is part of the suite
(test_fuzz.py).
"""

# ruff: noqa: PT017, PT018 (assertions here are checks of the fuzzer, not of pytest)

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import decimal
import enum
import faulthandler
import json
import math
import mmap
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from checkpoints import paint

import skyinfer
from skyinfer import _core, cli
from skyinfer.conversion import convert
from skyinfer.errors import FormatError, RequestError
from skyinfer.schema import parse_request

MEMORY_LIMIT = 4 << 30
MAX_FAULTS = 20

ISAS = [name for name in _core.isa_names() if _core.isa_supported(name)]
# what loading may say; anything else that is warned of is a fault
_DOCUMENTED_WARNINGS = re.compile("temperature|is not an option bucket|llama.cpp has no name for this tokenizer")

# ------------------------------------------------------------------------------ values that have hurt somebody before

_WHOLE = [
    0, 1, -1, 2, 3, 7, 64, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip
_REAL = [-0.0, 0.5, -1.5, 1e-320, 1e-45, 1e-30, 3.4e38, 1e39, 1e300, math.inf, -math.inf, math.nan]
_TEXT = [
    "", " ", "a", "\0", "\n", "0", "true", "false", "null", "NaN", "choice", "score", "noul", "level 0: ", "{}", "{0}",
    "%s", "[MASK]", "[SEP]", "[CLS]", "[PAD]", "[MA[MASK]SK]", "<mask>", "<eos>", "<bos>", "\u2581", "\u212b",
    "e\u0301", "\u1100\u1161", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u202e", "\ufeff", "\uffff", "\U0010ffff",
    "\ue000", "a" * 300, "\ufdfa" * 40, " " * 100, "\u0301" * 200, "<0x00>", "modern-bert", "gpt-2", "mmbert", "gelu",
    "swish", "silu", "laya", "../../x",
]  # fmt: skip
_BIG_TEXT: list[Callable[[], str]] = [
    lambda: "a" * 200_000, lambda: "word " * 20_000, lambda: "\U0001f600" * 20_000, lambda: "[MASK]" * 20_000,
    lambda: "e\u0301\u0327" * 20_000, lambda: "\n" * 50_000,
]  # fmt: skip


def _nested(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = make(value)
    return value


def hostile(rng: random.Random) -> Any:
    """A value that JSON can hold."""
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(_WHOLE)
    if kind < 5:
        return rng.choice(_REAL)
    if kind < 8:
        return rng.choice(_TEXT)
    if kind == 8:
        return rng.choice([None, True, False, 10**30, "\ud800", "a\udfffb"])
    if kind == 9:
        return rng.choice([[], {}, [[]], [None], {"": None}, {"a": 1, "b": [2]}, [0, 1], ["a", "a"], [1, 1.0, True]])
    if kind == 10:
        return [hostile(rng) for _ in range(rng.randrange(4))]
    return {rng.choice(_TEXT): hostile(rng) for _ in range(rng.randrange(4))}


def mutate_json(rng: random.Random, value: Any, odd: Callable[[random.Random], Any] = hostile) -> Any:
    """`value` with one place changed: replaced, removed, repeated, moved or wrapped. Changes containers in place."""
    if not isinstance(value, (dict, list)) or not value:
        return _changed_leaf(rng, value, odd)
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.62:  # go deeper
        changed = mutate_json(rng, value[key], odd)
        with contextlib.suppress(IndexError):  # a list that holds itself may have lost this place
            value[key] = changed
        return value
    what = rng.randrange(6)
    if what == 0:
        del value[key]
    elif what == 1 and isinstance(value, list):
        value.insert(rng.randrange(len(value) + 1), copy.copy(value[key]))
    elif what == 1:
        with contextlib.suppress(TypeError):
            value[odd(rng)] = value[key]
    elif what == 2:
        other = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value[key], value[other] = value[other], value[key]
    elif what == 3:
        value[key] = rng.choice(
            [[value[key]], {"type": "Sequence", "content": value[key]}, rng.choice(_TEXT), [value[key]] * 3]
        )
    elif what == 4 and isinstance(value, list):
        rng.shuffle(value)
    else:
        value[key] = odd(rng)
    return value


def _changed_leaf(rng: random.Random, value: Any, odd: Callable[[random.Random], Any]) -> Any:
    if isinstance(value, bool) or value is None or rng.random() < 0.5:
        return (not value) if isinstance(value, bool) and rng.random() < 0.5 else odd(rng)
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value * 2, value << 32, 0.5 * (value & 0xFFFF), hex(value)])
    if isinstance(value, float):
        return rng.choice([-value, value * 1e30, value / 1e30, math.nan, str(value)])
    if isinstance(value, str):
        return mutate_text(rng, value)
    return odd(rng)


def mutate_text(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    to = min(len(text), at + rng.choice([0, 0, 1, 2, 8]))
    return text[:at] + rng.choice([*_TEXT, text, "\n", "\\"]) + text[to:]


def mutate_bytes(rng: random.Random, data: bytes, where: int | None = None) -> bytes:
    """`data` with some bytes flipped, overwritten, cut, repeated or added; within the first `where` bytes, if given."""
    out = bytearray(data)
    top = min(len(out), where or len(out))
    if not top:
        return rng.randbytes(20)
    at, run = rng.randrange(top), rng.choice([1, 1, 2, 4, 8, 16, 100])
    what = rng.randrange(8)
    if what == 0:
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            out[rng.randrange(top)] ^= 1 << rng.randrange(8)
    elif what == 1:
        out[at : at + run] = rng.randbytes(run)
    elif what == 2:
        out[at : at + run] = bytes([rng.choice([0, 1, 127, 128, 255])]) * run
    elif what == 3:
        out[at : at + 8] = struct.pack("<Q", rng.choice(_WHOLE) & 0xFFFFFFFFFFFFFFFF)
    elif what == 4:
        del out[at:]
    elif what == 5:
        del out[at : at + run]
    elif what == 6:
        out[at:at] = out[at : at + run]
    else:
        out += rng.randbytes(run)
    return bytes(out)


# pieces of a tokenizer.json that its Rust code takes on trust
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
_TOKENIZER_PARTS = {
    "normalizer": _NORMALIZERS, "pre_tokenizer": _PRE_TOKENIZERS, "model": _MODELS, "truncation": _TRUNCATIONS,
    "padding": _PADDINGS, "post_processor": [None, _BYTE_LEVEL], "decoder": [None, {"type": "Fuse"}, _BYTE_LEVEL],
}  # fmt: skip

# pieces of a hostile template
_JINJA = [
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

# ------------------------------------------------------------------------------------------------- GGUF, faults and all

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


class GGUF:
    """A GGUF file in pieces that can be made wrong one by one.

    entries: [key, value type, value], a string as bytes, an array as (element type, list); tensors: [name, dims, type,
    offset]; counts: what the header says instead of the true number of tensors and keys.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4
        self.version, n_tensors, n_entries = self._take("I"), self._take("Q"), self._take("Q")
        self.entries: list[list[Any]] = []
        for _ in range(n_entries):
            key, kind = self._string(), self._take("I")
            self.entries.append([key, kind, self._value(kind)])
        self.tensors: list[list[Any]] = []
        for _ in range(n_tensors):
            name, n_dims = self._string(), self._take("I")
            dims = [self._take("Q") for _ in range(n_dims)]
            self.tensors.append([name, dims, self._take("I"), self._take("Q")])
        self.weights = data[-(-self._at // _ALIGNMENT) * _ALIGNMENT :]
        self.header_bytes = self._at
        self.counts: dict[str, int] = {}

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> bytes:
        size = self._take("Q")
        self._at += size
        return self._data[self._at - size : self._at]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, count = self._take("I"), self._take("Q")
            return kind, [self._value(kind) for _ in range(count)]
        return self._take(_FORMATS[kind])

    def copy(self) -> GGUF:
        """A copy whose entries and tensors can be changed; values are to be replaced, not changed."""
        twin = copy.copy(self)
        twin.entries = [list(entry) for entry in self.entries]
        twin.tensors = [list(tensor) for tensor in self.tensors]
        twin.counts = {}
        return twin

    def encoded(self) -> bytes:
        out = bytearray(b"GGUF")
        counts = (self.counts.get("tensors", len(self.tensors)), self.counts.get("entries", len(self.entries)))
        out += struct.pack("<IQQ", self.version & 0xFFFFFFFF, *counts)
        for key, kind, value in self.entries:
            out += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + _encoded(kind, value)
        for name, dims, kind, offset in self.tensors:
            out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
            out += b"".join(_encoded(10, n) for n in dims) + _encoded(4, kind) + _encoded(10, offset)
        self.header_bytes = len(out)
        out += bytes(-len(out) % _ALIGNMENT) + self.weights
        return bytes(out)


def _encoded(kind: int, value: Any) -> bytes:
    """The bytes of `value` as `kind`, bent to fit where it does not."""
    if kind == _STRING:
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(text)) + text
    if kind == _ARRAY:
        kind, items = value if isinstance(value, tuple) else (4, [value])
        return struct.pack("<IQ", kind, len(items)) + b"".join(_encoded(kind, item) for item in items)
    form = _FORMATS.get(kind, "Q")
    if isinstance(value, (bytes, str, tuple, list, dict)) or value is None:
        value = len(value or "")
    if form in "fd":
        try:
            return struct.pack("<" + form, value)
        except (OverflowError, struct.error):
            return struct.pack("<" + form, math.inf)
    size = struct.calcsize(form)
    whole = int(value) if math.isfinite(value) else 0
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "little")


# ------------------------------------------------------------------------------------------------------------- answers


def check_response(response: Any, questions: dict[Any, Any], name: str) -> None:
    """Assert that an envelope is well formed: every question answered, in order, by finite probabilities of sum 1."""
    assert list(response) == ["model", "answers", "usage"], list(response)
    assert response["model"] == name
    usage = response["usage"]
    assert list(usage) == ["input_tokens", "output_tokens"] and usage["output_tokens"] == 0
    assert type(usage["input_tokens"]) is int and usage["input_tokens"] >= 3 * len(questions)
    assert list(response["answers"]) == list(questions)
    for key, answer in response["answers"].items():
        kind = questions[key]["type"]
        extra = set(answer) - {"type", kind, "probabilities", "confidence", "legend"}
        assert answer["type"] == kind and all(field.startswith("x_") for field in extra), answer
        if kind == "noul":
            p = [answer["noul"], 1 - answer["noul"]]
        else:
            p = list(answer["probabilities"].values())
            assert len(p) == len(questions[key]["criteria"])
            assert type(answer["confidence"]) is float and 0 <= answer["confidence"] <= 1 + 1e-9
        assert all(type(value) is float and 0 <= value <= 1 for value in p), p
        assert abs(math.fsum(p) - 1) < 1e-9, p
        if kind == "score":
            assert 0 <= answer["score"] <= len(p) - 1 + 1e-9
        if kind == "choice":
            assert answer["probabilities"][answer["choice"]] == max(p)


@contextlib.contextmanager
def _only_documented_warnings() -> Any:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        if warning.category is not RuntimeWarning or not _DOCUMENTED_WARNINGS.search(str(warning.message)):
            raise AssertionError(
                f"warned: {warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})"
            )


# ----------------------------------------------------------------------------------------------------------- the kinds

_TINY = {
    "d_model": 4,
    "n_layers": 1,
    "n_heads": 1,
    "d_ff": 4,
    "head_layers": 1,
    "vocab": 272,
    "max_len": 64,
    "head_max_len": 40,
}
_WIDE = {"d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 32}
_META: dict[str, Any] = {"tokenizer": "metaspace", "vocab": 384}

_QUESTIONS: dict[str, Any] = {
    "action": {"type": "choice", "instructions": "Which input?", "criteria": {"up": "thrust", "dn": None,
    "x": {"a": 1}}},
    "risk": {"type": "score", "instructions": {"ask": "How high?"}, "criteria": ["none", "some", ["a", "lot"]]},
    "crash": {"type": "noul", "instructions": "Will it crash?", "criteria": {"true": "yes"}, "labels": {"true": "y",
    "false": "n"}},
    "list": {"type": "choice", "instructions": "Pick", "criteria": ["a", 2, True], "option_order": [2, 0, 1]},
}  # fmt: skip
_STATES: list[Any] = [
    "vy -1.5, gap 20 [MASK]",
    {"role": "user", "n": [1.0, -0.0, 1e22]},
    [{"role": "user", "content": "a"}, {"b": "c"}] * 3,
]

Outcome = str


class Files:
    """Mutated GGUF files and, one round in eight, checkpoint directories; what loads then decides one request."""

    outcomes = ("answered", "loaded, not answered", "refused")

    def __init__(self, work: Path) -> None:
        self.work = work
        self.files: list[GGUF] = []
        self.directories: list[dict[str, bytes]] = []
        bases: list[tuple[str, bool, dict[str, Any]]] = [
            ("f32", False, {}),
            ("f16", True, {"head_layers": 0, "n_layers": 2, "max_len": 24}),
            ("bf16", True, {**_META, "activation": "silu"}),
            ("f16", False, {**_META, "special_tokens": "object"}),
            ("q8_0", False, {**_WIDE, "vocab": 300, "spare_rows": 8}),
            ("f32", True, {"n_layers": 4, "local_attention": 8, "dtype": "BF16", "shards": 2}),
            ("q8_0", False, {**_META, **_WIDE, "rope": "parameters", "dtype": "F16"}),
            ("f32", False, {"agent_config_name": "julia_config.json", "layers": "both", "temperature": [1, 2, 3],
            "temperature_by_options": {}}),
        ]  # fmt: skip
        for i, (outtype, without_json, changes) in enumerate(bases):
            directory = paint(work / f"base{i}", **(_TINY | changes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file = GGUF(convert(directory, work / "base.gguf", outtype=outtype, force=True).read_bytes())
            if without_json:
                file.entries = [entry for entry in file.entries if entry[0] != b"tokenizer.huggingface.json"]
            self.files.append(file)
            self.directories.append(
                {
                    path.relative_to(directory).as_posix(): path.read_bytes()
                    for path in directory.rglob("*")
                    if path.is_file()
                }
            )
        with warnings.catch_warnings():  # what other packages say while they are imported is not the files' fault
            warnings.simplefilter("ignore")
            skyinfer.load(work / "base0")
        self.keys = sorted({entry[0] for file in self.files for entry in file.entries})

    def case(self, rng: random.Random) -> bytes | dict[str, bytes]:
        if rng.random() < 0.125:
            return self._directory(rng)
        file = rng.choice(self.files).copy()
        style = rng.random()
        if style < 0.75:
            for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
                self._damage(rng, file)
        data = file.encoded()
        if style > 0.65:
            for _ in range(rng.choice([1, 1, 2, 4])):
                data = mutate_bytes(rng, data, rng.choice([None, 32, 600, file.header_bytes]))
        return data

    def _damage(self, rng: random.Random, file: GGUF) -> None:
        what = rng.randrange(100)
        if not file.entries or not file.tensors:
            return
        if what < 60:
            entry = rng.choice(file.entries)
            if what < 4:
                file.entries.remove(entry)
            elif what < 6:
                file.entries.append(list(entry))
            elif what < 10:
                entry[0] = rng.choice([*self.keys, b"", b"\xff", b"a" * 70_000, mutate_bytes(rng, entry[0])])
            elif what < 13:
                other = rng.choice(file.entries)
                entry[1:], other[1:] = other[1:], entry[1:]
            elif what < 15:
                rng.shuffle(file.entries)
            else:
                self._damage_value(rng, entry)
        elif what < 80:
            tensor = rng.choice(file.tensors)
            self._damage_tensor(rng, file, tensor)
        elif what < 96:
            self._damage_weights(rng, file)
        elif what < 99:
            file.counts[rng.choice(["tensors", "entries"])] = rng.choice([*_WHOLE[3:], 1, len(file.tensors) + 1]) & (
                2**64 - 1
            )
        else:
            file.version = rng.choice([0, 1, 2, 4, 3 << 24, 2**31])

    def _damage_value(self, rng: random.Random, entry: list[Any]) -> None:
        key, kind, value = entry
        if kind == _STRING and not isinstance(value, bytes):
            entry[2] = hostile(rng)
        elif kind == _STRING and key == b"tokenizer.huggingface.json" and rng.random() < 0.9:
            entry[2] = self._damage_tokenizer(rng, value)
        elif kind == _STRING and key.startswith(b"tokenizer.chat_template") and rng.random() < 0.9:
            entry[2] = self._damage_template(rng, value.decode()).encode("utf-8", "replace")
        elif kind == _ARRAY and isinstance(value, tuple) and rng.random() < 0.85:
            inner, items = value
            items = list(items)
            at = rng.randrange(len(items)) if items else 0
            what = rng.randrange(9)
            if what == 0:
                del items[at : at + rng.choice([1, 1, 1, len(items)])]
            elif what == 1:
                items[at:at] = items[at : at + 1] * rng.choice([1, 1, 1000])
            elif what == 2:
                rng.shuffle(items)
            elif what == 3:
                inner = rng.choice([*_FORMATS, _STRING])
            elif what == 4:
                inner, items = _ARRAY, [(inner, items)] * rng.choice([0, 1, 2])
            elif inner == _STRING and items:
                text = (items[at] if isinstance(items[at], bytes) else b"").decode("utf-8", "replace")
                items[at] = rng.choice([mutate_text(rng, text), rng.choice(_TEXT), items[rng.randrange(len(items))]])
            elif items:
                items[at] = rng.choice(_REAL if inner in (6, 12) else _WHOLE)
            entry[2] = inner, items
        elif rng.random() < 0.25:
            entry[1] = rng.choice([*_FORMATS, _STRING, 13, 255])
            entry[2] = hostile(rng) if rng.random() < 0.5 else value
        elif kind == _STRING:
            entry[2] = rng.choice([mutate_text(rng, value[:2000].decode()), rng.choice(_TEXT)]).encode(
                "utf-8", "surrogatepass"
            )
        elif not isinstance(value, (int, float)):
            entry[2] = hostile(rng)
        elif kind in (6, 12):
            entry[2] = rng.choice([*_REAL, value * 2, -value])
            entry[1] = rng.choice([6, 12])
        elif kind in _FORMATS:
            entry[2] = rng.choice([*_WHOLE, value + 1, value - 1, value * 2, 131072, 1024])
            entry[1] = rng.choice([kind, kind, kind, 10, 11])

    def _damage_tokenizer(self, rng: random.Random, text: bytes) -> bytes:
        if rng.random() < 0.1:
            return mutate_text(rng, text.decode()).encode("utf-8", "replace")
        tokenizer = json.loads(text)
        for _ in range(rng.choice([1, 1, 2, 3])):
            part = rng.choice(list(_TOKENIZER_PARTS))
            what = rng.random()
            if what < 0.3:
                tokenizer[part] = copy.deepcopy(rng.choice(_TOKENIZER_PARTS[part]))
            elif what < 0.4:
                token = (
                    copy.deepcopy(rng.choice(tokenizer["added_tokens"] or [{}]))
                    if isinstance(tokenizer.get("added_tokens"), list)
                    else {}
                )
                if isinstance(token, dict):
                    token |= {rng.choice(["content", "id", "lstrip", "normalized", "single_word"]): hostile(rng)}
                tokenizer["added_tokens"] = [*(tokenizer.get("added_tokens") or []), token]
            elif what < 0.7 and tokenizer.get(part):
                tokenizer[part] = mutate_json(rng, tokenizer[part])
            else:
                tokenizer = mutate_json(rng, tokenizer)
                if not isinstance(tokenizer, dict):
                    break
        return json.dumps(tokenizer, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")

    @staticmethod
    def _damage_template(rng: random.Random, template: str) -> str:
        what = rng.random()
        if what < 0.1:
            return rng.choice([*_JINJA, *_TEXT])
        if what < 0.2:
            return "".join(rng.choice(_JINJA) for _ in range(rng.randrange(1, 6)))
        if what < 0.35:
            return mutate_text(rng, template)
        pieces = re.split(r"(\{[{%].*?[%}]\})", template)
        at = rng.randrange(len(pieces))
        pieces[at : at + rng.randrange(2)] = [rng.choice([*_JINJA, rng.choice(pieces)])]
        return "".join(pieces)

    @staticmethod
    def _damage_tensor(rng: random.Random, file: GGUF, tensor: list[Any]) -> None:
        what = rng.randrange(9)
        if what == 0:
            file.tensors.remove(tensor)
        elif what == 1:
            file.tensors.append(list(tensor))
        elif what == 2:
            tensor[0] = rng.choice(
                [rng.choice(file.tensors)[0], b"", b"blk.99999999999.x", mutate_bytes(rng, tensor[0])]
            )
        elif what < 5:
            dims = list(tensor[1]) or [1]
            at = rng.randrange(len(dims))
            dims[at] = rng.choice([*_WHOLE, dims[at] + 1, dims[at] * 2, dims[at] - 1])
            tensor[1] = rng.choice([dims, dims[::-1], [*dims, 1], [1, *dims], [], dims * 3])
        elif what < 7:
            tensor[2] = rng.choice([*range(45), 2**31, 2**32 - 1])
        elif what == 7:
            tensor[3] = rng.choice([*_WHOLE, tensor[3] + 32, tensor[3] + 1, rng.choice(file.tensors)[3]])
        else:
            other = rng.choice(file.tensors)
            tensor[3], other[3] = other[3], tensor[3]

    @staticmethod
    def _damage_weights(rng: random.Random, file: GGUF) -> None:
        weights = bytearray(file.weights)
        pattern = rng.choice(
            [struct.pack("<f", v) for v in (math.nan, math.inf, 3.4e38, -3.4e38, 1e-42, 1e20)]
            + [b"\xff\x7b", b"\0\x7c", b"\0\0", b"\x7f\x7f", b"\xff" * 4]
        )
        run = rng.choice([1, 1, 4, 100, len(weights)])
        at = rng.randrange(max(1, len(weights))) // 4 * 4
        chunk = (pattern * run)[: len(weights) - at]
        weights[at : at + len(chunk)] = chunk
        file.weights = bytes(weights) if rng.random() < 0.9 else bytes(weights[:at])

    def _directory(self, rng: random.Random) -> dict[str, bytes]:
        files = dict(rng.choice(self.directories))
        for _ in range(rng.choice([1, 1, 2, 3])):
            name = rng.choice(sorted(files))
            what = rng.random()
            if what < 0.06:
                del files[name]
                if not files:
                    break
            elif what < 0.14:
                files[name] = mutate_bytes(rng, files[name], rng.choice([None, 64]))
            elif what < 0.16:
                depth = rng.choice([500, 900, 960, 980, 100_000])
                files[name] = b'{"vocab_size":' + b"[" * depth + b"]" * depth + b"}"
            elif name.endswith(".json") and files[name][:1] == b"{":
                with contextlib.suppress(ValueError, RecursionError):
                    if name.endswith("tokenizer.json") and rng.random() < 0.7:
                        files[name] = self._damage_tokenizer(rng, files[name])
                    else:
                        value = mutate_json(rng, json.loads(files[name]))
                        if name.endswith("tokenizer_config.json") and isinstance(value, dict) and rng.random() < 0.3:
                            value |= self._tokenizer_settings(rng)
                        files[name] = json.dumps(value).encode()
            elif name.endswith(".safetensors"):
                with contextlib.suppress(ValueError, RecursionError):
                    size = int.from_bytes(files[name][:8], "little")
                    header = json.dumps(mutate_json(rng, json.loads(files[name][8 : 8 + size]))).encode()
                    files[name] = len(header).to_bytes(8, "little") + header + files[name][8 + size :]
        if rng.random() < 0.1:
            extra = {rng.choice(_TEXT): hostile(rng) for _ in range(2)}
            files[
                rng.choice(
                    ["tokenizer/added_tokens.json", "tokenizer/special_tokens_map.json", "inference-policy.json"]
                )
            ] = json.dumps(extra).encode()
        return files

    @staticmethod
    def _tokenizer_settings(rng: random.Random) -> dict[str, Any]:
        token = {"content": rng.choice([*_TEXT, "\ud800"]), "lstrip": hostile(rng)}
        return {
            rng.choice(
                [
                    "tokenizer_class",
                    "truncation_side",
                    "extra_special_tokens",
                    "x_token",
                    "mask_token",
                    "additional_special_tokens",
                ]
            ): rng.choice(["GemmaTokenizer", "left", hostile(rng), token, [token], {"a": token}]),
            "added_tokens_decoder": rng.choice(
                [
                    {
                        rng.choice(["1", "-1", "1e9", "99999999999999", "", "Infinity"]): rng.choice(
                            [token, hostile(rng)]
                        )
                    },
                    hostile(rng),
                ]
            ),
        }

    def write(self, case: bytes | dict[str, bytes], path: Path) -> Path:
        if isinstance(case, bytes):
            path = path.with_suffix(".gguf")
            path.write_bytes(case)
            return path
        shutil.rmtree(path, ignore_errors=True)
        for name, data in case.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        path.mkdir(exist_ok=True)
        return path

    def run(self, case: bytes | dict[str, bytes], rng: random.Random) -> Outcome:
        path = self.write(case, self.work / "case")
        with _only_documented_warnings():
            try:
                model = skyinfer.load(path, isa=rng.choice(ISAS), temperature_clamp=rng.random() < 0.5)
            except (FormatError, OSError) as error:
                assert str(error)
                return "refused"
            try:
                response = model.decide(rng.choice(_STATES), _QUESTIONS)
            except (FormatError, RequestError) as error:
                assert str(error)
                return "loaded, not answered"
        check_response(response, _QUESTIONS, model.name)
        return "answered"


class _Text(str):
    __slots__ = ()


class _Number(enum.IntEnum):
    ONE = 1


class _Odd:
    """Prints, compares and tests badly."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no eq")

    def __bool__(self) -> bool:
        raise ValueError("no bool")

    __hash__ = object.__hash__


def _circular_list() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def _circular_dict() -> Any:
    value: dict[str, Any] = {"a": 1}
    value["self"] = {"again": value}
    return value


_PYTHON_VALUES: list[Callable[[], Any]] = [
    _circular_list, _circular_dict, _Odd, object, lambda: {1, 2}, lambda: b"bytes", lambda: (1, "a"), lambda: 1j,
    lambda: range(3), lambda: decimal.Decimal("1.5"), lambda: datetime.date(2026, 1, 1), lambda: _Text("text"),
    lambda: _Number.ONE, lambda: np.arange(3), lambda: np.float64(1.5), lambda: np.int64(3), lambda: np.array("a"),
    lambda: np.str_("a"), lambda: 10**5000, lambda: -(10**4400), lambda: {10**5000}, lambda: {(10**5000,): 1},
    lambda: {None: 1, 1.5: 2, True: 3, b"x": 4}, lambda: {10**5000: None}, lambda: {frozenset(): 1},
    lambda: [math.nan, math.nan], lambda: {"a": _Odd()}, lambda: {_Text("a"): 1, "b": 2}, lambda: float("nan"),
    lambda: {"\ud800": "\udfff"}, lambda: ["a"] * 255, lambda: list(range(300)), lambda: [str(i) for i in range(2000)],
    lambda: {f"option {i}": "text " * (i % 60) for i in range(60)}, lambda: ["long " * 100] * 12, lambda: type,
    lambda: len, lambda: {"type": "noul"},
]  # fmt: skip
_RARE_VALUES: list[Callable[[], Any]] = [
    lambda: _nested(100_000, lambda v: [v]), lambda: _nested(100_000, lambda v: {"a": v}),
    lambda: _nested(950, lambda v: [v]), lambda: _nested(900, lambda v: {"a": v}), lambda: _nested(300, lambda v: (v,)),
    lambda: {_nested(300, lambda v: (v,)): 1}, lambda: _nested(2000, lambda v: (v, 1)), lambda: [0] * 100_000,
    *_BIG_TEXT,
]  # fmt: skip


def python_hostile(rng: random.Random) -> Any:
    """A value that a Python caller can hand over, whether or not JSON can hold it."""
    kind = rng.random()
    if kind < 0.6:
        return hostile(rng)
    return rng.choice(_PYTHON_VALUES if kind < 0.985 else _RARE_VALUES)()


_JSON_TEXTS: list[Callable[[], bytes]] = [
    lambda: b"[" * 100_000, lambda: b'{"state":' * 100_000,
    lambda: b'{"state":' + b"[" * 970 + b"]" * 970 + b',"questions":{}}', lambda: b"\xff",
    lambda: b'{"state":' + b"9" * 5000 + b',"questions":{}}', lambda: b"\xef\xbb\xbf{}", lambda: b"", lambda: b"\0" * 9,
    lambda: b"NaN", lambda: "{}".encode("utf-16"),
    lambda: b'{"state":"a","state":1e999,"questions":{"a":{},"a":{"type":"noul","instructions":"\\ud800"}}}',
]  # fmt: skip


class Requests:
    """Mutated requests, as Python objects and as the JSON text that the command line reads."""

    outcomes = ("answered", "refused")

    def __init__(self, work: Path) -> None:
        self.work = work
        sizes: list[dict[str, Any]] = [
            {},
            {"max_len": 24, "head_max_len": 8, **_META},
            {"max_len": 512, "head_max_len": 192, "n_layers": 2},
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.models = [skyinfer.load(paint(work / f"model{i}", **(_TINY | size))) for i, size in enumerate(sizes)]

    def case(self, rng: random.Random) -> Any:
        names = rng.sample(list(_QUESTIONS), rng.choice([1, 1, 2, 4]))
        body: Any = {
            "state": copy.deepcopy(rng.choice(_STATES)),
            "questions": {name: copy.deepcopy(_QUESTIONS[name]) for name in names},
        }
        if rng.random() < 0.1:
            body["model"] = hostile(rng)
        if rng.random() < 0.25:
            return self._text(rng, body)
        for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
            what = rng.random()
            if what < 0.15:
                body = mutate_json(rng, body, python_hostile)
            elif not (isinstance(body, dict) and isinstance(body.get("questions"), dict) and body["questions"]):
                break
            elif what < 0.25:
                body["state"] = python_hostile(rng)
            elif what < 0.3:
                with contextlib.suppress(TypeError):
                    body["questions"][python_hostile(rng)] = copy.deepcopy(rng.choice(list(_QUESTIONS.values())))
            elif what < 0.32:
                body["questions"] |= {f"q{i}": copy.deepcopy(_QUESTIONS["crash"]) for i in range(rng.choice([10, 100]))}
            else:
                key = rng.choice(list(body["questions"]))
                question = body["questions"][key]
                if isinstance(question, dict) and rng.random() < 0.6:
                    field = rng.choice(
                        ["type", "instructions", "criteria", "criteria", "criteria", "option_order", "labels"]
                    )
                    with contextlib.suppress(TypeError):
                        question[field] = (
                            python_hostile(rng)
                            if rng.random() < 0.5
                            else mutate_json(rng, question.get(field), python_hostile)
                        )
                else:
                    body["questions"][key] = mutate_json(rng, question, python_hostile)
        return body

    @staticmethod
    def _text(rng: random.Random, body: Any) -> bytes:
        if rng.random() < 0.05:
            return rng.choice(_JSON_TEXTS)()
        for _ in range(rng.choice([0, 1, 2])):
            body = mutate_json(rng, body)
        text = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        for _ in range(rng.choice([0, 0, 1, 1, 3])):
            text = mutate_bytes(rng, text)
        return text

    def write(self, case: Any, path: Path) -> Path:
        if isinstance(case, bytes):
            path = path.with_suffix(".json")
            path.write_bytes(case)
            return path
        path = path.with_suffix(".txt")
        try:
            path.write_text(repr(case), encoding="utf-8", errors="backslashreplace")
        except Exception as error:
            path.write_text(f"cannot be written down: {error!r}\n", encoding="utf-8")
        return path

    def run(self, case: Any, rng: random.Random) -> Outcome:
        model = rng.choice(self.models)
        with _only_documented_warnings():
            try:
                if isinstance(case, bytes):
                    case = cli._read_request(str(self.write(case, self.work / "request")))
                parse_request(case)
                state, questions = case["state"], case["questions"]
                response = model.decide(state, questions)
            except RequestError as error:
                assert type(error.loc) is tuple and all(isinstance(part, (str, int)) for part in error.loc), error.loc
                assert error.message and str(error).endswith(error.message)
                return "refused"
        check_response(response, questions, model.name)
        if rng.random() < 0.2:
            tokenizer = model.config
            for sequence in model.encode(state, questions).values():
                ids = sequence.ids
                assert len(ids) <= model.config.max_tokens and ids[0] == tokenizer.cls_id
                assert [i for i, token in enumerate(ids) if token == tokenizer.mask_id] == sequence.markers
        return "answered"


class Planted:
    """Faults on purpose, so that a test can see the watchdog at work."""

    outcomes = ("fine",)

    def __init__(self, work: Path) -> None:
        self.work = work

    def case(self, rng: random.Random) -> str:
        return ""

    def write(self, case: str, path: Path) -> Path:
        path.write_text(case)
        return path

    def run(self, case: str, rng: random.Random) -> Outcome:
        number = int(rng.name)  # type: ignore[attr-defined]
        if number == 2:
            raise KeyError("planted")
        if number == 4:
            os.abort()
        if number == 6:
            time.sleep(600)
        if number == 8:
            bytearray(MEMORY_LIMIT * 2)
        return "fine"


KINDS: dict[str, type[Files] | type[Requests] | type[Planted]] = {
    "files": Files,
    "requests": Requests,
    "planted": Planted,
}


class Rng(random.Random):
    """The random numbers of one round."""

    name: str

    @classmethod
    def of(cls, kind: str, seed: int, number: int) -> Rng:
        rng = cls(f"{kind}:{seed}:{number}")
        rng.name = str(number)
        return rng


# ------------------------------------------------------------------------------------------ the child, and its watchdog


class Board:
    """Numbers that a child writes and its watchdog reads, even after a crash: the round at work, how often each outcome
    came, the slowest round in microseconds and its number."""

    _FORM: ClassVar[struct.Struct] = struct.Struct("<7q")
    _FIELDS = ("round", "done", "first outcome", "second outcome", "third outcome", "slowest_us", "slowest")

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(self._FORM.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._FORM.size)

    def read(self) -> list[int]:
        return list(self._FORM.unpack_from(self._map))

    def write(self, numbers: list[int]) -> None:
        self._FORM.pack_into(self._map, 0, *numbers)


class Fault(NamedTuple):
    number: int
    what: str


def child(kind: str, seed: int, first: int, end: int, work: Path, deadline: float) -> None:
    """Run rounds and note faults in a file. A crash or a hang is the watchdog's to see."""
    faulthandler.enable()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    board = Board(work / "board")
    target: Any = KINDS[kind](work)
    numbers = board.read()
    for number in range(first, end):
        if time.time() > deadline:
            break
        numbers[0] = number
        board.write(numbers)
        rng = Rng.of(kind, seed, number)
        case = target.case(rng)
        start = time.perf_counter()
        try:
            numbers[2 + target.outcomes.index(target.run(case, rng))] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            with (work / "faults").open("a") as file:
                file.write(json.dumps([number, "".join(traceback.format_exception(error, limit=-8))[-4000:]]) + "\n")
        taken = int((time.perf_counter() - start) * 1e6)
        numbers[1] += 1
        if taken > numbers[5]:
            numbers[5:] = [taken, number]
    board.write(numbers)


def fuzz(
    kind: str, *, rounds: int, seed: int, first: int = 0, minutes: float = 1e6, hang: float = 10.0, out: Path
) -> list[Fault]:
    """Run rounds `first` to `first + rounds - 1` under a watchdog and report on stdout. Gives the faults."""
    end, deadline = first + rounds, time.time() + 60 * minutes
    environment = os.environ | {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
    outcomes = KINDS[kind].outcomes
    faults: list[Fault] = []
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="skyinfer-fuzz-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        board, log, noted = Board(work / "board"), work / "stderr", 0
        at, said = first, began
        kinds: list[Any] = []
        repeats: list[int] = []

        def report() -> None:
            numbers = board.read()
            counts = ", ".join(f"{count} {outcome}" for outcome, count in zip(outcomes, numbers[2:5], strict=False))
            print(
                f"{kind}: seed {seed}: {numbers[1]} rounds in {time.time() - began:.0f} s: {counts},"
                f" {len(faults)} faults; slowest {numbers[5] / 1000:.1f} ms (round {numbers[6]})"
                + (f"; the same faults in rounds {repeats[:9]}, {len(repeats)} in all" if repeats else ""),
                flush=True,
            )

        def found(fault: Fault) -> None:
            places = [line.split(", in")[0] for line in fault.what.splitlines() if line.lstrip().startswith("File")]
            lines = fault.what.strip().splitlines()
            kinds.append((places[:1], places[-1:], lines[0][:40], lines[-1][:40]))
            if kinds.count(kinds[-1]) > 1:
                repeats.append(fault.number)
                return
            faults.append(fault)
            out.mkdir(parents=True, exist_ok=True)
            print(f"FAULT in round {fault.number}: {fault.what.strip()}")
            target: Any = KINDS[kind](work)
            saved = target.write(target.case(Rng.of(kind, seed, fault.number)), out / f"{kind}-{seed}-{fault.number}")
            print(f"  input saved as {saved}")
            print(f"  again: python tests/fuzz.py {kind} --seed {seed} --first {fault.number} --rounds 1", flush=True)

        while at < end and len(faults) < MAX_FAULTS and time.time() < deadline:
            arguments = ["--child", str(work), "--seed", str(seed), "--first", str(at), "--rounds", str(end - at)]
            with log.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, __file__, kind, *arguments, "--deadline", str(deadline)],
                    stderr=stderr,
                    env=environment,
                )
            board.write([-1, *board.read()[1:]])
            moved, last, hung = time.time(), -1, False
            while process.poll() is None:
                time.sleep(0.02)
                now, current = time.time(), board.read()[0]
                if current != last:
                    moved, last = now, current
                # the first round waits for its imports and base files
                elif now - moved > (hang if last >= 0 else hang + 60):
                    hung = True
                    # the child's faulthandler then says where it hung
                    process.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGABRT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)
                    process.kill()
                    process.wait()
                if now - said > 20:
                    said = now
                    report()
            if (work / "faults").exists():
                lines = (work / "faults").read_text().splitlines()
                for line in lines[noted:]:
                    found(Fault(*json.loads(line)))
                noted = len(lines)
            if process.returncode == 0:
                break
            tail = log.read_bytes()[-3000:].decode("utf-8", "replace")
            why = f"hung for more than {hang:g} s" if hung else f"died with status {process.returncode}"
            crashed = board.read()[0]
            if crashed < 0:
                raise RuntimeError(f"the child {why} before its first round:\n{tail}")
            found(Fault(crashed, f"{why}\n{tail}"))
            at = crashed + 1
        report()
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mutated model files and requests: only the documented errors may come out."
    )
    parser.add_argument("kind", choices=[*KINDS, "both"])
    parser.add_argument("--rounds", type=int, default=1000, help="of each kind (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, metavar="ROUND", help="the round to begin with (default: 0)")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop each kind after so many")
    parser.add_argument(
        "--hang", type=float, default=10.0, metavar="SECONDS", help="a round that takes longer has hung"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "skyinfer-faults", help="where inputs are saved"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(
            options.kind, options.seed, options.first, options.first + options.rounds, options.child, options.deadline
        )
        return 0
    faults = []
    for kind in ("files", "requests") if options.kind == "both" else (options.kind,):
        faults += fuzz(
            kind, rounds=options.rounds, seed=options.seed, first=options.first, minutes=options.minutes,
            hang=options.hang, out=options.out,
        )  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
