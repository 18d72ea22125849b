"""Files of s2: a directory and what is made of it hold the same, and a file of one architecture is not taken for one of
another. Names are those of docs/formats.md, written down here once more."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import SIZES, paint, read_safetensors, write_safetensors
from commands import Run

from skyinfer.errors import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.checkpoint.initial import read_initial
from skyinfer.files.config import ModelConfig
from skyinfer.files.conversion import OUTTYPES, convert
from skyinfer.files.gguf import GGUFFile
from skyinfer.files.inspection import describe
from skyinfer.files.recalibration import ModelCopy

TINY = SIZES["golden"] | {"vocab": 600}
AGENT, WEIGHTS = "rl_agent_config.json", "model.safetensors"

# GGUF name -> the checkpoint's, of a decision block
BLOCK = {
    "cross_attn_norm.weight": "cross_norm.weight", "cross_attn_norm.bias": "cross_norm.bias",
    "cross_attn_kv_norm.weight": "cross_kv_norm.weight", "cross_attn_kv_norm.bias": "cross_kv_norm.bias",
    "cross_attn_q.weight": "cross_attn.q_proj.weight", "cross_attn_q.bias": "cross_attn.q_proj.bias",
    "cross_attn_kv.weight": "cross_attn.kv_proj.weight", "cross_attn_kv.bias": "cross_attn.kv_proj.bias",
    "cross_attn_output.weight": "cross_attn.out_proj.weight", "cross_attn_output.bias": "cross_attn.out_proj.bias",
    "attn_norm.weight": "norm1.weight", "attn_norm.bias": "norm1.bias",
    "attn_qkv.weight": "self_attn.in_proj_weight", "attn_qkv.bias": "self_attn.in_proj_bias",
    "attn_output.weight": "self_attn.out_proj.weight", "attn_output.bias": "self_attn.out_proj.bias",
    "ffn_norm.weight": "norm2.weight", "ffn_norm.bias": "norm2.bias",
    "ffn_up.weight": "linear1.weight", "ffn_up.bias": "linear1.bias",
    "ffn_down.weight": "linear2.weight", "ffn_down.bias": "linear2.bias",
}  # fmt: skip


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **TINY, architecture="s2")


@pytest.fixture(scope="module")
def written(painted: Path) -> Path:
    return convert(painted, painted.with_suffix(".gguf"), outtype="f32")


@pytest.fixture
def checkpoint(painted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(painted, tmp_path / "tiny"))


def fault_of(directory: Path) -> str:
    with pytest.raises(FormatError) as caught, Checkpoint.open(directory) as source:
        ModelConfig.from_source(source)
    return str(caught.value)


# ------------------------------------------------------------------------------------ what is written


def test_every_tensor_by_both_of_its_names(painted: Path, written: Path) -> None:
    stored = read_safetensors(painted / WEIGHTS)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(written).tensors}
    for block in range(2):
        for name, own in BLOCK.items():
            found = tensors.pop(f"blk.{4 + block}.{name}")
            assert np.array_equal(found, stored.pop(f"decision.layers.{block}.{own}")), name
    assert not [name for name in stored if name.startswith(("head.", "decision.", "act_head."))]
    # all others are s1's, under s1's names
    s1 = paint(painted.parent / "s1", **TINY)
    with Checkpoint.open(s1) as source:
        assert {source.label(name) for name in source.tensors} >= stored.keys()
        for name, values in tensors.items():
            assert np.array_equal(values, stored.pop(source.label(name))), name
    assert not stored


def test_keys_are_s1s_under_another_prefix(painted: Path, written: Path) -> None:
    s1 = convert(paint(painted.parent / "s1", **TINY), painted.parent / "s1.gguf", outtype="f32")
    ours, theirs = (gguf.GGUFReader(file).fields for file in (written, s1))

    def values(fields: Any, prefix: str) -> dict[str, Any]:
        return {key.removeprefix(prefix): field.contents() for key, field in fields.items() if key.startswith(prefix)}

    own, others = values(ours, "skyinfer-s2."), values(theirs, "modern-bert.")
    assert ours["general.architecture"].contents() == own.pop("decision.type") == "skyinfer-s2"
    assert others.pop("decision.type") == "laya"
    assert own == others
    assert not values(ours, "modern-bert.")
    # a prompt that holds a whole request is what s2 does not have
    assert {key for key in theirs if key not in ours and not key.startswith("modern-bert.")} == {
        "tokenizer.chat_template.systemone", "tokenizer.chat_templates"
    }  # fmt: skip


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_a_directory_and_its_file_hold_the_same(outtype: str, painted: Path, tmp_path: Path) -> None:
    with (
        Checkpoint.open(painted) as directory,
        GGUFFile.open(convert(painted, tmp_path / "file.gguf", outtype=outtype)) as file,
    ):
        configs = [ModelConfig.from_source(source) for source in (directory, file)]
        assert configs[0].architecture == configs[1].architecture == "s2"
        assert configs[0].expected_tensors() == configs[1].expected_tensors()
        for name in directory.tensors:
            here, there = directory.tensor(name), file.tensor(name)
            bound = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 1 / 127}[outtype]
            assert np.abs(here - there).max() <= bound * np.abs(here).max(), name
        descriptions = [describe(source) for source in (directory, file)]
        for part in ("architecture", "parameters", "head", "tokenizer", "template"):
            assert descriptions[0][part] == descriptions[1][part]
    assert descriptions[0]["architecture"] == "skyinfer-s2"
    d = TINY["d_model"]
    per_block = (3 * d * d + 3 * d) + (d * d + d) + (8 * d * d + 5 * d) + 4 * d + 4 * d + 4 * d * d + 4 * d
    scorer = 3 * d + 2 * d + d * d + d + d + 1
    assert descriptions[0]["parameters"]["head"] == 2 * per_block + scorer


def test_a_training_begins_with_one(painted: Path) -> None:
    initial = read_initial(painted)
    assert initial.config.architecture == "s2"
    assert initial.unused == {}
    stored = read_safetensors(painted / WEIGHTS)
    assert initial.weights.keys() == stored.keys()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_temperatures_can_be_changed(kind: str, painted: Path, written: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out{'.gguf' if kind == 'file' else ''}"
    ModelCopy(written if kind == "file" else painted, out).write({"choice": 1.25, "noul.2": 0.75})
    with GGUFFile.open(out) if kind == "file" else Checkpoint.open(out) as source:
        changed = ModelConfig.from_source(source)
    with GGUFFile.open(written) as before:
        own = ModelConfig.from_source(before).temperatures
    assert changed.architecture == "s2"
    assert changed.temperatures == pytest.approx(own | {"choice": 1.25, "noul.2": 0.75})


def test_what_inspect_says(written: Path, run: Run) -> None:
    text = run("inspect", written).out
    assert re.search(r"architecture +skyinfer-s2, 4 encoder layers, 2 head blocks, decision type\s+skyinfer-s2", text)
    assert re.search(r"max_tokens +512 for a state\n +max_head_tokens +192 for an option with its question", text)
    assert "texts only: s2 lays out no whole request" in text
    assert "{{" not in text


# ---------------------------------------------------------------------------------- what is refused


def test_a_directory_without_decision_blocks(checkpoint: Path) -> None:
    agent = json.loads((checkpoint / AGENT).read_text("utf-8"))
    (checkpoint / AGENT).write_text(json.dumps(agent | {"decision_blocks": 0}), "utf-8")
    assert "decision_blocks: 0 is outside 1 to" in fault_of(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # what the Laya runtime would call it: it is s1's word, and not read
        ({"head_layers": 2, "decision_blocks": None}, "decision_blocks: is missing"),
        ({"architecture": None}, "head_layers: is missing"),
        ({"architecture": "s3"}, "architecture: 's3' is not supported (s1 and s2 are)"),
        ({"option_layout": "parallel"}, "option_layout: parallel is of models that have their options in one sequence"),
        ({"architecture": "s1", "head_layers": 2}, "tensor head.layers.0.norm1.weight is missing"),
    ],
)
def test_directories_that_do_not_fit_their_architecture(
    changes: dict[str, Any], message: str, checkpoint: Path
) -> None:
    agent = json.loads((checkpoint / AGENT).read_text("utf-8")) | changes
    agent = {key: value for key, value in agent.items() if value is not None}
    (checkpoint / AGENT).write_text(json.dumps(agent), "utf-8")
    assert message in fault_of(checkpoint)


def test_s1s_directory_that_says_it_is_s2(tmp_path: Path) -> None:
    directory = paint(tmp_path / "s1", **TINY, agent_config={"architecture": "s2"})
    assert "decision_blocks: is missing" in fault_of(directory)
    paint(directory, **TINY, agent_config={"architecture": "s2", "decision_blocks": 2})
    assert "tensor decision.layers.0.cross_norm.weight is missing (expected [128])" in fault_of(directory)


def test_a_julia_checkpoint_is_none(tmp_path: Path) -> None:
    directory = paint(tmp_path / "s2", **TINY, architecture="s2", agent_config_name="julia_config.json")
    assert "architecture: s2 has its configuration in rl_agent_config.json" in fault_of(directory)


@pytest.mark.parametrize("name", ["cross_kv_norm.bias", "cross_attn.kv_proj.weight", "self_attn.in_proj_weight"])
def test_a_missing_and_a_misshapen_tensor(name: str, checkpoint: Path) -> None:
    tensors = read_safetensors(checkpoint / WEIGHTS)
    name = f"decision.layers.1.{name}"
    values = tensors.pop(name)
    write_safetensors(checkpoint / WEIGHTS, tensors)
    assert f"tensor {name} is missing (expected {list(values.shape)})" in fault_of(checkpoint)
    write_safetensors(checkpoint / WEIGHTS, tensors | {name: values[:-1]})
    assert f"tensor {name}: expected {list(values.shape)}, found {list(values[:-1].shape)}" in fault_of(checkpoint)
    write_safetensors(checkpoint / WEIGHTS, tensors | {name: values, "head.layers.0.norm1.weight": values})
    assert "tensor 'head.layers.0.norm1.weight' is unknown to an s2 model" in fault_of(checkpoint)


def rewritten(source: Path, out: Path, keys: Callable[[str], str | None], architecture: str) -> Path:
    """A file with other keys, and its tensors as they are."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, architecture)
    for key, field in reader.fields.items():
        name = None if key.startswith("GGUF.") or key == "general.architecture" else keys(key)
        if name is not None:
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def fault_of_file(file: Path) -> str:
    with pytest.raises(FormatError) as caught, GGUFFile.open(file) as source:
        ModelConfig.from_source(source)
    return str(caught.value)


