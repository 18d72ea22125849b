"""Every key and tensor of a model file is checked, and the check says which one is at fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from checkpoints import SIZES, paint

from skyinfer.errors import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.config import ModelConfig
from skyinfer.files.tensors import TensorInfo

GOLDEN = SIZES["golden"]


class Source(NamedTuple):
    """A model source that a test may bend."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def label(self, name: str) -> str:
        return name

    def tensor(self, name: str) -> np.ndarray:
        raise AssertionError("a configuration needs no weights")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(paint(tmp_path_factory.mktemp("painted") / "golden", **GOLDEN))


@pytest.fixture
def source(checkpoint: Checkpoint) -> Source:
    return Source(Path("model.gguf"), dict(checkpoint.metadata), dict(checkpoint.tensors))


def full(key: str) -> str:
    return key if key.startswith(("general.", "tokenizer.", "split.")) else f"modern-bert.{key}"


def read(source: Source, **changes: Any) -> ModelConfig:
    """The configuration after some keys are set, or taken out by None; "__" stands for "."."""
    for name, value in changes.items():
        key = full(name.replace("__", "."))
        source.metadata.pop(key, None)
        if value is not None:
            source.metadata[key] = value
    return ModelConfig.from_source(source)


def test_reads_everything(source: Source) -> None:
    config = ModelConfig.from_source(source)
    ids = {text: i for i, text in enumerate(source.metadata["tokenizer.ggml.tokens"])}
    assert config == ModelConfig(
        name="golden",
        n_layers=4,
        n_decision_blocks=2,
        d_model=128,
        n_heads=2,
        n_decision_heads=2,
        d_ff=192,
        vocab_size=1024,
        norm_eps=1e-5,
        window=64,
        layer_is_global=(True, False, False, True),
        rope_base_global=160000.0,
        rope_base_local=10000.0,
        activation="gelu",
        max_tokens=512,
        max_head_tokens=192,
        temperatures={
            "choice": 1.637, "score": 1.251, "noul": 1.983, "choice.2": 1.412, "choice.3_5": 1.705,
            "choice.6_10": 1.178, "choice.11": 0.1006, "score.3_5": 1.322, "noul.2": 1.864,
        },
        cls_id=ids["[CLS]"],
        sep_id=ids["[SEP]"],
        mask_id=ids["[MASK]"],
        context_tokens=8192,
    )  # fmt: skip
    assert list(config.expected_tensors()) == list(source.tensors)


def test_a_context_is_at_least_what_a_sequence_has(source: Source) -> None:
    for stated, read_as in {4096: 4096, 100: 512, 0: 512, -3: 512, "many": 512, None: 512, 1 << 40: 1 << 17}.items():
        assert read(source, context_length=stated).context_tokens == read_as


# -------------------------------------------------------------------------------- what may be absent


def test_defaults(source: Source) -> None:
    taken_out = (
        "decision.max_tokens", "hidden_activation", "vocab_size", "general.name", "rope.freq_base",
        "rope.freq_base_swa", "attention.causal", "rope.scaling.type",
        "attention.sliding_window_pattern", "tokenizer.ggml.token_type_count",
    )  # fmt: skip
    for key in taken_out:
        source.metadata.pop(full(key))
    for key in [key for key in source.metadata if ".decision.temperature." in key]:
        del source.metadata[key]
    config = ModelConfig.from_source(source)
    assert config.max_tokens == 512
    assert config.activation == "gelu"
    assert config.vocab_size == 1024
    assert config.name == "model"
    assert (config.rope_base_global, config.rope_base_local) == (160000.0, 10000.0)
    assert config.layer_is_global == (True, False, False, True)
    assert config.temperatures == {"choice": 1.0, "score": 1.0, "noul": 1.0}


def test_one_rope_base_is_for_every_layer(source: Source) -> None:
    config = read(source, rope__freq_base=5000.0, rope__freq_base_swa=None)
    assert (config.rope_base_global, config.rope_base_local) == (5000.0, 5000.0)


def test_epsilon_as_llama_cpps_converter_writes_it(source: Source) -> None:
    changes = {
        "attention__layer_norm_epsilon": None,
        "attention__layer_norm_rms_epsilon": 1e-6,
    }
    assert read(source, **changes).norm_eps == 1e-6


def test_cls_may_be_told_by_its_own_key(source: Source) -> None:
    config = read(source, tokenizer__ggml__bos_token_id=None, tokenizer__ggml__cls_token_id=7)
    assert config.cls_id == 7


@pytest.mark.parametrize(
    ("window", "pattern", "spans"),
    [
        (0, 3, (True, True, True, True)),
        (None, 3, (True, True, True, True)),
        (128, 1, (True, True, True, True)),
        (128, 2, (True, False, True, False)),
        (128, 9, (True, False, False, False)),
        (128, 0, (False, False, False, False)),
        (128, [False, True, True, False, False, False], (True, False, False, True)),
        (128, [1, 0, 1, 1], (False, True, False, False)),
    ],
)
def test_spans(window: int | None, pattern: Any, spans: tuple[bool, ...], source: Source) -> None:
    changes = {"attention__sliding_window": window, "attention__sliding_window_pattern": pattern}
    config = read(source, **changes)
    assert config.layer_is_global == spans
    assert config.window == (window or 0) // 2


