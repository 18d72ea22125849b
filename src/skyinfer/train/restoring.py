"""A checkpoint directory out of a GGUF file that `skyinfer convert` has written, as a beginning of a training.

The tokenizer is in the file as it was; configuration files are written anew from the file's keys. What the checkpoint
had beside them, such as the runtime's second head, is not in the file, and is as in a new model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, faults_named
from ..files.activations import BY_NAME
from ..files.checkpoint.weights import checkpoint_name
from ..files.config import ModelConfig
from ..files.gguf import GGUFFile
from ..schema import QUESTION_TYPES
from ..text.ggml_tokenizer import HUGGINGFACE_JSON, TOKENS_KEY
from ..text.template import KEY as TEMPLATE_KEY
from ..text.template import laya_template
from .architectures import ARCHITECTURES
from .writing import (
    AGENT,
    ENCODER,
    TOKENIZER,
    WEIGHTS,
    agent_config,
    bucket_name,
    encoder_config,
    write_json,
    write_weights,
)

# GGUF's key of each special token: role -> `tokenizer.ggml.KEY`
_ROLES = {"cls": "bos_token_id", "sep": "seperator_token_id", "mask": "mask_token_id", "pad": "padding_token_id",
          "unk": "unknown_token_id"}  # fmt: skip


def restore(path: Path, directory: Path) -> None:
    """Write the checkpoint of a GGUF file into an empty directory.

    Raises:
        FormatError: the file is faulty, has no whole tokenizer, or its prompt is not Laya's.
        OSError: it cannot be read, or the directory cannot be written.
    """
    with GGUFFile.open(path) as source:
        config, metadata = ModelConfig.from_source(source), source.metadata
        tokenizer = metadata.get(HUGGINGFACE_JSON)
        if not isinstance(tokenizer, str):
            raise FormatError(f"{path}: has no {HUGGINGFACE_JSON}, by which training would read text; start from the "
                              "checkpoint it was made of")  # fmt: skip
        special = _special_tokens(metadata)
        template = laya_template(*(special.get(f"{role}_token", "") for role in ("cls", "sep", "mask")))
        if ARCHITECTURES[config.architecture].is_laya and metadata.get(TEMPLATE_KEY) != template:
            raise FormatError(f"{path}: its prompt is not that of a Laya checkpoint, and training knows no other")
        (directory / ENCODER).mkdir()
        (directory / TOKENIZER).mkdir()
        with faults_named(directory):
            (directory / TOKENIZER / "tokenizer.json").write_bytes(tokenizer.encode())
        write_json(
            directory / TOKENIZER / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        )
        write_json(directory / ENCODER / "config.json", _encoder(config, metadata))
        agent, unused = agent_config(config.architecture, config.d_model, config.n_decision_blocks)
        write_json(directory / AGENT, agent | _lengths_and_temperatures(config))
        weights = {
            checkpoint_name(name, config.n_layers, config.architecture): source.tensor(name).reshape(shape)
            for name, shape in config.expected_tensors().items()
        }
        write_weights(directory / WEIGHTS, weights | unused)


def _special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    tokens, found = metadata.get(TOKENS_KEY), {}
    for role, key in _ROLES.items():
        number = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(tokens, list) and type(number) is int and 0 <= number < len(tokens):
            found[f"{role}_token"] = tokens[number]
    return found


def _encoder(config: ModelConfig, metadata: dict[str, Any]) -> dict[str, Any]:
    ids = {role: metadata.get(f"tokenizer.ggml.{key}", 0) for role, key in _ROLES.items()}
    kinds = ["full_attention" if is_global else "sliding_attention" for is_global in config.layer_is_global]
    stated = {
        "hidden_activation": BY_NAME[config.activation].transformers[0],
        "max_position_embeddings": config.context_tokens,
        "norm_eps": _shortest(config.norm_eps),
        "layer_norm_eps": _shortest(config.norm_eps),
        "local_attention": 2 * config.window,
        "layer_types": kinds,
        "global_rope_theta": _shortest(config.rope_base_global),
        "local_rope_theta": _shortest(config.rope_base_local),
    }
    # llama.cpp's converter reads no list
    every = next((n for n in range(1, config.n_layers + 1) if all(
        is_global == (i % n == 0) for i, is_global in enumerate(config.layer_is_global))), None)  # fmt: skip
    if every is not None:
        stated["global_attn_every_n_layers"] = every
    return encoder_config(
        d_model=config.d_model, n_layers=config.n_layers, n_heads=config.n_heads, d_ff=config.d_ff,
        vocab_size=config.vocab_size, special_ids=ids,
    ) | stated  # fmt: skip


def _shortest(value: float) -> float:
    """The number that was written before it became a float32 of the file: 1e-5 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _lengths_and_temperatures(config: ModelConfig) -> dict[str, Any]:
    by_options = {}
    for name, value in config.temperatures.items():
        kind, _, bucket = name.partition(".")
        if bucket:
            by_options[bucket_name(kind, bucket)] = value
    return {
        "max_len": config.max_tokens,
        "head_max_len": config.max_head_tokens,
        "option_layout": config.option_layout,
        "temperature": [config.temperatures.get(kind, 1.0) for kind in QUESTION_TYPES],
        "temperature_by_options": by_options,
    }
