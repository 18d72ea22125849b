"""Checkpoint directories: every spelling found in the wild, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint, read_safetensors, write_safetensors

from skyinfer.errors import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.config import ModelConfig
from skyinfer.files.conversion import convert
from skyinfer.files.gguf import GGUFFile

TINY = SIZES["pico"] | {"vocab": 600}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **TINY)


@pytest.fixture
def checkpoint(painted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(painted, tmp_path / "tiny"))


NULL = "(null)"


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes one out, NULL is JSON's null."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(content).replace(json.dumps(NULL), "null"), encoding="utf-8")


# ------------------------------------------------------------------------------------- spellings


SPELLINGS: dict[str, dict[str, Any]] = {
    "f16": {"dtype": "F16"},
    "bf16": {"dtype": "BF16"},
    "metaspace": {"tokenizer": "metaspace"},
    "rope parameters": {"rope": "parameters"},
    "one rope base": {"rope": "parameters", "rope_base": (160000.0, 160000.0)},
    "layer types": {"layers": "layer_types"},
    "both": {"layers": "both"},
    "other eps": {"eps_keys": ("layer_norm_eps",), "eps": 1e-5},
    "both eps": {"eps_keys": ("norm_eps", "layer_norm_eps"), "eps": 1e-6},
    "objects": {"special_tokens": "object"},
    "shards": {"shards": 3},
    "spare rows": {"spare_rows": 11},
    "silu": {"activation": "silu"},
    "no head blocks": {"head_layers": 0},
    "window": {"local_attention": 64, "global_every": 2},
    "julia": {"agent_config_name": "julia_config.json"},
}


@pytest.mark.filterwarnings("ignore:llama.cpp")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spelling(spelling: str, tmp_path: Path) -> None:
    """A directory and the f32 file made of it are one model, whichever way the directory is spelled."""
    directory = paint(tmp_path / "tiny", **(TINY | SPELLINGS[spelling]))
    out = convert(directory, tmp_path / "tiny.gguf", outtype="f32")
    with Checkpoint.open(directory) as checkpoint, GGUFFile.open(out) as file:
        ours, theirs = (ModelConfig.from_source(source) for source in (checkpoint, file))
        for field in ours.__slots__:
            one, other = getattr(ours, field), getattr(theirs, field)
            if field == "temperatures":
                assert one == pytest.approx(other, rel=1e-6)
            elif isinstance(one, float):
                assert math.isclose(one, other, rel_tol=1e-6), field
            else:
                assert one == other, field
        assert list(checkpoint.tensors) == list(file.tensors)
        for name in checkpoint.tensors:
            np.testing.assert_array_equal(checkpoint.tensor(name), file.tensor(name))

    changes = SPELLINGS[spelling]
    assert ours.n_layers == TINY["n_layers"]
    assert ours.n_decision_blocks == changes.get("head_layers", TINY["head_layers"])
    assert (ours.rope_base_global, ours.rope_base_local) == changes.get("rope_base", (160000.0, 10000.0))
    assert ours.norm_eps == changes.get("eps", 1e-5)
    assert ours.window == changes.get("local_attention", 128) // 2
    every = changes.get("global_every", 3)
    assert ours.layer_is_global == tuple(i % every == 0 for i in range(ours.n_layers))
    assert ours.activation == changes.get("activation", "gelu")
    template = checkpoint.metadata["tokenizer.chat_template.systemone"]
    assert ("level" in template) == (spelling != "julia")
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    types = checkpoint.metadata["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == TINY["vocab"]
    spare = changes.get("spare_rows", 0)
    assert [i for i, kind in enumerate(types) if kind == 5] == list(range(TINY["vocab"] - spare, TINY["vocab"]))
    assert tokens[TINY["vocab"] - spare :] == [f"[PAD{i}]" for i in range(TINY["vocab"] - spare, TINY["vocab"])]


def test_lengths_default_to_the_runtimes(checkpoint: Path) -> None:
    edit(
        checkpoint / "rl_agent_config.json",
        max_len=None,
        head_max_len=None,
        temperature=None,
        temperature_by_options=None,
    )
    config = ModelConfig.from_source(Checkpoint.open(checkpoint))
    assert (config.max_tokens, config.max_head_tokens) == (512, 192)
    assert config.temperatures == {"choice": 1.0, "score": 1.0, "noul": 1.0}


@pytest.mark.parametrize("length", [0, -3, 1])
def test_no_room_for_a_head_is_the_least_room(length: int, checkpoint: Path) -> None:
    """The runtime cuts question and options to the same tokens for every number up to 1."""
    edit(checkpoint / "rl_agent_config.json", head_max_len=length)
    assert ModelConfig.from_source(Checkpoint.open(checkpoint)).max_head_tokens == 1


def test_julia_keeps_lengths_in_a_policy(tmp_path: Path) -> None:
    removed = {"max_len": None, "head_max_len": None}
    directory = paint(tmp_path / "j", **TINY, agent_config=removed, agent_config_name="julia_config.json")
    policy = {"max_length": 1024, "head_length": 500}
    (directory / "inference-policy.json").write_text(json.dumps(policy), encoding="utf-8")
    config = ModelConfig.from_source(Checkpoint.open(directory))
    assert (config.max_tokens, config.max_head_tokens) == (1024, 500)


@pytest.mark.parametrize(
    ("kinds", "window", "pattern"),
    [
        ("fssfss", 128, 3), ("ffffff", 0, 1), ("fsssss", 128, 6), ("fsfsfs", 128, 2), ("ssssss", 128, 0),
        ("sfssfs", 128, [True, False, True, True, False, True, False]),
        ("fsssff", 128, [False, True, True, True, False, False, False]),
    ],
)  # fmt: skip
def test_layer_types_in_ggufs_form(kinds: str, window: int, pattern: Any, tmp_path: Path) -> None:
    """A period where there is one; else whether each block is local, which llama.cpp reads, too."""
    directory = paint(tmp_path / "six", **(TINY | {"n_layers": 6}))
    names = {"f": "full_attention", "s": "sliding_attention"}
    edit(directory / "encoder" / "config.json", layer_types=[names[kind] for kind in kinds])
    with Checkpoint.open(directory) as checkpoint:
        assert checkpoint.metadata["modern-bert.attention.sliding_window"] == window
        assert checkpoint.metadata["modern-bert.attention.sliding_window_pattern"] == pattern
        config = ModelConfig.from_source(checkpoint)
    assert config.layer_is_global == tuple(kind == "f" for kind in kinds)
    with GGUFFile.open(convert(directory, tmp_path / "six.gguf")) as file:
        assert ModelConfig.from_source(file).layer_is_global == config.layer_is_global


@pytest.mark.parametrize("window", [0, 1])
def test_a_window_of_the_token_alone(window: int, checkpoint: Path, tmp_path: Path) -> None:
    """GGUF has 0 for layers that see everything."""
    edit(checkpoint / "encoder" / "config.json", local_attention=window)
    convert(checkpoint, tmp_path / "out.gguf")
    for source in (Checkpoint.open(checkpoint), GGUFFile.open(tmp_path / "out.gguf")):
        config = ModelConfig.from_source(source)
        assert (config.window, config.layer_is_global) == (0, (True, False, False))


# ---------------------------------------------------------------------------------- temperatures


def test_usable_temperatures_stay_raw(painted: Path) -> None:
    config = ModelConfig.from_source(Checkpoint.open(painted))
    assert config.temperatures["choice"] == 1.637
    assert config.temperatures["choice.11"] == 0.1006
    assert "score.2" not in config.temperatures


@pytest.mark.parametrize(
    ("value", "applied"),
    [
        (True, 1.0),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (None, 1.0),
        ("warm", 1.0),
        ([1], 1.0),
        (0, 0.5),
        (-3.5, 0.5),
        (1e-40, 0.5),
        (1e40, 5.0),
    ],
)
def test_unusable_temperature(value: Any, applied: float, checkpoint: Path) -> None:
    path = checkpoint / "rl_agent_config.json"
    edit(path, temperature=[1.5, value, 1.5], temperature_by_options={"noul:2": value})
    with pytest.warns(RuntimeWarning) as caught:
        config = ModelConfig.from_source(Checkpoint.open(checkpoint))
    assert config.temperatures == {"choice": 1.5, "score": applied, "noul": 1.5, "noul.2": applied}
    assert [str(warning.message).split("=")[0] for warning in caught] == [
        "temperature[1]",
        "noul:2",
    ]


def test_unknown_bucket_is_ignored_aloud(checkpoint: Path) -> None:
    edit(checkpoint / "rl_agent_config.json", temperature_by_options={"choice:7": 2.0})
    with pytest.warns(RuntimeWarning, match="'choice:7' is not an option bucket"):
        config = ModelConfig.from_source(Checkpoint.open(checkpoint))
    assert set(config.temperatures) == {"choice", "score", "noul"}


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("rl_agent_config.json", {"option_layout": "mixed"}, "option_layout: 'mixed'"),
        ("rl_agent_config.json", {"option_layout": ["parallel"]}, "option_layout: "),
        ("rl_agent_config.json", {"option_layout": NULL}, "option_layout: None"),
        ("rl_agent_config.json", {"max_len": NULL}, "max_len: is missing"),
        ("rl_agent_config.json", {"head_max_len": NULL}, "head_max_len: is missing"),
        ("rl_agent_config.json", {"temperature": NULL}, "temperature: expected a list of 3"),
        ("rl_agent_config.json", {"temperature_by_options": NULL}, "temperature_by_options: exp"),
        ("rl_agent_config.json", {"temperature": [1, 2]}, "temperature: expected a list of 3"),
        ("rl_agent_config.json", {"temperature_by_options": [1]}, "temperature_by_options: exp"),
        ("rl_agent_config.json", {"head_layers": None}, "head_layers: is missing"),
        ("rl_agent_config.json", {"head_layers": 1.5}, "head_layers: expected a whole number"),
        ("rl_agent_config.json", {"max_len": 0}, r"rl_agent_config\.json: max_len: 0 is outside 1 to"),
        ("rl_agent_config.json", {"max_len": True}, "max_len: expected a whole number"),
        ("rl_agent_config.json", {"max_len": 1 << 30}, r"rl_agent_config\.json: max_len: 1073741824 is outside"),
        (
            "encoder/config.json",
            {"hidden_size": None},
            r"tok_embeddings.weight: expected \[600, 768\], found \[600, 64\]",
        ),
        ("encoder/config.json", {"hidden_activation": "prelu"}, "hidden_activation: 'prelu'"),
        ("encoder/config.json", {"model_type": "bert"}, "model_type: expected 'modernbert'"),
        ("encoder/config.json", {"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000"),
        ("encoder/config.json", {"num_attention_heads": 5}, r"encoder/config\.json: num_attention_heads: 5 heads"),
        ("encoder/config.json", {"vocab_size": 599}, r"tok_embeddings.weight: expected \[599, 64\], found \[600, 64\]"),
        ("encoder/config.json", {"norm_eps": "small"}, "norm_eps: expected a number"),
        ("encoder/config.json", {"layer_types": ["full_attention"]}, "1 entries for 3 layers"),
        (
            "encoder/config.json",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}},
            "rope_parameters: expected null or an object with an object for full_attention",
        ),
        ("encoder/config.json", {"global_rope_theta": 1e300}, "global_rope_theta: 1e\\+300 is not"),
        ("encoder/config.json", {"global_rope_theta": -1.0}, "global_rope_theta: -1.0 is not"),
        ("tokenizer/tokenizer_config.json", {"mask_token": None}, "mask_token: is missing"),
        ("tokenizer/tokenizer_config.json", {"cls_token": "<start>"}, "600 rows|cls_token"),
    ],
)
def test_faulty_configuration(file: str, changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    edit(checkpoint / file, **changes)
    with pytest.raises(FormatError, match=message):
        Checkpoint.open(checkpoint)


def test_a_number_alone_takes_no_memory(checkpoint: Path) -> None:
    """Two thousand million tokens are refused before a list of them is made."""
    edit(checkpoint / "encoder" / "config.json", vocab_size=2**31 - 1)
    begun = time.perf_counter()
    with pytest.raises(FormatError, match=r"tok_embeddings.weight: expected \[2147483647, 64\]"):
        Checkpoint.open(checkpoint)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("depth", [500, 900, 950, 980])
@pytest.mark.parametrize("key", ["hidden_size", "model_type", "norm_eps", "hidden_activation"])
def test_a_deeply_nested_value_is_not_shown_whole(key: str, depth: int, checkpoint: Path) -> None:
    path = checkpoint / "encoder" / "config.json"
    settings = json.loads(path.read_text()) | {key: "here"}
    path.write_text(json.dumps(settings).replace('"here"', "[" * depth + "]" * depth))
    with pytest.raises(FormatError, match=r"config\.json") as caught:
        Checkpoint.open(checkpoint)
    assert len(str(caught.value)) < 400


def test_not_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    for missing in ("nowhere", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(FormatError, match=r"not a (Laya )?checkpoint"):
            Checkpoint.open(tmp_path / missing)
    for name in (
        "model.safetensors",
        "tokenizer/tokenizer.json",
        "encoder/config.json",
    ):
        (checkpoint / name).rename(checkpoint / "aside")
        with pytest.raises(FormatError, match=f"{name}.* is missing"):
            Checkpoint.open(checkpoint)
        (checkpoint / "aside").rename(checkpoint / name)
    for content in ("{", "[1]", '{"a": ' * 100_000, "\ud800".encode("utf-8", "surrogatepass")):
        path = checkpoint / "rl_agent_config.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(FormatError, match=r"rl_agent_config\.json: (is not|expected a) (JSON|UTF-8)"):
            Checkpoint.open(checkpoint)


def test_tokenizer_other_than_bpe_and_wordpiece(checkpoint: Path) -> None:
    path = checkpoint / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"] = {
        "type": "WordLevel",
        "unk_token": "[UNK]",
        "vocab": content["model"]["vocab"],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="WordLevel"):
        Checkpoint.open(checkpoint)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("encoder.final_norm.weight", None, r"is missing \(expected \[64\]\)"),
        (
            "encoder.layers.1.attn.Wqkv.weight",
            (64, 192),
            r"expected \[192, 64\], found \[64, 192\]",
        ),
        ("head.layers.0.self_attn.in_proj_bias", (191,), r"expected \[192\], found \[191\]"),
        ("encoder.layers.0.attn_norm.weight", (64,), "is unknown"),
        ("encoder.layers.3.mlp.Wo.weight", (64, 128), "is unknown"),
    ],
)
def test_faulty_tensor(name: str, change: tuple[int, ...] | None, message: str, checkpoint: Path) -> None:
    tensors = read_safetensors(checkpoint / "model.safetensors")
    tensors.pop(name, None)
    if change is not None:
        tensors[name] = np.zeros(change, np.float32)
    write_safetensors(checkpoint / "model.safetensors", tensors)
    with pytest.raises(FormatError, match=message) as caught:
        Checkpoint.open(checkpoint)
    assert name in str(caught.value)


def test_unread_tensors_may_be_anything(checkpoint: Path) -> None:
    tensors = read_safetensors(checkpoint / "model.safetensors")
    tensors = {name: data for name, data in tensors.items() if not name.startswith("act_head.")}
    tensors["act_head.0.weight"] = np.zeros(3, np.int64)
    tensors["temperature"] = np.full(3, np.nan, np.float64)
    write_safetensors(checkpoint / "model.safetensors", tensors)
    ModelConfig.from_source(Checkpoint.open(checkpoint))


# ---------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(100), "not a safetensors file"),
        (struct.pack("<Q", 1 << 40) + b"{}", "not a safetensors file"),
        (struct.pack("<Q", 8) + b"{}      ", "tensor .* is missing"),
    ],
)
def test_faulty_safetensors(content: bytes, message: str, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        Checkpoint.open(checkpoint)


def test_cut_safetensors(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    for size in (7, 9, 500, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"model\.safetensors"):
            Checkpoint.open(checkpoint)


def test_number_types_that_are_no_weights(checkpoint: Path) -> None:
    tensors = read_safetensors(checkpoint / "model.safetensors")
    tensors["scorer.3.bias"] = np.zeros(1, np.int64)
    write_safetensors(checkpoint / "model.safetensors", tensors)
    with pytest.raises(FormatError, match=r"scorer\.3\.bias: type I64 is not supported"):
        Checkpoint.open(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer.3.bias": "../elsewhere.safetensors"}, "lies outside"),
        ({"scorer.3.bias": "model-00009-of-00009.safetensors"}, "is missing"),
        ({"scorer.3.bias": 3}, "expected an object of file names"),
        ({"scorer.4.bias": "model-00001-of-00002.safetensors"}, "scorer.4.bias' is not in"),
    ],
)
def test_faulty_index(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = paint(tmp_path / "sharded", **TINY, shards=2)
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"] |= changes
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        Checkpoint.open(directory)
    assert "model.safetensors.index.json" in str(caught.value)


# --------------------------------------------------------------------------------------- tokenizer


def test_merges_come_in_two_spellings(checkpoint: Path) -> None:
    pairs = Checkpoint.open(checkpoint).metadata["tokenizer.ggml.merges"]
    path = checkpoint / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    for spelled in (merges, [m.split(" ") for m in merges]):
        content["model"]["merges"] = spelled
        path.write_text(json.dumps(content), encoding="utf-8")
        assert Checkpoint.open(checkpoint).metadata["tokenizer.ggml.merges"] == pairs == merges


@pytest.mark.parametrize(
    ("changes", "pre"),
    [
        ({}, "modern-bert"),
        ({"normalizer": None}, "gpt-2"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}, "modern-bert"),
        ({"normalizer": {"type": "NFKC"}}, "gpt-2"),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            },
            "gpt-2",
        ),
    ],
)
def test_pre_is_told_from_structure(changes: dict[str, Any], pre: str, checkpoint: Path) -> None:
    path = checkpoint / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(content), encoding="utf-8")
    assert Checkpoint.open(checkpoint).metadata["tokenizer.ggml.pre"] == pre
    opened = Checkpoint.open(checkpoint, pre="mmbert")
    assert opened.metadata["tokenizer.ggml.pre"] == "mmbert"


def test_added_runs_of_spaces(tmp_path: Path) -> None:
    """Added runs of spaces in Gemma's form are never matched by the reference, so they may not be user-defined."""
    metadata = Checkpoint.open(paint(tmp_path / "m", **TINY, tokenizer="metaspace")).metadata
    kinds = dict(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True))
    assert kinds["\u2581\u2581"] == 1
    assert kinds["\n\n"] == kinds["<table>"] == 4
    assert kinds["<mask>"] == kinds["<pad>"] == 3


# ----------------------------------------------------------------------------------- several files


@pytest.mark.parametrize("how", ["file", "architecture"])
def test_julia_is_told_once(how: str, checkpoint: Path) -> None:
    """Template and lengths are those of one kind of checkpoint, however it says that it is a Julia."""
    agent = checkpoint / "rl_agent_config.json"
    edit(agent, max_len=None, head_max_len=None, **({"architecture": "JuliaDecisionModel"} if how != "file" else {}))
    if how == "file":
        agent.rename(checkpoint / "julia_config.json")
    (checkpoint / "inference-policy.json").write_text('{"max_length": 100, "head_length": 50}')
    opened = Checkpoint.open(checkpoint)
    config = ModelConfig.from_source(opened)
    assert (config.max_tokens, config.max_head_tokens) == (100, 50)
    assert "level" not in opened.metadata["tokenizer.chat_template.systemone"]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_faulty_tokenizer_file_is_named_with_its_path(name: str, checkpoint: Path) -> None:
    path = checkpoint / "tokenizer" / name
    path.write_text("[]")
    with pytest.raises(FormatError) as caught:
        Checkpoint.open(checkpoint)
    assert str(caught.value).startswith(f"{path}: ")
