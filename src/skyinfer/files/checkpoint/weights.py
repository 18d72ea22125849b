"""The weights of a checkpoint directory: which file each tensor lies in, and its name in the GGUF form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any

from ...errors import FormatError
from ..config import ModelConfig
from ..json_file import JsonFile
from ..safetensors import StoredTensor, map_tensors
from ..tensors import F64, TensorInfo

_TOP_LEVEL = {
    "token_embd": "encoder.embeddings.tok_embeddings",
    "token_embd_norm": "encoder.embeddings.norm",
    "output_norm": "encoder.final_norm",
    "token_types": "type_emb",
    "cls.norm": "scorer.0",
    "cls": "scorer.1",
    "cls.output": "scorer.3",
}
_ENCODER_BLOCK = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}
_DECISION_BLOCK = {
    "attn_norm": "norm1.",
    "attn_qkv": "self_attn.in_proj_",
    "attn_output": "self_attn.out_proj.",
    "ffn_norm": "norm2.",
    "ffn_up": "linear1.",
    "ffn_down": "linear2.",
    # of s2
    "cross_attn_norm": "cross_norm.",
    "cross_attn_kv_norm": "cross_kv_norm.",
    "cross_attn_q": "cross_attn.q_proj.",
    "cross_attn_kv": "cross_attn.kv_proj.",
    "cross_attn_output": "cross_attn.out_proj.",
}
# what decision blocks are called: s2's are none of those that the Laya runtime loads
_DECISION_BLOCKS = {"s1": "head.layers", "s2": "decision.layers"}
# a second head that no answer depends on, and a buffer that does not hold the temperatures
_UNUSED = ("act_head.", "temperature")

# safetensors type of a weight -> GGML type (GGMLQuantizationType of the gguf package)
_GGML_TYPE = {"F32": 0, "F16": 1, "BF16": 30, "F64": F64}


def checkpoint_name(name: str, n_layers: int, architecture: str) -> str:
    """The checkpoint's name of a tensor of the GGUF form: "scorer.3.bias" for "cls.output.bias"."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    _, index, part = stem.split(".")
    if int(index) < n_layers:
        return f"encoder.layers.{index}.{_ENCODER_BLOCK[part]}.{kind}"
    return f"{_DECISION_BLOCKS[architecture]}.{int(index) - n_layers}.{_DECISION_BLOCK[part]}{kind}"


def check_embedding(directory: Path, metadata: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> None:
    """Compare the stated vocabulary with the weights before a list of so many tokens is made.

    Raises:
        FormatError: the embedding is missing or has another shape.
    """
    name = checkpoint_name("token_embd.weight", 0, "s1")  # and any other
    prefix = metadata["general.architecture"]
    shape = tuple(metadata[f"{prefix}.{key}"] for key in ("vocab_size", "embedding_length"))
    if name not in stored:
        raise FormatError(f"{directory}: tensor {name} is missing (expected {list(shape)})")
    if stored[name].shape != shape:
        raise FormatError(f"{directory}: tensor {name}: expected {list(shape)}, found {list(stored[name].shape)}")


def match_tensors(
    directory: Path, config: ModelConfig, stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, tuple[TensorInfo, StoredTensor]], dict[str, StoredTensor]]:
    """The tensors of the model by their GGUF names, and those that no answer depends on by their own names.

    Raises:
        FormatError: one is missing, has another shape or an unsupported type, or is unknown to a Laya model.
    """
    out, stored = {}, dict(stored)
    for name, shape in config.expected_tensors().items():
        source = checkpoint_name(name, config.n_layers, config.architecture)
        found = stored.pop(source, None)
        if found is None:
            raise FormatError(f"{directory}: tensor {source} is missing (expected {list(shape)})")
        if found.shape != shape:
            raise FormatError(f"{directory}: tensor {source}: expected {list(shape)}, found {list(found.shape)}")
        if found.dtype not in _GGML_TYPE:
            raise FormatError(
                f"{directory}: tensor {source}: type {found.dtype} is not supported ({', '.join(_GGML_TYPE)} are)"
            )
        info = TensorInfo(name, shape, _GGML_TYPE[found.dtype], found.offset, found.data.nbytes)
        out[name] = info, found
    for source in stored:
        if not source.startswith(_UNUSED):
            raise FormatError(f"{directory}: tensor {source!r} is unknown to {config.kind}")
    return out, stored


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Tensors of model.safetensors, or of the shards that its index names, and of no other file.

    Raises:
        FormatError: a file is missing or faulty; names it.
        OSError: a file cannot be read.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        return dict(map_tensors(single))
    listing = JsonFile.read(index)
    places = listing.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        listing.fail("weight_map", "expected an object of file names")
    out: dict[str, StoredTensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file:
            listing.fail("weight_map", f"{file!r} lies outside the checkpoint")
        if not (directory / file).exists():
            listing.fail("weight_map", f"{file!r} is missing")
        for name, stored in map_tensors(directory / file):
            if name in out:
                listing.fail("weight_map", f"tensor {name} is in two shards")
            out[name] = stored
    for name, file in places.items():
        if name not in out:
            listing.fail("weight_map", f"tensor {short_repr(name)} is not in {file!r}, nor in another shard")
    return out
