"""What `skyinfer inspect` shows: a model file or checkpoint described as one dict, and that dict as text.

A source that cannot be described is one that `skyinfer.load` would refuse, except that no weight is read here: a NaN
among them shows only when the model is loaded. Every string of the file is untrusted, so the text form escapes what
could move a terminal's cursor; JSON escapes by itself.
"""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ..terminal import printable, size
from ..text.template import KEY as TEMPLATE_KEY
from ..text.template import PromptTemplate, julia_template, laya_template
from ..text.tokenizer import HUGGINGFACE_JSON, Tokenizer
from .config import ModelConfig, ModelSource
from .gguf import GGUFFile
from .temperatures import clamped

_WIDTH = 80
_LABEL = 18  # columns of the names on the left
_LONGEST = 4000


def describe(source: ModelSource, *, tensors: bool = False) -> dict[str, Any]:
    """Everything worth knowing about a model but its weights, in values that JSON can hold.

    Args:
        source: an open GGUF file or checkpoint directory.
        tensors: list every tensor, too.

    Raises:
        FormatError: as `skyinfer.load` raises it.
    """
    config = ModelConfig.from_source(source)
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
        "template": _template(source.metadata, specials),
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


def _template(metadata: Mapping[str, Any], specials: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get(TEMPLATE_KEY)
    known = {laya_template(**specials): "laya", julia_template(**specials): "julia"}
    if text is None:
        return {"style": "laya", "source": "default: the file has none", "text": laya_template(**specials)}
    return {"style": known.get(text, "other"), "source": TEMPLATE_KEY, "text": text}


# ------------------------------------------------------------------------------------------ as text


def as_text(description: Mapping[str, Any]) -> str:
    """The dict of `describe` for people, within 80 columns except for a long file or tensor name."""
    return "\n".join(_lines(description))


def _lines(d: Mapping[str, Any]) -> Iterator[str]:
    encoder, head, decision, tokenizer = d["encoder"], d["head"], d["decision"], d["tokenizer"]
    count = d["parameters"]
    stored = sum(row["bytes"] for row in d["tensor_types"].values())
    yield f"{printable(d['path'])} ({d['format']})"
    yield from _entry("name", d["name"])
    yield from _entry(
        "architecture", f"{d['architecture']}, {_plural(encoder['layers'], 'encoder layer')}, "
        f"{_plural(head['blocks'], 'head block')}, decision type {decision['type']}"
    )  # fmt: skip
    yield from _entry(
        "parameters", f"{count['total']:,}: {count['embedding']:,} in the embedding, {count['encoder']:,} in the "
        f"encoder, {count['head']:,} in the head"
    )  # fmt: skip
    yield from _entry("weights", f"{size(stored)} stored, {size(4 * count['total'])} in memory (f32)")
    yield from _entry(
        "encoder", f"d_model {encoder['d_model']}, {_plural(encoder['heads'], 'head')}, d_ff {encoder['d_ff']}, "
        f"{encoder['activation']}, norm_eps {encoder['norm_eps']:.7g}"
    )  # fmt: skip
    spans = "every layer sees every token"
    if len(encoder["global_layers"]) < encoder["layers"]:
        shown = ", ".join(map(str, encoder["global_layers"])) or "none"
        spans = f"global layers: {shown}; others see {encoder['window']} tokens to each side"
    yield from _entry("attention", spans)
    yield from _entry("rope bases", f"{encoder['rope_base_global']:.7g} global, {encoder['rope_base_local']:.7g} local")
    yield from _entry("decision head", f"{_plural(head['heads'], 'head')} of attention")
    yield from _entry("max_tokens", f"{decision['max_tokens']} for a sequence")
    yield from _entry("max_head_tokens", f"{decision['max_head_tokens']} for question and options")
    for i, (name, value) in enumerate(decision["temperatures"].items()):
        clamped = decision["clamped"].get(name)
        note = "" if clamped is None else f" (clamped to {clamped:g})"
        yield from _entry("" if i else "temperatures", f"{name:<12} {value:.7g}{note}")

    parts = [f"from {tokenizer['source']}", f"{tokenizer['vocabulary']:,} tokens"]
    parts += [
        f"{key} {tokenizer[key]}" for key in ("pre", "model", "normalizer", "pre_tokenizer") if tokenizer.get(key)
    ]
    yield from _entry("tokenizer", ", ".join(parts))
    for i, (role, token) in enumerate(tokenizer["special"].items()):
        yield from _entry("" if i else "special tokens", f"{role:<4} {token['id']:>6}  {token['text']}")
    yield from _entry("template", f"{d['template']['style']} ({d['template']['source']})")
    yield from _entry("", d["template"]["text"])
    for i, (kind, row) in enumerate(d["tensor_types"].items()):
        yield from _entry(
            "" if i else "tensors",
            f"{kind:<6} {row['tensors']:>5} of {row['parameters']:>13,} parameters {size(row['bytes']):>10}",
        )
    if "tensors" in d:
        yield ""
        yield f"{'tensor':<34}{'shape':>16}  {'type':<8}{'offset':>12}{'bytes':>8}"
        for tensor in d["tensors"]:
            shape = " x ".join(map(str, tensor["shape"]))
            yield (
                f"{printable(tensor['name']):<34}{shape:>16}  {tensor['type']:<8}"
                f"{tensor['offset']:>12}{size(tensor['bytes']).replace(' ', ''):>8}"
            )


def _entry(label: str, text: str) -> Iterator[str]:
    """A label and its text, escaped and wrapped; without a label, one that continues the entry above."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
    wrapped = textwrap.wrap(printable(text), _WIDTH - _LABEL - 2, break_on_hyphens=False)
    for i, line in enumerate(wrapped or [""]):
        yield f"  {'' if i else label:<{_LABEL}}{line}".rstrip()


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
