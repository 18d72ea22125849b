"""What a training that starts from a checkpoint is given: the weights of the files that count, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import SIZES, paint, read_safetensors, write_safetensors

import skyinfer
from skyinfer.errors import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.checkpoint.initial import read_initial

TINY = SIZES["pico"] | {"vocab": 600, "temperature_by_options": {}}
UNUSED = {"act_head.0.weight", "act_head.0.bias", "act_head.2.weight", "act_head.2.bias", "temperature"}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_are_those_of_the_file(dtype: str, tmp_path: Path) -> None:
    directory = paint(tmp_path / "tiny", **TINY, dtype=dtype)
    initial = read_initial(directory)
    stored = read_safetensors(directory / "model.safetensors")
    assert set(initial.weights) == set(stored) - UNUSED
    assert set(initial.unused) == UNUSED
    for name, values in {**initial.weights, **initial.unused}.items():
        expected = stored[name]
        if dtype == "BF16":
            expected = (expected.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(values, expected.astype(np.float32), name)
        assert values.dtype == np.float32
        assert values.flags.writeable
    assert (initial.config.n_layers, initial.config.max_tokens) == (3, 256)
    assert initial.encoder == json.loads((directory / "encoder" / "config.json").read_text(encoding="utf-8"))
    assert initial.agent == json.loads((directory / "rl_agent_config.json").read_text(encoding="utf-8"))
    assert [file.name for file in initial.tokenizer_files] == ["tokenizer.json", "tokenizer_config.json"]


def test_only_the_shards_that_the_index_names_are_read(tmp_path: Path) -> None:
    whole = read_initial(paint(tmp_path / "whole", **TINY))
    directory = paint(tmp_path / "shards", **TINY, shards=3)
    stray = {"scorer.3.bias": np.full(1, 99.0, np.float32), "optimizer.state": np.zeros(4, np.float32)}
    write_safetensors(directory / "a-stray.safetensors", stray)
    write_safetensors(directory / "z-stray.safetensors", stray)
    (directory / "not.safetensors").write_bytes(b"no tensors at all")
    initial = read_initial(directory)
    assert set(initial.weights) == set(whole.weights)
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(initial.weights[name], values)
    # and beside a single file
    write_safetensors(whole_dir := tmp_path / "whole" / "b-stray.safetensors", stray)
    assert whole_dir.exists()
    assert read_initial(tmp_path / "whole").weights["scorer.3.bias"] == whole.weights["scorer.3.bias"]


@pytest.mark.parametrize(
    ("dtype", "value"), [("<f8", 1.5), ("<i8", -3), ("<f8", 1e300), ("<i2", 7), ("<u1", 255), ("<u4", 1), ("?", True)]
)
def test_unused_tensors_of_any_number_type(dtype: str, value: float, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    directory = paint(tmp_path / "tiny", **TINY)
    tensors = read_safetensors(directory / "model.safetensors")
    tensors["temperature"] = np.full(3, value, dtype)
    save_file(tensors, directory / "model.safetensors")
    assert skyinfer.load(directory).config.n_layers == 3
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            read_initial(directory).unused["temperature"], np.full(3, value, dtype).astype(np.float32)
        )


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2FNUZ", "F6_E2M3", "F4", "C64"])
def test_unused_tensors_of_the_formats_other_types(dtype: str, tmp_path: Path) -> None:
    """Types that numpy has not: no obstacle to answers, and named where a training would have to pass them on."""
    bits = {"F8_E4M3": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F4": 4, "C64": 64}[dtype]
    directory = paint(tmp_path / "tiny", **TINY)
    path = directory / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    entry = {"dtype": dtype, "shape": [2, 4], "data_offsets": [len(data) - start, len(data) - start + bits]}
    text = json.dumps(header | {"act_head.extra": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:] + bytes(bits))
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:  # the package takes the header, too
        assert "act_head.extra" in file.keys()  # noqa: SIM118
    Checkpoint.open(directory).close()
    with pytest.raises(FormatError, match=rf"tensor act_head\.extra: type {dtype} is not supported"):
        read_initial(directory)


def test_what_cannot_be_trained_further(tmp_path: Path) -> None:
    directory = paint(tmp_path / "nan", **TINY)
    tensors = read_safetensors(directory / "model.safetensors")
    tensors["scorer.3.bias"][0] = np.nan
    write_safetensors(directory / "model.safetensors", tensors)
    with pytest.raises(FormatError, match=r"tensor scorer\.3\.bias: holds a NaN"):
        read_initial(directory)
    for name, changes in {
        "julia_config.json": {},
        "rl_agent_config.json": {"architecture": "JuliaDecisionModel"},
    }.items():
        julia = paint(tmp_path / name, **TINY, agent_config=changes, agent_config_name=name)
        with pytest.raises(FormatError, match="Julia-1 checkpoint; only a Laya checkpoint can be trained further"):
            read_initial(julia)


@pytest.mark.parametrize(
    ("name", "gguf_name"),
    [("scorer.3.bias", "cls.output.bias"), ("encoder.layers.1.attn.Wqkv.weight", "blk.1.attn_qkv.weight")],
)
def test_faults_name_the_directorys_own_tensors(name: str, gguf_name: str, tmp_path: Path) -> None:
    directory = paint(tmp_path / "nan", **TINY)
    tensors = read_safetensors(directory / "model.safetensors")
    tensors[name].ravel()[-1] = np.inf
    write_safetensors(directory / "model.safetensors", tensors)
    with pytest.raises(FormatError) as caught:
        skyinfer.load(directory)
    assert f"tensor {name}: " in str(caught.value)
    assert gguf_name not in str(caught.value)
