"""A model file or checkpoint described as one dict, which `skyinfer inspect` shows.

A source that cannot be described is one that `skyinfer.load` would refuse, except that no weight is read here: a NaN
among them shows only when the model is loaded. Every string of the file is untrusted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from ..errors import of_model
from ..text.ggml_tokenizer import HUGGINGFACE_JSON
from ..text.template import KEY as TEMPLATE_KEY
from ..text.template import PromptTemplate, julia_template, laya_template
from ..text.tokenizer import Tokenizer
from .config import ModelConfig, ModelSource
from .gguf import GGUFFile
from .temperatures import clamped


def describe(source: ModelSource, *, tensors: bool = False) -> dict[str, Any]:
    """Everything worth knowing about a model but its weights, in values that JSON can hold.

    Args:
        source: an open GGUF file or checkpoint directory.
        tensors: list every tensor, too.

    Raises:
        FormatError: as `skyinfer.load` raises it.
    """
    config = ModelConfig.from_source(source)
    with of_model(source.path):
        tokenizer = Tokenizer.from_metadata(source.metadata, config)
        specials = {"cls": tokenizer.cls_text, "sep": tokenizer.sep_text, "mask": tokenizer.mask_text}
        PromptTemplate.from_metadata(source.metadata, **specials)

    by_type: dict[str, dict[str, int]] = {}
    for info in source.tensors.values():
        row = by_type.setdefault(_type_name(info.type), {"tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += math.prod(info.shape)
        row["bytes"] += info.n_bytes
    description: dict[str, Any] = {
        "path": os.fspath(source.path),
        "format": f"GGUF {source.version}" if isinstance(source, GGUFFile) else "checkpoint directory",
        "name": config.name,
        "architecture": source.metadata["general.architecture"],
        "parameters": _parameters(source, config),
        "encoder": {
            "layers": config.n_layers,
            "global_layers": [i for i, is_global in enumerate(config.layer_is_global) if is_global],
            "d_model": config.d_model,
            "heads": config.n_heads,
            "d_ff": config.d_ff,
            "activation": config.activation,
            "window": config.window,
            "rope_base_global": config.rope_base_global,
            "rope_base_local": config.rope_base_local,
            "norm_eps": config.norm_eps,
        },
        "head": {"blocks": config.n_decision_blocks, "heads": config.n_decision_heads},
        "decision": {
            "type": source.metadata[f"{source.metadata['general.architecture']}.decision.type"],
            "option_layout": config.option_layout,
            "max_tokens": config.max_tokens,
            "max_head_tokens": config.max_head_tokens,
            "temperatures": config.temperatures,
            "clamped": {name: clamped(value) for name, value in config.temperatures.items() if clamped(value) != value},
        },
        "tokenizer": {
            **_tokenizer(source.metadata),
            "vocabulary": config.vocab_size,
            "special": {role: {"id": getattr(config, f"{role}_id"), "text": text} for role, text in specials.items()},
        },
        "template": _template(source.metadata, specials, config),
        "tensor_types": by_type,
    }
    if tensors:
        description["tensors"] = [
            {
                "name": info.name,
                "shape": list(info.shape),
                "type": _type_name(info.type),
                "offset": info.offset,
                "bytes": info.n_bytes,
            }
            for info in source.tensors.values()
        ]
    return description


def _type_name(kind: int) -> str:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(kind).name


def _parameters(source: ModelSource, config: ModelConfig) -> dict[str, int]:
    counts = dict.fromkeys(("embedding", "encoder", "head"), 0)
    for name, info in source.tensors.items():
        part = "encoder"
        if name == "token_embd.weight":
            part = "embedding"
        elif name.startswith(("cls", "token_types")) or (
            name.startswith("blk.") and int(name.split(".")[1]) >= config.n_layers
        ):
            part = "head"
        counts[part] += math.prod(info.shape)
    return {"total": sum(counts.values()), **counts}


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Where token ids come from. Called on metadata of which a Tokenizer has been made."""
    pre = metadata.get("tokenizer.ggml.pre")
    text = metadata.get(HUGGINGFACE_JSON)
    if text is None:
        return {"source": "tokenizer.ggml.*", "pre": pre}
    content = json.loads(text)

    def kind(part: str) -> str | None:
        value = content.get(part)
        return value.get("type") if isinstance(value, dict) else None

    return {
        "source": HUGGINGFACE_JSON,
        "pre": pre,
        "model": kind("model"),
        "normalizer": kind("normalizer"),
        "pre_tokenizer": kind("pre_tokenizer"),
    }


def _template(metadata: Mapping[str, Any], specials: Mapping[str, str], config: ModelConfig) -> dict[str, Any]:
    """`text` is None where there is none: s2 has no sequence of a whole request."""
    text = metadata.get(TEMPLATE_KEY)
    known = {laya_template(**specials): "laya", julia_template(**specials): "julia"}
    if text is None and config.architecture != "s1":
        return {"style": "laya", "source": f"texts only: {config.architecture} lays out no whole request", "text": None}
    if text is None:
        return {"style": "laya", "source": "default: the file has none", "text": laya_template(**specials)}
    return {"style": known.get(text, "other"), "source": TEMPLATE_KEY, "text": text}