def s1s(key: str) -> str:
    return key.replace("skyinfer-s2.", "modern-bert.")


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("modern-bert", lambda key: key, "general.architecture: is modern-bert, and key skyinfer-s2."),
        ("skyinfer-s2", s1s, "general.architecture: is skyinfer-s2, and key modern-bert."),
        ("skyinfer-s3", lambda key: key, "expected modern-bert or skyinfer-s2, found skyinfer-s3"),
        ("modern-bert", s1s, "decision.type: expected laya or skyinfer-laya, found skyinfer-s2"),
        ("skyinfer-s2", lambda key: None if key.endswith("decision.type") else key, "decision.type"),
        ("skyinfer-s2", lambda key: None if key.endswith("decision.block_count") else key, "decision.block_count"),
    ],
)
def test_files_that_do_not_fit_their_architecture(
    architecture: str, keys: Callable[[str], str | None], message: str, written: Path, tmp_path: Path
) -> None:
    assert message in fault_of_file(rewritten(written, tmp_path / "file.gguf", keys, architecture))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("block_count", 1, "1 is outside 2 to 1024"), ("decision.block_count", 0, "0 is outside 1 to ")],
)
def test_a_file_without_decision_blocks(key: str, value: int, message: str, written: Path) -> None:
    with GGUFFile.open(written) as source:
        source.metadata[f"skyinfer-s2.{key}"] = value
        with pytest.raises(FormatError, match=f"key skyinfer-s2.{key}: {message}"):
            ModelConfig.from_source(source)


def test_a_file_of_s1_with_the_keys_of_s2(tmp_path: Path) -> None:
    s1 = convert(paint(tmp_path / "s1", **TINY), tmp_path / "s1.gguf", outtype="f32")
    file = rewritten(s1, tmp_path / "file.gguf", lambda key: key.replace("modern-bert.", "skyinfer-s2."), "skyinfer-s2")
    assert "decision.type: expected skyinfer-s2, found laya" in fault_of_file(file)