def test_feed_forward_of_a_model_without_decision_blocks(tmp_path: Path) -> None:
    opened = Checkpoint.open(paint(tmp_path / "bare", **(GOLDEN | {"head_layers": 0})))
    source = Source(opened.path, opened.metadata, opened.tensors)
    config = read(source, feed_forward_length=192, attention__head_count=[2] * 4)
    assert (config.n_decision_blocks, config.d_ff, config.n_heads) == (0, 192, 2)


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "key",
    [
        "block_count", "decision.block_count", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_epsilon", "decision.max_head_tokens",
        "decision.type", "general.architecture", "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.mask_token_id",
    ],
)  # fmt: skip
def test_missing_key(key: str, source: Source) -> None:
    del source.metadata[full(key)]
    with pytest.raises(FormatError, match=f"^model.gguf: key {full(key)}: is missing$"):
        ModelConfig.from_source(source)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 0, "0 is outside 1 to"),
        ("block_count", 2**32 - 1, "is outside"),
        ("block_count", 6.0, "expected a whole number, found a float"),
        ("block_count", True, "expected a whole number, found a bool"),
        ("decision.block_count", 6, "6 is outside 0 to 5"),
        ("decision.block_count", -1, "is outside"),
        ("decision.type", "lev", "expected laya or skyinfer-laya, found lev"),
        ("decision.type", 3, "expected laya or skyinfer-laya, found 3"),
        ("embedding_length", 2**40, "is outside"),
        ("attention.head_count", 3, "3 heads do not divide 128 into even parts"),
        ("attention.head_count", 128, "128 heads do not divide 128 into even parts"),
        ("attention.head_count", [2, 2, 2, 2, 1, 1], "expected one number for all 6 blocks"),
        ("attention.head_count", [2, 2], "expected one number for all 6 blocks"),
        ("attention.head_count", [], "expected one number for all 6 blocks"),
        ("attention.head_count", ["2"] * 6, "expected an array of whole numbers"),
        ("attention.head_count", [0] * 6, "0 is outside"),
        ("attention.head_count_kv", 1, "expected 2, found 1"),
        ("attention.key_length", 32, "expected 64, found 32"),
        ("attention.causal", True, "expected False, found True"),
        ("attention.causal", 0, "expected False, found 0"),
        ("attention.layer_norm_epsilon", 0.0, "0.0 is not a finite number above zero"),
        ("attention.layer_norm_epsilon", 2.0, "2.0 is not"),
        ("attention.layer_norm_epsilon", "small", "expected a number, found a str"),
        ("attention.sliding_window", -2, "-2 is outside"),
        ("attention.sliding_window_pattern", [True] * 5, "5 entries for 6 blocks"),
        ("attention.sliding_window_pattern", [2] * 6, "array of bools"),
        ("attention.sliding_window_pattern", "3", "expected a whole number"),
        ("feed_forward_length", 192, "decision head is not 512 wide"),
        ("feed_forward_length", [192] * 4 + [512], "5 entries for 6 blocks"),
        ("feed_forward_length", [192, 192, 192, 100, 512, 512], "encoder blocks differ"),
        ("feed_forward_length", [0, 0, 0, 0, 512, 512], "0 is outside"),
        ("feed_forward_length", [192.0] * 6, "expected an array of whole numbers"),
        ("rope.freq_base", math.nan, "nan is not"),
        ("rope.freq_base_swa", math.inf, "inf is not"),
        ("rope.freq_base", -1.0, "-1.0 is not"),
        ("rope.scaling.type", "yarn", "expected none, found yarn"),
        ("rope.dimension_count", 32, "expected 64, found 32"),
        ("hidden_activation", "prelu", "prelu is not supported"),
        ("hidden_activation", 1, "expected a string, found a int"),
        ("decision.max_tokens", 0, "0 is outside"),
        ("decision.max_tokens", 2**32 - 1, "is outside"),
        ("decision.max_head_tokens", 0, "0 is outside"),
        ("decision.temperature.choice", 0.0, "0.0 is not a finite number above zero"),
        ("decision.temperature.choice.11", -1.0, "-1.0 is not"),
        ("decision.temperature.noul.2", math.nan, "nan is not"),
        ("decision.temperature.score", math.inf, "inf is not"),
        ("decision.temperature.score", True, "expected a number, found a bool"),
        ("decision.temperature.score", [1.0], "expected a number, found an array"),
        ("vocab_size", 1023, "1024 tokens for a vocabulary of 1023"),
        ("tokenizer.ggml.tokens", ["a"], "1 tokens for a vocabulary of 1024"),
        ("tokenizer.ggml.tokens", [1] * 1024, "expected an array of strings"),
        ("tokenizer.ggml.token_type_count", 2, "expected 3, found 2"),
        ("tokenizer.ggml.bos_token_id", 1024, "1024 is outside 0 to 1023"),
        ("tokenizer.ggml.seperator_token_id", -1, "-1 is outside 0 to 1023"),
        ("tokenizer.ggml.mask_token_id", 2**32 - 1, "is outside 0 to 1023"),
        ("tokenizer.ggml.mask_token_id", "[MASK]", "expected a whole number"),
        ("general.name", ["a"], "expected a string, found an array"),
        ("split.count", 2, "merge the parts first"),
    ],
)
def test_faulty_key(key: str, value: Any, message: str, source: Source) -> None:
    source.metadata[full(key)] = value
    with pytest.raises(FormatError) as caught:
        ModelConfig.from_source(source)
    if key == "vocab_size":
        key = "tokenizer.ggml.tokens"
    assert str(caught.value).startswith(f"model.gguf: key {full(key)}: ")
    assert message in str(caught.value)


