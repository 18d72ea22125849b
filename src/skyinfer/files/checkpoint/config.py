"""The configuration of a checkpoint directory as GGUF keys: encoder sizes, decision lengths, temperatures.

Source of the entries and their defaults: transformers' ModernBertConfig and the Laya runtime 0.4.15. The values are
checked once more, as a GGUF file's are, by `skyinfer.files.config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any

from ...errors import warn
from ...schema import QUESTION_TYPES
from ..config import (
    ARCHITECTURE,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PERIOD,
    DEFAULT_ROPE_BASE_GLOBAL,
    DEFAULT_ROPE_BASE_LOCAL,
    TEMPERATURE_KEY,
)
from ..json_file import JsonFile
from ..limits import MAX_BLOCKS
from ..temperatures import BUCKETS, as_number, clamped

# what the Laya runtime takes where a checkpoint does not say
_DEFAULT_MAX_HEAD_TOKENS = 192

# the Laya runtime's name of an option bucket -> GGUF's
_BUCKETS = {theirs: name for name, theirs in BUCKETS.items()}


def config_metadata(agent: JsonFile, encoder: JsonFile, lengths: JsonFile, name: str) -> dict[str, Any]:
    """GGUF keys of everything but tokenizer and file type, in the order of llama.cpp's converter.

    Args:
        agent: rl_agent_config.json or julia_config.json.
        encoder: encoder/config.json.
        lengths: inference-policy.json, in which Julia-1 keeps its lengths; empty for others.
        name: `general.name`.

    Raises:
        FormatError: an entry is missing, of the wrong kind, or asks for what skyinfer does not compute; names both.
    """
    layout = agent.get("option_layout")
    if layout not in (None, "sequential"):
        agent.fail("option_layout", f"{short_repr(layout)} is not supported (sequential is)")
    model_type = encoder.get("model_type")
    if model_type not in (None, "modernbert"):
        encoder.fail("model_type", f"expected 'modernbert', found {short_repr(model_type)}")

    n_layers = encoder.whole("num_hidden_layers", least=1)
    n_decision_blocks = agent.whole("head_layers")
    if n_layers + n_decision_blocks > MAX_BLOCKS:
        encoder.fail("num_hidden_layers", f"{n_layers} is out of range")
    d_model = encoder.whole("hidden_size", least=1)
    d_ff = encoder.whole("intermediate_size", least=1)
    rope_global, rope_local = _rope_bases(encoder)
    # transformers computes with norm_eps; a derivative may have the other spelling alone
    eps_key = next((key for key in ("norm_eps", "layer_norm_eps") if key in encoder.content), None)
    activation = encoder.get("hidden_activation") or "gelu"
    if activation == "swish":
        activation = "silu"
    if activation not in ("gelu", "silu"):
        encoder.fail("hidden_activation", f"{short_repr(activation)} is not supported (gelu and silu are)")
    pooling = encoder.get("classifier_pooling") or "cls"
    if pooling not in ("mean", "cls"):
        encoder.fail("classifier_pooling", f"{short_repr(pooling)} is not supported (cls and mean are)")
    max_tokens = lengths.whole("max_length", DEFAULT_MAX_TOKENS, least=1)
    max_head_tokens = lengths.whole("head_length", _DEFAULT_MAX_HEAD_TOKENS, least=1)

    keys: dict[str, Any] = {
        "block_count": n_layers + n_decision_blocks,
        "context_length": encoder.whole("max_position_embeddings", 8192, least=1),
        "embedding_length": d_model,
        "feed_forward_length": [d_ff] * n_layers + [4 * d_model] * n_decision_blocks,
        "attention.head_count": encoder.whole("num_attention_heads", least=1),
        "rope.freq_base": rope_global,
        "rope.freq_base_swa": rope_local,
        "attention.layer_norm_epsilon": (encoder.number(eps_key, encoder.get(eps_key)) if eps_key else 1e-5),
        "attention.causal": False,
        "classifier.pooling_type": {"mean": 1, "cls": 2}[pooling],
        "attention.sliding_window": encoder.whole("local_attention", 128),
        "attention.sliding_window_pattern": _period(encoder, n_layers),
        "rope.scaling.type": "none",
        "vocab_size": encoder.whole("vocab_size", least=1),
        "hidden_activation": activation,
        "decision.type": "laya",
        "decision.block_count": n_decision_blocks,
        "decision.max_head_tokens": agent.whole("head_max_len", max_head_tokens, least=1),
        "decision.max_tokens": agent.whole("max_len", max_tokens, least=1),
    }
    metadata: dict[str, Any] = {"general.architecture": ARCHITECTURE, "general.name": name}
    metadata |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    for entry, value in _temperatures(agent):
        metadata[TEMPERATURE_KEY + entry] = value
    return metadata


def _rope_bases(encoder: JsonFile) -> tuple[float, float]:
    """Bases of global and local layers, from whichever of the spellings is there."""
    parameters = encoder.get("rope_parameters") or encoder.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        encoder.fail("rope_parameters", "expected an object")

    def base(kind: str, old_key: str, default: float) -> float:
        own = parameters.get(kind)
        own = own if isinstance(own, dict) else parameters
        if own.get("rope_type", own.get("type", "default")) not in (None, "default"):
            encoder.fail("rope_parameters", f"{kind}: only the default rope_type is supported")
        value = own.get("rope_theta")
        value = encoder.get(old_key) if value is None else value
        return default if value is None else encoder.number(old_key, value)

    return (
        base("full_attention", "global_rope_theta", DEFAULT_ROPE_BASE_GLOBAL),
        base("sliding_attention", "local_rope_theta", DEFAULT_ROPE_BASE_LOCAL),
    )


def _period(encoder: JsonFile, n_layers: int) -> int:
    """Every how many layers one is global. `layer_types` wins over the number, and has to have a period
    because GGUF stores nothing else."""
    period = encoder.whole("global_attn_every_n_layers", DEFAULT_PERIOD, least=1)
    kinds = encoder.get("layer_types")
    if kinds is None:
        return period
    names = {"full_attention": True, "sliding_attention": False}
    if not isinstance(kinds, list) or any(kind not in names for kind in map(str, kinds)):
        encoder.fail("layer_types", f"expected a list of {' and '.join(names)}")
    if len(kinds) != n_layers:
        encoder.fail("layer_types", f"{len(kinds)} entries for {n_layers} layers")
    is_global = [names[kind] for kind in kinds]
    candidates: list[int] = [period, *range(1, n_layers + 1)]
    for candidate in candidates:
        if is_global == [i % candidate == 0 for i in range(n_layers)]:
            return candidate
    encoder.fail("layer_types", "full attention does not recur with a period from layer 0 on")


def _temperatures(agent: JsonFile) -> Iterator[tuple[str, float]]:
    """Temperatures by GGUF name: raw where they are usable, as the Laya runtime reads them where they are not."""
    base = agent.get("temperature") if "temperature" in agent.content else [1.0, 1.0, 1.0]
    if not isinstance(base, list) or len(base) != 3:
        agent.fail("temperature", f"expected a list of 3 numbers, found {short_repr(base)}")
    for index, value in enumerate(base):
        yield QUESTION_TYPES[index], _temperature(f"temperature[{index}]", value)
    by_options = agent.content.get("temperature_by_options", {})
    if not isinstance(by_options, dict):
        agent.fail("temperature_by_options", "expected an object")
    for entry, value in by_options.items():
        kind, _, bucket = entry.partition(":")
        if kind not in QUESTION_TYPES or bucket not in _BUCKETS:
            warn(f"temperature_by_options: {entry!r} is not an option bucket and is ignored")
            continue
        yield f"{kind}.{_BUCKETS[bucket]}", _temperature(entry, value)


def _temperature(entry: str, value: Any) -> float:
    # a file stores float32, and no reader takes a temperature of zero; the clamped value gives the same answer
    number = as_number(value)
    applied = number if 1e-30 < number < 1e30 else clamped(number)
    if applied != number:
        warn(f"{entry}={short_repr(value)} is not a usable temperature; {applied:g} is used instead")
    return applied
