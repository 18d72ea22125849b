"""The configuration of a checkpoint directory as GGUF keys: encoder sizes, decision lengths, temperatures.

Source of the entries and their defaults: the Laya runtime 0.4.15, and llama.cpp's converter for Julia-1. encoder.py
reads the encoder's. The values are checked once more, as a GGUF file's are, by `skyinfer.files.config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any, NamedTuple

from ...core.border import OPTION_LAYOUTS
from ...errors import warn
from ...schema import QUESTION_TYPES
from ..activations import BY_NAME
from ..config import (
    DECISION_TYPES,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PERIOD,
    GGUF_ARCHITECTURES,
    LAYA,
    LAYA_OF_OURS,
    temperature_key,
)
from ..json_file import JsonFile
from ..limits import MAX_BLOCKS
from ..temperatures import BUCKETS, as_number, clamped
from .encoder import EncoderSizes, read_encoder

# GGUF has no empty arrays, so this is text
AUGMENTATION_KEY = "skyinfer.training.augmentation"

# what the Laya runtime takes where a checkpoint does not say
_DEFAULT_MAX_HEAD_TOKENS = 192

# The entry of the agent's configuration with the number of decision blocks. The Laya runtime reads s1's, and refuses a
# directory that has none.
DECISION_BLOCKS = {"s1": "head_layers", "s2": "decision_blocks"}

# the Laya runtime's name of an option bucket -> GGUF's
_BUCKETS = {theirs: name for name, theirs in BUCKETS.items()}


class Configuration(NamedTuple):
    """GGUF keys and values, and for each key the entry that it comes from, for messages."""

    metadata: dict[str, Any]
    origins: dict[str, str]


def architecture_of(agent: JsonFile) -> str:
    """The core's name of a directory's architecture: "s1" where it says nothing, or something of another program's.

    Raises:
        FormatError: it is one of skyinfer's that is not known here.
    """
    stated = agent.get("architecture")
    if not isinstance(stated, str):
        return "s1"
    if stated not in GGUF_ARCHITECTURES and stated[:1] == "s" and stated[1:].isdecimal():
        agent.fail("architecture", f"{short_repr(stated)} is not supported ({' and '.join(GGUF_ARCHITECTURES)} are)")
    return stated if stated in GGUF_ARCHITECTURES else "s1"


def read_configuration(agent: JsonFile, encoder: JsonFile, lengths: JsonFile, name: str) -> Configuration:
    """GGUF keys of everything but tokenizer and file type, in the order of llama.cpp's converter.

    Args:
        agent: rl_agent_config.json or julia_config.json.
        encoder: encoder/config.json.
        lengths: inference-policy.json, in which Julia-1 keeps its lengths; empty for others.
        name: `general.name`.

    Raises:
        FormatError: an entry is missing, of the wrong kind, or asks for what skyinfer does not compute; names both.
    """
    layout = agent.content.get("option_layout", "sequential")
    if not isinstance(layout, str) or layout not in OPTION_LAYOUTS:
        agent.fail("option_layout", f"{short_repr(layout)} is not supported ({' and '.join(OPTION_LAYOUTS)} are)")
    architecture = architecture_of(agent)
    blocks_entry = DECISION_BLOCKS[architecture]
    sizes = read_encoder(encoder)
    n_decision_blocks = agent.whole(blocks_entry)
    if sizes.n_layers + n_decision_blocks > MAX_BLOCKS:
        agent.fail(blocks_entry, f"{sizes.n_layers} encoder layers and these are more than {MAX_BLOCKS} blocks")

    def length(key: str, other_key: str, default: int) -> tuple[int, JsonFile, str]:
        """From the agent's configuration, which wins, or where Julia-1 keeps it."""
        if key in agent.content:
            # the Laya runtime has a default for what is not stated, and none for null
            return agent.whole(key, least=-(1 << 31)), agent, key
        return lengths.whole(other_key, default, least=1), lengths, other_key

    max_tokens, tokens_file, tokens_entry = length("max_len", "max_length", DEFAULT_MAX_TOKENS)
    max_head_tokens, head_file, head_entry = length("head_max_len", "head_length", _DEFAULT_MAX_HEAD_TOKENS)
    # a prefix is cut to the same tokens for every number up to 1, and GGUF's numbers begin there
    max_head_tokens = max(1, max_head_tokens)
    window, pattern = _window(sizes, n_decision_blocks)

    decision_type = DECISION_TYPES[architecture][0]
    if decision_type == LAYA and not (BY_NAME[sizes.activation].in_llama_cpp and layout == "sequential"):
        decision_type = LAYA_OF_OURS
    entries: list[tuple[str, Any, JsonFile, str]] = [
        ("block_count", sizes.n_layers + n_decision_blocks, encoder, "num_hidden_layers"),
        ("context_length", min(max(1, sizes.context_tokens), (1 << 31) - 1), encoder, "max_position_embeddings"),
        ("embedding_length", sizes.d_model, encoder, "hidden_size"),
        (
            "feed_forward_length",
            [sizes.d_ff] * sizes.n_layers + [4 * sizes.d_model] * n_decision_blocks,
            encoder,
            "intermediate_size",
        ),
        ("attention.head_count", sizes.n_heads, encoder, "num_attention_heads"),
        ("rope.freq_base", sizes.rope_base_global, encoder, "rope_parameters"),
        ("rope.freq_base_swa", sizes.rope_base_local, encoder, "rope_parameters"),
        ("attention.layer_norm_epsilon", sizes.norm_eps, encoder, "norm_eps"),
        ("attention.causal", False, encoder, "is_causal"),
        ("classifier.pooling_type", {"mean": 1, "cls": 2}[sizes.pooling], encoder, "classifier_pooling"),
        ("attention.sliding_window", window, encoder, "local_attention"),
        ("attention.sliding_window_pattern", pattern, encoder, "layer_types"),
        ("rope.scaling.type", "none", encoder, "rope_scaling"),
        ("vocab_size", sizes.vocab_size, encoder, "vocab_size"),
        ("hidden_activation", BY_NAME[sizes.activation].gguf, encoder, "hidden_activation"),
        ("decision.type", decision_type, agent, "option_layout"),
        ("decision.block_count", n_decision_blocks, agent, blocks_entry),
        ("decision.max_head_tokens", max_head_tokens, head_file, head_entry),
        ("decision.max_tokens", max_tokens, tokens_file, tokens_entry),
    ]
    if layout != "sequential":
        entries.append(("decision.option_layout", layout, agent, "option_layout"))
    prefix = GGUF_ARCHITECTURES[architecture]
    metadata: dict[str, Any] = {"general.architecture": prefix, "general.name": name}
    origins = {}
    for key, value, file, entry in entries:
        metadata[f"{prefix}.{key}"] = value
        origins[f"{prefix}.{key}"] = f"{file.path}: {entry}"
    for temperature, value in _temperatures(agent):
        key = temperature_key(prefix) + temperature
        metadata[key] = value
        origins[key] = f"{agent.path}: temperature"
    augmentation = _augmentation(agent)
    if augmentation is not None:
        metadata[AUGMENTATION_KEY] = augmentation
    return Configuration(metadata, origins)


def _augmentation(agent: JsonFile) -> str | None:
    """What `skyinfer train` notes of how examples were varied, such as "options, keys"; None where it notes nothing. No
    other runtime reads it."""
    training = agent.content.get("training")
    names = training.get("augmentation") if isinstance(training, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        return None
    return ", ".join(names) or None


def _window(sizes: EncoderSizes, n_decision_blocks: int) -> tuple[int, int | list[bool]]:
    """GGUF's window and pattern: every how many layers one is global (0: none), or whether each block is local.

    A window of 0 means there that every layer is global, so one that reaches no other token is written as 1, which
    readers halve. llama.cpp ends itself on a window that no layer has.
    """
    if all(sizes.layer_is_global):
        return 0, 1
    window = max(1, sizes.window)
    n = sizes.n_layers
    if not any(sizes.layer_is_global):
        return window, 0
    for period in (DEFAULT_PERIOD, *range(2, n + 1)):
        if sizes.layer_is_global == tuple(i % period == 0 for i in range(n)):
            return window, period
    return window, [not is_global for is_global in sizes.layer_is_global] + [False] * n_decision_blocks


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
