"""Which tokenizer.json the files of a checkpoint's tokenizer directory stand for, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from painted_tokenizers import JSON, VOCAB, painted

from skyinfer.errors import FormatError
from skyinfer.files.checkpoint.hf_tokenizer import canonical_tokenizer_json, special_token_text
from skyinfer.files.json_file import JsonFile
from skyinfer.text.tokenizer import Tokenizer


def write_directory(path: Path, tokenizer: dict[str, Any], config: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def config_of(kind: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    data, special = painted(kind)
    texts = {token["id"]: token["content"] for token in data["added_tokens"]}
    config = {f"{role}_token": texts[getattr(special, f"{role}_id")] for role in ("cls", "sep", "mask")}
    return data, config | {"tokenizer_class": "PreTrainedTokenizerFast"} | changes


def canonical(path: Path, kind: str, **changes: Any) -> dict[str, Any]:
    data, config = config_of(kind, **changes)
    return json.loads(canonical_tokenizer_json(write_directory(path, data, config)))


def test_a_plain_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    data, _ = painted("byte")
    found = canonical(tmp_path, "byte")
    for part in ("added_tokens", "normalizer", "pre_tokenizer", "model", "truncation", "padding"):
        assert found[part] == data[part], part


def test_added_tokens_decoder_wins(tmp_path: Path) -> None:
    data, special = painted("byte")
    mask = {"content": "[MASK]", "lstrip": False, "rstrip": True, "normalized": False,
            "single_word": False, "special": True}  # fmt: skip
    found = canonical(tmp_path, "byte", added_tokens_decoder={str(special.mask_id): mask})
    token = next(t for t in found["added_tokens"] if t["content"] == "[MASK]")
    assert (token["lstrip"], token["rstrip"]) == (False, True)
    assert len(found["added_tokens"]) == len(data["added_tokens"])


def test_missing_special_tokens_are_appended(tmp_path: Path) -> None:
    found = canonical(tmp_path, "byte", extra_special_tokens=["[NEW]"], pad_token="[PAD2]")
    added = {token["content"]: token for token in found["added_tokens"]}
    assert added["[PAD2]"]["id"] == VOCAB
    assert added["[NEW]"]["id"] == VOCAB + 1
    assert added["[NEW]"]["special"]
    assert not added["[NEW]"]["normalized"]


def test_the_side_of_truncation_stays(tmp_path: Path) -> None:
    found = canonical(tmp_path, "byte", truncation_side="left")
    tokenizer = Tokenizer.from_metadata({JSON: json.dumps(found)}, painted("byte")[1])
    assert tokenizer.keeps_tail


def test_gemma_takes_vocabulary_and_merges_only(tmp_path: Path) -> None:
    data, config = config_of("metaspace", tokenizer_class="GemmaTokenizerFast")
    expected = json.loads(json.dumps(data))
    data["pre_tokenizer"] = data["normalizer"] = None
    found = json.loads(canonical_tokenizer_json(write_directory(tmp_path, data, config)))
    for part in ("normalizer", "pre_tokenizer", "added_tokens"):
        assert found[part] == expected[part], part


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer_class": "MPNetTokenizer"}, "MPNetTokenizer"),
        ({"tokenizer_class": 5}, "tokenizer_class"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"mask_token": 5}, "mask_token"),
        ({"extra_special_tokens": "x"}, "extra_special_tokens"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"1": "x"}}, "added_tokens_decoder"),
    ],
)
def test_what_only_transformers_can_do_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        canonical(tmp_path, "byte", **changes)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"tokenizer_config\.json"):
        canonical_tokenizer_json(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        canonical_tokenizer_json(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        canonical_tokenizer_json(tmp_path)


def test_special_token_text() -> None:
    def text(config: dict[str, Any]) -> str:
        return special_token_text(JsonFile(Path("tokenizer_config.json"), config), "cls")

    assert text({"cls_token": "[CLS]"}) == "[CLS]"
    assert text({"cls_token": {"content": "<bos>", "lstrip": True}}) == "<bos>"
    for config in ({}, {"cls_token": None}, {"cls_token": ""}, {"cls_token": {}}, {"cls_token": 1}):
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: cls_token"):
            text(config)


@pytest.mark.parametrize(
    "tokens",
    [
        {"added_tokens_decoder": {"Infinity": {"content": "x"}}},
        {"added_tokens_decoder": {"1": {"content": "\ud800"}}},
        {"mask_token": {"content": "\ud800"}},
    ],
)
def test_added_tokens_that_are_none(tokens: dict[str, Any], tmp_path: Path) -> None:
    data, _ = painted("byte")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    with pytest.raises(FormatError, match="tokenizer_config"):
        canonical_tokenizer_json(tmp_path)


@pytest.mark.parametrize("token", [[1], {}, 1e999, None, "x"])
def test_ids_of_added_tokens_that_are_none(token: Any, tmp_path: Path) -> None:
    data, _ = painted("byte")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"x": token}))
    with pytest.raises(FormatError, match=r"added_tokens\.json: x: .* is not a token id"):
        canonical_tokenizer_json(tmp_path)


_ADDED = {"__type": "AddedToken", "content": "[A]", "lstrip": True}

# what the Laya runtime 0.4.15 made of them (transformers 5.24): the new tokens' texts in the order of their ids, and
# whether they are special
NAMED_TOKENS: list[tuple[dict[str, Any], dict[str, bool]]] = [
    ({"model_specific_special_tokens": {"image_token": "[A]"}}, {"[A]": True}),
    ({"model_specific_special_tokens": {"image_token": "[A]"}, "x_token": "[B]"}, {"[B]": True}),
    ({"model_specific_special_tokens": {"image_token": "[A]"}, "extra_special_tokens": ["[B]"]}, {"[B]": True}),
    ({"model_specific_special_tokens": {"image_token": "[A]"}, "extra_special_tokens": {"y": "[B]"}}, {"[B]": True}),
    ({"model_specific_special_tokens": {"image_token": "[A]"}, "extra_special_tokens": []}, {"[A]": True}),
    ({"additional_special_tokens": ["[A]"], "extra_special_tokens": ["[B]"]}, {"[B]": True, "[A]": True}),
    ({"additional_special_tokens": ["[A]"], "x_token": "[B]"}, {"[B]": True, "[A]": True}),
    ({"additional_special_tokens": [_ADDED]}, {"[A]": False}),
    ({"extra_special_tokens": [_ADDED]}, {"[A]": True}),
]


@pytest.mark.parametrize(("changes", "expected"), NAMED_TOKENS)
def test_tokens_that_only_a_model_has(changes: dict[str, Any], expected: dict[str, bool], tmp_path: Path) -> None:
    added = canonical(tmp_path, "byte", **changes)["added_tokens"]
    found = [(token["content"], token["special"]) for token in added if token["id"] >= VOCAB]
    assert found == list(expected.items())


@pytest.mark.parametrize("key", ["truncation_side", "padding_side"])
def test_a_side_that_is_none(key: str, tmp_path: Path) -> None:
    for value in ("up", "", 1, [1]):
        with pytest.raises(FormatError, match=rf"{key}: .* is neither 'left' nor 'right'"):
            canonical(tmp_path, "byte", **{key: value})
