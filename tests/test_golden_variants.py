"""Checkpoints with what few have, held against what the Laya runtime was recorded to do with them (golden/README.md):
every activation that the core computes, and WordPiece tokenizers. As directories and as converted files."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.recipes import VARIANTS, from_literal, painted, recorded

import skyinfer
from skyinfer.core import border
from skyinfer.files.activations import ACTIVATIONS, BY_TRANSFORMERS
from skyinfer.files.gguf import GGUFFile

RECORDED = recorded("variants.json")
LOGIT_BOUND = 1e-4  # as in test_golden.py
ISAS = [name for name in border.isa_names() if border.isa_supported(name)]


@functools.cache
def _model(name: str, isa: str | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the clamped temperatures, and what llama.cpp makes of a tokenizer
        return skyinfer.load(painted(name), isa=isa)


@pytest.fixture(scope="module")
def converted() -> Any:
    with tempfile.TemporaryDirectory() as directory:

        @functools.cache
        def convert(name: str) -> Path:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return skyinfer.convert(painted(name), Path(directory) / f"{name}.gguf", outtype="f32")

        yield convert


def test_every_name_of_an_activation_was_recorded() -> None:
    tried = {VARIANTS[case["checkpoint"]].get("activation", "gelu") for case in RECORDED["answers"]}
    assert tried | {"silu", "swish"} == set(BY_TRANSFORMERS)  # test_golden.py has silu


@pytest.mark.parametrize("case", RECORDED["answers"], ids=lambda case: f"{case['checkpoint']}: {case['name']}")
def test_scores_are_the_runtimes(case: dict[str, Any]) -> None:
    if case["checkpoint"].startswith("parallel"):
        pytest.skip("not yet")
    request = from_literal(case["request"])
    for isa in ISAS:
        logits = _model(case["checkpoint"], isa).logits(request["state"], request["questions"])
        for found, detail in zip(logits.values(), case["details"], strict=True):
            np.testing.assert_allclose(found, detail["logits"], atol=LOGIT_BOUND, rtol=0)


@pytest.mark.filterwarnings("ignore:question .* ignored:RuntimeWarning")  # the runtime ignores them without a word
@pytest.mark.parametrize("name", sorted({case["checkpoint"] for case in RECORDED["texts"]}))
def test_tokens_are_the_runtimes(name: str) -> None:
    for case in (case for case in RECORDED["texts"] if case["checkpoint"] == name):
        request = from_literal(case["request"])
        sequences = _model(name).encode(request["state"], request["questions"]).values()
        for sequence, expected in zip(sequences, case["sequences"], strict=True):
            assert {key: getattr(sequence, key) for key in expected} == expected, case["name"]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_converted_file_answers_the_same(name: str, converted: Any) -> None:
    if name.startswith("parallel"):
        pytest.skip("not yet")
    model, file = _model(name), converted(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = skyinfer.load(file)
    cases = [case for case in RECORDED["answers"] if case["checkpoint"] == name] or RECORDED["texts"][:30]
    for case in cases:
        request = from_literal(case["request"])
        expected = model.logits(request["state"], request["questions"])
        for key, found in ours.logits(request["state"], request["questions"]).items():
            np.testing.assert_array_equal(found, expected[key])


def test_llama_cpp_is_kept_from_what_it_would_compute_otherwise(converted: Any) -> None:
    for activation in ACTIVATIONS:
        if activation.name == "silu":
            continue
        name = f"act_{activation.transformers[-1]}"
        with GGUFFile.open(converted(name)) as file:
            assert file.metadata["modern-bert.hidden_activation"] == activation.gguf
            kind = file.metadata["modern-bert.decision.type"]
        assert kind == ("laya" if activation.in_llama_cpp else "skyinfer-laya")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            skyinfer.convert(painted(name), converted(name), force=True, outtype="f32")
        refusal = [str(warning.message) for warning in caught if "llama.cpp will refuse" in str(warning.message)]
        assert len(refusal) == (0 if activation.in_llama_cpp else 1)


def test_wordpiece_as_llama_cpp_reads_it(converted: Any) -> None:
    with GGUFFile.open(converted("bert")) as file:
        metadata = file.metadata
        assert metadata["tokenizer.ggml.model"] == "bert"
        assert metadata["tokenizer.ggml.normalizer.lowercase"] is True
        assert metadata["tokenizer.ggml.normalizer.strip_accents"] is True
        tokens = metadata["tokenizer.ggml.tokens"]
        assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        # a mark where a word begins, none where one goes on
        assert {"\u2581the", "he", "\u2581t"} <= set(tokens)
        assert not any(token.startswith("##") for token in tokens)
    with GGUFFile.open(converted("wordpiece_cased")) as file:
        assert file.metadata["tokenizer.ggml.normalizer.lowercase"] is False
        assert file.metadata["tokenizer.ggml.normalizer.strip_accents"] is False
    # no split at Chinese characters, which llama.cpp always makes
    with pytest.warns(RuntimeWarning, match="will refuse the file: it has no such WordPiece"):
        skyinfer.convert(painted("bert_cased"), converted("bert_cased"), force=True)
    with GGUFFile.open(converted("bert_cased")) as file:
        assert file.metadata["tokenizer.ggml.model"] == "huggingface"
