"""Checkpoints with what few have, held against what the Laya runtime was recorded to do with them (golden/README.md):
every activation that the core computes, options in parallel, WordPiece tokenizers. Directories and converted files."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
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

    request = from_literal(case["request"])
    for isa in ISAS:
        logits = _model(case["checkpoint"], isa).logits(request["state"], request["questions"])
        for found, detail in zip(logits.values(), case["details"], strict=True):
            np.testing.assert_allclose(found, detail["logits"], atol=LOGIT_BOUND, rtol=0)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("parallel")])
def test_the_specification_has_options_in_parallel(name: str) -> None:
    specification = reference.Reference.open(painted(name))
    for case in (case for case in RECORDED["answers"] if case["checkpoint"] == name):
        request = from_literal(case["request"])
        sequences = _model(name).encode(request["state"], request["questions"])
        activations = _model(name).activations(request["state"], request["questions"])
        begin = 0
        for (key, sequence), detail in zip(sequences.items(), case["details"], strict=True):
            question = request["questions"][key]
            prefix = len(sequence.ids) - sequence.state_tokens_used - 1
            kept: dict[str, np.ndarray] = {}
            scores = specification.logits(sequence.ids, sequence.markers, question["type"], kept, prefix)
            order = question.get("option_order") or range(len(scores))
            np.testing.assert_allclose(scores, np.array(detail["logits"])[list(order)], atol=LOGIT_BOUND, rtol=0)
            for part in ("layer.0.attn", "layer.1.attn", "layer.3.ffn_output"):
                found = activations[part][begin : begin + len(sequence.ids)]
                np.testing.assert_allclose(found, kept[part], atol=4e-5 * np.abs(kept[part]).max(), rtol=0)
            begin += len(sequence.ids)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("parallel")])
def test_options_in_parallel_answer_the_same_in_any_order(name: str) -> None:
    model, rng = _model(name), np.random.default_rng(11)
    texts = [
        "refund the order",
        "",
        "to",
        "wait a bit and ask who is it",
        "the drone",
        "x y z",
        "no",
        "a reply about order 20",
    ]
    for n in (2, 3, 8):
        for state in ("The customer asks about a refund", "the drone keeps flying " * 9, ["one", "two", "three"]):
            criteria = {f"k{i}": texts[i] or None for i in range(n)}
            expected = None
            for _ in range(4):
                shuffled = {key: criteria[key] for key in rng.permutation(list(criteria)).tolist()}
                question = {"type": "choice", "instructions": "Which reply is right?", "criteria": shuffled}
                found = model.decide(state, {"q": question})["answers"]["q"]["probabilities"]
                expected = expected or found
                np.testing.assert_allclose([found[key] for key in expected], list(expected.values()), atol=1e-5, rtol=0)


def test_options_in_parallel_by_every_way_of_asking() -> None:
    model = _model("parallel_narrow")
    questions = {
        "pick": {"type": "choice", "instructions": "Which?", "criteria": {"a": "one two three four", "b": None}},
        "truth": {"type": "noul", "instructions": "Will it rain?"},
    }
    states = ["grey " * 40, "", "blue"]
    expected = [model.decide(state, questions) for state in states]
    assert model.decide_many(states, questions) == expected
    compiled = model.compile(questions)
    for state, response in zip(states, expected, strict=True):
        assert compiled(state) == response
        pick = list(response["answers"]["pick"]["probabilities"].values())
        np.testing.assert_allclose(compiled.step(state)[:2], pick, atol=1e-6)


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


def test_llama_cpp_is_kept_from_options_in_parallel(converted: Any) -> None:
    with pytest.warns(RuntimeWarning, match="will refuse the file: it has no options in parallel"):
        skyinfer.convert(painted("parallel"), converted("parallel"), force=True)
    with GGUFFile.open(converted("parallel")) as file:
        assert file.metadata["modern-bert.decision.option_layout"] == "parallel"
        assert file.metadata["modern-bert.decision.type"] == "skyinfer-laya"


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
