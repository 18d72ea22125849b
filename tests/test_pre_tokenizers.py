"""llama.cpp's names for ways to split text: each does here what llama.cpp did, and a tokenizer gets the right one.

golden/llama_pre_tokenizers.py recorded the token ids from llama.cpp's own llama-tokenize.
"""

from __future__ import annotations

import json
import sys
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint

from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.checkpoint.pre_tokenizer import PROBES
from skyinfer.files.conversion import convert
from skyinfer.files.gguf import GGUFFile
from skyinfer.text.ggml_tokenizer import rebuild
from skyinfer.text.pre_tokenizers import PRE_TOKENIZERS
from skyinfer.text.tokenizer import parse

sys.path.append(str(Path(__file__).parent / "golden"))
import llama_pre_tokenizers as golden

RECORD = json.loads(golden.RECORD.read_text(encoding="utf-8"))


def test_probes_are_in_the_form_that_llama_cpp_expects() -> None:
    assert all(unicodedata.is_normalized("NFC", text) for text in PROBES)
    assert set(RECORD["ids"]) == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_name_splits_as_llama_cpp_does(name: str, tmp_path: Path) -> None:
    kind = PRE_TOKENIZERS[name]
    merges = RECORD["merges"]["bytes" if kind.byte_level else "characters"]
    directory = golden.checkpoint(tmp_path / "c", merges, kind.byte_level, kind.ignore_merges)
    metadata = Checkpoint.open(directory, pre=name).metadata
    mask = metadata["tokenizer.ggml.mask_token_id"]
    metadata = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
    backend, _ = rebuild(metadata, mask, as_llama_cpp=True)
    found = [backend.encode(text, add_special_tokens=False).ids for text in golden.TEXTS]
    differing = [
        (text, ids, expected)
        for text, ids, expected in zip(golden.TEXTS, found, RECORD["ids"][name], strict=True)
        if ids != expected
    ]
    assert differing == []


# ------------------------------------------------------------------------------- the name that a checkpoint gets

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _LINES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
_DIGITS = {"type": "Digits", "individual_digits": True}


def split(*patterns: str, then: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """The pre-tokenizer of a tokenizer.json that cuts by expressions in front of ByteLevel."""
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, *then, _BYTES]}


# as published by the models' makers -> llama.cpp's name
NAMED: dict[str, tuple[dict[str, Any], bool, str]] = {
    "ModernBERT": ({}, False, "modern-bert"),
    "GPT-2": ({"normalizer": None}, False, "gpt-2"),
    "Llama 3": ({"pre_tokenizer": split(_LLAMA3), "normalizer": None}, True, "llama-bpe"),
    "Llama 3 without its flag": ({"pre_tokenizer": split(_LLAMA3)}, False, "dbrx"),
    "Qwen 2": ({"pre_tokenizer": split(_LLAMA3.replace("{1,3}", ""))}, False, "qwen2"),
    "DeepSeek V3": ({"pre_tokenizer": split(*_DEEPSEEK3)}, False, "deepseek-v3"),
    "DeepSeek Coder": ({"pre_tokenizer": split(*_DEEPSEEK_CODER, then=(_DIGITS,))}, False, "deepseek-coder"),
    "StarCoder": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES | {"use_regex": True}]}}, False,
        "starcoder",
    ),
    "GPT-4o": ({"pre_tokenizer": split(_GPT4O)}, False, "gpt-4o"),
}  # fmt: skip


