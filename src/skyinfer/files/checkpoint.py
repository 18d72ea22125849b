"""A Laya checkpoint directory as a model source, in GGUF's keys and tensor names.

So config.py checks a directory as it checks a file, `skyinfer.load` takes either, and conversion.py has
only to write down what is said here. No torch: weights are mapped from safetensors. What the Laya runtime makes
of the tokenizer's files is hf_tokenizer.py's knowledge; the text of the chat template is template.py's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import FormatError
from ..schema import QUESTION_TYPES
from ..text.tokenizer import TOKEN_CONTROL, TOKEN_NORMAL, TOKEN_UNUSED, TOKEN_USER_DEFINED
from .config import (
    ARCHITECTURE,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PERIOD,
    DEFAULT_ROPE_BASE_GLOBAL,
    DEFAULT_ROPE_BASE_LOCAL,
    TEMPERATURE_KEY,
    ModelConfig,
)
from .gguf import (
    ALL_ROWS,
    STORED_DTYPES,
    TensorInfo,
    finite,
    release_rows,
)
from .json_file import JsonFile
from .paths import checked_path, name_as_text
from .safetensors import StoredTensor, map_tensors
from .temperatures import as_number, clamped

# what the Laya runtime takes where a checkpoint does not say
_DEFAULT_MAX_HEAD_TOKENS = 192

# what `tokenizer.ggml.pre` may be: llama.cpp's names for the tokenizers of ModernBERT encoders
_PRES = ("modern-bert", "gpt-2", "mmbert", "granite-embed-multi-97m", "granite-embed-multi-311m")

# the runtime's name of an option bucket -> GGUF's
_BUCKETS = {"2": "2", "3-5": "3_5", "6-10": "6_10", "11+": "11"}

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
_HEAD_BLOCK = {
    "attn_norm": "norm1.",
    "attn_qkv": "self_attn.in_proj_",
    "attn_output": "self_attn.out_proj.",
    "ffn_norm": "norm2.",
    "ffn_up": "linear1.",
    "ffn_down": "linear2.",
}
# a second head that no answer reads, and a buffer that is not the temperatures in force
_UNUSED = ("act_head.", "temperature")

# safetensors type of a weight -> GGML type (GGMLQuantizationType of the gguf package)
_GGML_TYPE = {"F32": 0, "F16": 1, "BF16": 30}

_METASPACE = "\u2581"


class Checkpoint:
    """A Laya checkpoint directory, open as a `config.ModelSource`.

    Attributes:
        path: the directory.
        metadata: GGUF keys and values, as a converted file would hold them.
        tensors: by GGUF name; `offset` counts in the safetensors file the tensor lies in.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], stored: dict[str, tuple[TensorInfo, StoredTensor]]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = {name: info for name, (info, _) in stored.items()}
        self._data = {name: data for name, (_, data) in stored.items()}

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, pre: str | None = None, name: str | None = None) -> Checkpoint:
        """Read the configuration and the tokenizer, map the weights, and check them all.

        Args:
            directory: holds rl_agent_config.json (or julia_config.json), encoder/, tokenizer/ and
                model.safetensors (or its shards).
            pre: `tokenizer.ggml.pre`, where the tokenizer's structure should not decide: one of llama.cpp's names for
                tokenizers of ModernBERT encoders.
            name: `general.name`; the directory's own by default.

        Raises:
            FormatError: not a checkpoint, or a faulty one; the message names the file and the entry,
                or the tensor with what was expected and found. Or `pre` is not known, or `name` is no text.
            TypeError: `pre` or `name` is not a string.
            OSError: a file cannot be read.
        """
        directory = checked_path(directory)
        _check_names(pre, name)
        if not directory.is_dir():
            raise FormatError(f"{directory}: not a checkpoint directory")
        agent = JsonFile.one_of(directory, "rl_agent_config.json", "julia_config.json")
        encoder = JsonFile.read(directory / "encoder" / "config.json")
        is_julia = agent.path.name == "julia_config.json" or agent.get("architecture") == "JuliaDecisionModel"
        policy = directory / "inference-policy.json"
        lengths = JsonFile.read(policy) if is_julia and policy.exists() else JsonFile(policy, {})
        name = name_as_text(directory.resolve().name) or "model" if name is None else name
        metadata = _metadata(agent, encoder, lengths, name)
        stored = _stored_tensors(directory)
        _check_embedding(directory, metadata, stored)
        metadata |= _tokenizer_metadata(
            directory / "tokenizer",
            metadata[f"{ARCHITECTURE}.vocab_size"],
            pre,
            is_julia=is_julia,
        )
        config = ModelConfig.from_metadata(metadata, directory)
        return cls(directory, metadata, _match_tensors(directory, config, stored))

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's values: float32 in the shape of its `TensorInfo`; a view of the file for F32.

        Raises:
            FormatError: a value is NaN or infinite.
        """
        info, data = self.tensors[name], self._data[name].data
        if info.type == _GGML_TYPE["F32"]:
            values = data.view("<f4")
            # a safetensors header may have any length
            if not values.flags.aligned:
                values = values.copy()
        elif info.type == _GGML_TYPE["F16"]:
            values = data.view("<f2").astype(np.float32)
        else:
            values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        if not finite(values):
            source = _checkpoint_name(name, self._n_layers)
            raise FormatError(f"{self.path}: tensor {source}: holds a NaN or infinite value")
        return values.reshape(info.shape)

    def stored(self, name: str, rows: slice = ALL_ROWS) -> tuple[np.ndarray, str]:
        """As `GGUFFile.stored`."""
        info = self.tensors[name]
        dtype, item = STORED_DTYPES[info.type]
        values = self._data[name].data.view(item).reshape(info.shape)[rows]
        return (values if values.flags.aligned else values.copy()), dtype

    def forget(self, prefix: str) -> None:
        """As `GGUFFile.forget`."""
        self.metadata = {key: value for key, value in self.metadata.items() if not key.startswith(prefix)}

    def release(self, name: str, rows: slice = ALL_ROWS) -> None:
        """As `GGUFFile.release`."""
        if name in self._data:
            release_rows(self._data[name].file, self.tensors[name], rows)

    @property
    def _n_layers(self) -> int:
        blocks, head = (self.metadata[f"{ARCHITECTURE}.{key}"] for key in ("block_count", "decision.block_count"))
        return int(blocks - head)

    def close(self) -> None:
        """Let go of the weights. Memory is unmapped once no array refers to it."""
        self._data = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# ----------------------------------------------------------------------------------------- configuration


def _check_names(pre: str | None, name: str | None) -> None:
    """Refuse what the caller wants to call the model or its tokenizer, where GGUF or llama.cpp would."""
    for key, value in (("pre", pre), ("name", name)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"{key} must be a string, not {type(value).__name__}")
    if pre is not None and pre not in _PRES:
        raise FormatError(
            f"tokenizer.ggml.pre: {short_repr(pre)} is not llama.cpp's name for a tokenizer of a ModernBERT encoder; "
            f"use one of {', '.join(_PRES)}"
        )
    if name is not None:
        if not name:
            raise FormatError("general.name: must not be empty")
        if name != name_as_text(name):
            raise FormatError(f"general.name: {short_repr(name)} is not Unicode text")


def _metadata(agent: JsonFile, encoder: JsonFile, lengths: JsonFile, name: str) -> dict[str, Any]:
    """GGUF keys of everything but tokenizer and file type, in the order llama.cpp's converter has.

    `lengths` holds what Julia keeps in a file of its own.
    """
    layout = agent.get("option_layout")
    if layout not in (None, "sequential"):
        agent.fail("option_layout", f"{short_repr(layout)} is not supported (sequential is)")
    model_type = encoder.get("model_type")
    if model_type not in (None, "modernbert"):
        encoder.fail("model_type", f"expected 'modernbert', found {short_repr(model_type)}")

    n_layers = encoder.whole("num_hidden_layers", least=1)
    n_decision_blocks = agent.whole("head_layers")
    if n_layers + n_decision_blocks > 1024:
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
    """Temperatures by GGUF name, raw where they are usable and as the Laya runtime reads them where not."""
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
            _warn(f"temperature_by_options: {entry!r} is not an option bucket and is ignored")
            continue
        yield f"{kind}.{_BUCKETS[bucket]}", _temperature(entry, value)


def _temperature(entry: str, value: Any) -> float:
    # a file stores float32, and no reader takes a temperature of zero; the clamp gives the same answer
    number = as_number(value)
    applied = number if 1e-30 < number < 1e30 else clamped(number)
    if applied != number:
        _warn(f"{entry}={short_repr(value)} is not a usable temperature; {applied:g} is used instead")
    return applied


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


# --------------------------------------------------------------------------------------------- tokenizer


def _tokenizer_metadata(directory: Path, vocab_size: int, pre: str | None, *, is_julia: bool) -> dict[str, Any]:
    """Keys of the vocabulary, the special tokens and the template."""
    from ..text.template import julia_template, laya_template
    from .hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config

    settings = tokenizer_config(directory)
    canonical = canonical_tokenizer_json(directory)
    tokenizer = JsonFile.parse(directory / "tokenizer.json", canonical)
    model = tokenizer.content["model"]
    if model.get("type") != "BPE":
        tokenizer.fail("model.type", f"{model.get('type')!r} is not supported (BPE is)")
    added = {token["id"]: token for token in tokenizer.content["added_tokens"]}
    ids = _vocabulary(tokenizer, model, added, vocab_size)

    def required(role: str) -> tuple[str, int]:
        text = special_token_text(settings, role)
        if text not in ids:
            settings.fail(f"{role}_token", f"{text!r} is not in the vocabulary")
        return text, ids[text]

    def optional(role: str) -> int | None:
        if settings.get(f"{role}_token") is None:
            return None
        return ids.get(special_token_text(settings, role))

    (cls_text, cls_id), (sep_text, sep_id) = required("cls"), required("sep")
    mask_text, mask_id = required("mask")
    pre = pre or _pre_of(tokenizer, model, mask_lstrip=added.get(mask_id, {}).get("lstrip") is True)
    tokens, token_types = _tokens(ids, added, vocab_size, runs_of_spaces=pre == "mmbert")
    eos_id = optional("eos")

    keys: dict[str, Any] = {
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": True,
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": token_types,
        "merges": _merges(model),
        "bos_token_id": cls_id,
        "eos_token_id": sep_id if eos_id is None else eos_id,
        "unknown_token_id": optional("unk"),
        "seperator_token_id": sep_id,
        "padding_token_id": optional("pad"),
        "mask_token_id": mask_id,
        "token_type_count": len(QUESTION_TYPES),
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    template = julia_template if is_julia else laya_template
    metadata["tokenizer.chat_template.systemone"] = template(cls_text, sep_text, mask_text)
    metadata["tokenizer.chat_templates"] = ["systemone"]
    metadata["tokenizer.huggingface.json"] = canonical
    normalizer = tokenizer.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
        metadata["skycmd.tokenizer.normalizer"] = normalizer["type"]
    for side in ("lstrip", "rstrip"):
        stripping = [token_id for token_id, token in sorted(added.items()) if token.get(side) is True]
        if stripping:
            metadata[f"skycmd.tokenizer.{side}"] = stripping
    return metadata


def _vocabulary(
    tokenizer: JsonFile,
    model: dict[str, Any],
    added: Mapping[int, dict[str, Any]],
    vocab_size: int,
) -> dict[str, int]:
    """Text -> id of every token, each id inside the embedding."""
    ids: dict[str, int] = model["vocab"] | {token["content"]: token_id for token_id, token in added.items()}
    for text, token_id in ids.items():
        if not 0 <= token_id < vocab_size:
            tokenizer.fail("model.vocab", f"id {token_id} of {text!r} is outside {vocab_size} rows")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            tokenizer.fail("model.vocab", f"token {token_id} is not Unicode text: {text!r}")
    return ids


def _tokens(
    ids: Mapping[str, int],
    added: Mapping[int, dict[str, Any]],
    vocab_size: int,
    *,
    runs_of_spaces: bool,
) -> tuple[list[str], list[int]]:
    """Token texts and types in id order, as llama.cpp's converter gives them."""
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TOKEN_UNUSED] * vocab_size
    for text, token_id in ids.items():
        tokens[token_id], types[token_id] = text, TOKEN_NORMAL
    for token_id, token in added.items():
        text = token["content"]
        if token.get("special") is True or _looks_special(text):
            types[token_id] = TOKEN_CONTROL
        else:
            types[token_id], text = TOKEN_USER_DEFINED, text.replace(_METASPACE, " ")
            # the reference never matches the added runs of spaces, so they must not be cut out of text
            if runs_of_spaces and text and not text.strip(" "):
                types[token_id], text = TOKEN_NORMAL, _METASPACE * len(text)
        tokens[token_id] = text
    return tokens, types