def test_head_width_that_its_heads_do_not_divide(source: Source) -> None:
    with pytest.raises(FormatError, match="194 does not divide into the head's 3 attention heads"):
        read(source, embedding_length=194, attention__head_count=1)


def test_missing_tensor(source: Source) -> None:
    del source.tensors["blk.5.attn_qkv.bias"]
    with pytest.raises(FormatError, match=r"tensor blk\.5\.attn_qkv\.bias is missing \(expected \[384\]"):
        ModelConfig.from_source(source)


@pytest.mark.parametrize("shape", [(1,), (1, 127), (128, 128), (2, 128)])
def test_tensor_of_another_shape(shape: tuple[int, ...], source: Source) -> None:
    name = "cls.output.weight"
    source.tensors[name] = source.tensors[name]._replace(shape=shape)
    with pytest.raises(FormatError) as caught:
        ModelConfig.from_source(source)
    assert f"tensor {name}: expected [1, 128], found {list(shape)}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shapes"),
    {
        "cls.output.weight": [(128,), (128, 1), (1, 1, 128), (1, 1, 1, 128)],
        "cls.output.bias": [(1, 1), (1, 1, 1, 1)],
        "cls.weight": [(1, 1, 128, 128), (128, 1, 128), (128, 128, 1, 1)],
        "output_norm.weight": [(1, 128), (128, 1)],
    }.items(),
)
def test_dimensions_of_1_make_no_other_shape(name: str, shapes: list[tuple[int, ...]], source: Source) -> None:
    for shape in shapes:
        source.tensors[name] = source.tensors[name]._replace(shape=shape)
        ModelConfig.from_source(source)


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "blk.6.attn_norm.weight", "a\nb"])
def test_unknown_tensor(name: str, source: Source) -> None:
    source.tensors[name] = source.tensors["output_norm.weight"]._replace(name=name)
    with pytest.raises(FormatError, match="is unknown to a Laya model") as caught:
        ModelConfig.from_source(source)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------- dialects


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "laya"}, r'architecture "laya" \(ZeroDegress\)'),
        ({"general.architecture": "laya", "ggmlc.graph_spec": "{}"}, "in the ggmlc format"),
        ({"general.architecture": "modern-bert", "ggmlc.decision": "{}"}, "in the ggmlc format"),
        ({"general.architecture": "modern-bert"}, "backbone without a decision head.*laya-head"),
        (
            {"general.architecture": "bert"},
            "general.architecture: expected modern-bert or skyinfer-s2, found bert",
        ),
        ({"general.architecture": "x" * 9999}, "found 'xxx"),
        ({"general.architecture": 7}, "general.architecture: expected a string"),
        ({}, "general.architecture: is missing"),
    ],
)
def test_other_files_are_named(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        ModelConfig.from_source(Source(Path("model.gguf"), metadata, {}))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [1e-46, 1e-320, 1e39, 1e300, 2**200])
@pytest.mark.parametrize(
    "key", ["attention.layer_norm_epsilon", "rope.freq_base", "rope.freq_base_swa", "decision.temperature.choice"]
)
def test_numbers_have_to_survive_as_f32(key: str, value: float, source: Source) -> None:
    """The core computes in f32, where these are zero or infinite."""
    with pytest.raises(FormatError, match=key):
        read(source, **{key.replace(".", "__"): value})


def test_sizes_that_the_core_refuses(source: Source) -> None:
    source.metadata["modern-bert.embedding_length"] = 1026
    with pytest.raises(FormatError, match="heads of 1026 values"):
        read(source, attention__head_count=1)
    with pytest.raises(FormatError, match="embedding_length: 131072"):
        read(source, embedding_length=131072)
    # also where no head block uses them: the core is told, and checks, the number of heads
    with pytest.raises(FormatError, match="does not divide into the head's 3"):
        read(source, embedding_length=194, attention__head_count=1, decision__block_count=0, feed_forward_length=192)


@pytest.mark.parametrize("name", ["bogus", "choice.12", "choice.2.3", "", "choice.", "Choice"])
@pytest.mark.parametrize("value", [0.01, math.nan, "warm"])
def test_temperatures_of_nothing_have_no_effect(name: str, value: Any, source: Source) -> None:
    before = ModelConfig.from_source(source)
    source.metadata[f"modern-bert.decision.temperature.{name}"] = value
    assert ModelConfig.from_source(source) == before