def checkpoint(directory: Path, changes: dict[str, Any], ignore_merges: bool = False, kind: Any = "byte") -> Path:
    paint(directory, **(SIZES["pico"] | {"vocab": 2048, "temperature_by_options": {}}), tokenizer=kind)
    path = directory / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    content["model"]["ignore_merges"] = ignore_merges
    path.write_text(json.dumps(content), encoding="utf-8")
    return directory


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("published", NAMED)
def test_a_tokenizer_gets_the_name_that_does_the_same(published: str, tmp_path: Path) -> None:
    changes, ignore_merges, name = NAMED[published]
    directory = checkpoint(tmp_path / "c", changes, ignore_merges)
    file = convert(directory, tmp_path / "c.gguf", outtype="f32")
    with GGUFFile.open(file) as opened:
        metadata = dict(opened.metadata)
    assert metadata["tokenizer.ggml.pre"] == name
    # what llama.cpp makes of the file is what the tokenizer does, also on texts that the choice did not look at
    ours, _ = parse(metadata["tokenizer.huggingface.json"], "tokenizer.json")
    other, _ = rebuild({k: v for k, v in metadata.items() if "ggml" in k}, 2047, as_llama_cpp=True)
    for text in golden.mixed_texts(200):
        ids, other_ids = (one.encode(text, add_special_tokens=False).ids for one in (ours, other))
        # GPT-4o's capitals are told apart in ASCII only by llama.cpp
        assert ids == other_ids or (published == "GPT-4o" and not text.isascii()), text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("prepend", "name"), [(None, "granite-embed-multi-311m"), ("always", "mmbert")], ids=["Gemma's form", "Metaspace"]
)
def test_tokenizers_whose_tokens_are_characters(prepend: str | None, name: str, tmp_path: Path) -> None:
    """In Gemma's form a text does not begin a word; with Metaspace it does, and line breaks are added tokens."""
    directory = checkpoint(tmp_path / "c", {}, kind="metaspace")
    path = directory / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if prepend:
        content["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": prepend,
            "split": True,
        }
    line_break = content["model"]["vocab"]["\n"]
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": line_break, "content": "\n"})
    path.write_text(json.dumps(content), encoding="utf-8")
    file = convert(directory, tmp_path / "c.gguf", outtype="f32")
    with GGUFFile.open(file) as opened:
        assert opened.metadata["tokenizer.ggml.pre"] == name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"pre_tokenizer": _BYTES | {"use_regex": True, "add_prefix_space": True}}, "gpt-2"),
        ({"pre_tokenizer": {"type": "Whitespace"}, "decoder": None}, "gpt-2"),
        ({"pre_tokenizer": split(r"[^ ]+| +")}, None),
        ({"pre_tokenizer": _BYTES}, None),
        ({"normalizer": {"type": "NFKC"}}, "gpt-2"),
        ({"normalizer": {"type": "Lowercase"}}, "gpt-2"),
    ],
)
def test_a_tokenizer_without_a_name_is_a_warning_with_a_text(
    changes: dict[str, Any], name: str | None, tmp_path: Path
) -> None:
    directory = checkpoint(tmp_path / "c", changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metadata = Checkpoint.open(directory).metadata  # a loaded directory is read whole
    assert name in (None, metadata["tokenizer.ggml.pre"])
    with pytest.warns(RuntimeWarning, match="llama.cpp will read other tokens than the Laya runtime") as caught:
        convert(directory, tmp_path / "c.gguf")
    said = str(caught[0].message)
    assert caught[0].filename == __file__
    text, other_ids, ids = _example(said)
    ours, _ = parse(metadata["tokenizer.huggingface.json"], "tokenizer.json")
    assert ours.encode(text, add_special_tokens=False).ids == ids != other_ids


def test_a_name_that_the_caller_gives_is_compared_too(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "c", {})
    with pytest.warns(RuntimeWarning, match="By the name 'llama-bpe', which is written, "):
        convert(directory, tmp_path / "c.gguf", pre="llama-bpe")


def _example(said: str) -> tuple[str, list[int], list[int]]:
    """The text and the token ids that a warning shows."""
    import ast

    shown = said.partition("which is written, ")[2]
    text, rest = shown.split(" becomes the tokens ")
    other_ids, ids = rest.split(", and not ")
    return ast.literal_eval(text), ast.literal_eval(other_ids), ast.literal_eval(ids)