def _looks_special(text: str) -> bool:
    """Control tokens that some tokenizers forget to mark; the list is llama.cpp's."""
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(start) and text.endswith(end)
        for start, end in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    )


def _merges(model: dict[str, Any]) -> list[str]:
    """Merges as "left right"; a space inside a part is written as its byte-level letter, as llama.cpp does."""
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    for i, merge in enumerate(merges):
        if merge.count(" ") != 1:  # few have one inside a part
            pair = model["merges"][i]
            parts = pair.split(" ", 1) if isinstance(pair, str) else pair
            merges[i] = " ".join(part.replace(" ", "\u0120") for part in parts)
    return merges


def _pre_of(tokenizer: JsonFile, model: dict[str, Any], *, mask_lstrip: bool) -> str:
    """llama.cpp's name for how text is split before merging, told from the tokenizer's structure."""

    def flat(part: Any, inner: str) -> list[dict[str, Any]]:
        if not isinstance(part, dict):
            return []
        if part.get("type") != "Sequence":
            return [part]
        inside = part.get(inner)
        return inside if isinstance(inside, list) else []

    normalizers = flat(tokenizer.get("normalizer"), "normalizers")
    splits = flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    kinds = [split.get("type") for split in splits]
    if "ByteLevel" in kinds:
        plain = (
            len(splits) == 1
            and splits[0].get("use_regex") is not False
            and splits[0].get("add_prefix_space") is not True
        )
        nfc = [one.get("type") for one in normalizers] == ["NFC"]
        return "modern-bert" if plain and nfc and mask_lstrip else "gpt-2"
    spaces_marked = any(one.get("content") == _METASPACE for one in normalizers)
    if model.get("byte_fallback") is True and ("Metaspace" in kinds or spaces_marked):
        return "mmbert"
    _warn(
        f"{tokenizer.path}: llama.cpp has no name for this tokenizer and will split text otherwise "
        f"(skyinfer reads the whole tokenizer)"
    )
    return "gpt-2"


# ----------------------------------------------------------------------------------------------- weights


def _checkpoint_name(name: str, n_layers: int) -> str:
    """The checkpoint's name of a GGUF tensor, by the tables above."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    _, index, part = stem.split(".")
    if int(index) < n_layers:
        return f"encoder.layers.{index}.{_ENCODER_BLOCK[part]}.{kind}"
    return f"head.layers.{int(index) - n_layers}.{_HEAD_BLOCK[part]}{kind}"


def _check_embedding(directory: Path, metadata: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> None:
    """Hold the stated vocabulary against the weights before a list of so many tokens is made."""
    name = _checkpoint_name("token_embd.weight", 0)
    shape = tuple(metadata[f"{ARCHITECTURE}.{key}"] for key in ("vocab_size", "embedding_length"))
    if name not in stored:
        raise FormatError(f"{directory}: tensor {name} is missing (expected {list(shape)})")
    if stored[name].shape != shape:
        raise FormatError(f"{directory}: tensor {name}: expected {list(shape)}, found {list(stored[name].shape)}")


def _match_tensors(
    directory: Path, config: ModelConfig, stored: dict[str, StoredTensor]
) -> dict[str, tuple[TensorInfo, StoredTensor]]:
    """Every tensor of the model under its GGUF name; nothing missing, nothing left over. Empties `stored`."""
    out = {}
    for name, shape in config.expected_tensors().items():
        source = _checkpoint_name(name, config.n_layers)
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
            raise FormatError(f"{directory}: tensor {source!r} is unknown to a Laya model")
    return out


def _stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Tensors of model.safetensors, or of the shards its index lists."""
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
