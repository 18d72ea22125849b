"""A Laya checkpoint directory as a model source, and its conversion to one GGUF file.

`Checkpoint` translates: it speaks in GGUF keys and tensor names, so config.py checks a directory as it
checks a file, and `skyinfer.load` takes either. `convert` writes down what `Checkpoint` says, one tensor
at a time, in the form llama.cpp, wllama and Ollama read. No torch: weights are mapped from safetensors.
The text of the chat template comes from template.py.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .config import (
    ARCHITECTURE,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PERIOD,
    DEFAULT_ROPE_BASE_GLOBAL,
    DEFAULT_ROPE_BASE_LOCAL,
    QUESTION_TYPES,
    TEMPERATURE_KEY,
    ModelConfig,
)
from .errors import FormatError
from .gguf import TensorInfo, finite

# matrix types a file can be written in -> general.file_type (LlamaFileType of the gguf package)
OUTTYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}

# what the Laya runtime takes where a checkpoint does not say
_DEFAULT_MAX_HEAD_TOKENS = 192
# bounds of the Laya runtime's clamp
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 0.5, 5.0

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

# safetensors dtype -> bytes of one value, and GGML type where a weight may have it
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
    "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_GGML_TYPE = {"F32": 0, "F16": 1, "BF16": 30}

# token types of a GGUF vocabulary (TokenType of the gguf package)
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED_TOKEN = 1, 3, 4, 5
_METASPACE = "\u2581"


class Checkpoint:
    """A Laya checkpoint directory, open as a `config.ModelSource`.

    Attributes:
        path: the directory.
        metadata: GGUF keys and values, as a converted file would hold them.
        tensors: by GGUF name; `offset` counts in the safetensors file the tensor lies in.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], stored: dict[str, tuple[TensorInfo, np.ndarray]]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = {name: info for name, (info, _) in stored.items()}
        self._data = {name: data for name, (_, data) in stored.items()}

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], *, pre: str | None = None, name: str | None = None
    ) -> Checkpoint:
        """Read the configuration and the tokenizer, map the weights, and check them all.

        Args:
            directory: holds rl_agent_config.json (or julia_config.json), encoder/, tokenizer/ and
                model.safetensors (or its shards).
            pre: `tokenizer.ggml.pre`, where the tokenizer's structure should not decide.
            name: `general.name`; the directory's own by default.

        Raises:
            FormatError: not a checkpoint, or a faulty one; the message names the file and the entry,
                or the tensor with what was expected and found.
            OSError: a file cannot be read.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise FormatError(f"{directory}: not a checkpoint directory")
        agent = _JsonFile.one_of(directory, "rl_agent_config.json", "julia_config.json")
        encoder = _JsonFile.read(directory / "encoder" / "config.json")
        metadata = _metadata(agent, encoder, name or directory.resolve().name)
        metadata |= _tokenizer_metadata(
            directory / "tokenizer",
            metadata[f"{ARCHITECTURE}.vocab_size"],
            pre,
            julia=agent.path.name.startswith("julia")
            or agent.get("architecture") == "JuliaDecisionModel",
        )
        config = ModelConfig.from_metadata(metadata, directory)
        return cls(directory, metadata, _match_tensors(directory, config))

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's values: float32 in the shape of its `TensorInfo`; a view of the file for F32.

        Raises:
            FormatError: a value is NaN or infinite.
        """
        info, data = self.tensors[name], self._data[name]
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

    @property
    def _n_layers(self) -> int:
        blocks, head = (
            self.metadata[f"{ARCHITECTURE}.{key}"] for key in ("block_count", "decision.block_count")
        )
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


def convert(
    checkpoint_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    outtype: str = "f16",
    pre: str | None = None,
    name: str | None = None,
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write a Laya checkpoint directory as one GGUF file that llama.cpp reads too.

    Args:
        checkpoint_dir: see `Checkpoint.open`.
        out: the file; it appears whole or not at all.
        outtype: of the matrices: f32, f16, bf16 or q8_0. Norms and biases are always F32.
        pre: `tokenizer.ggml.pre`, where the tokenizer's structure should not decide.
        name: `general.name`; the directory's own by default.
        force: replace an existing file.
        progress: called after each tensor with its name, the bytes written and the bytes in all.

    Returns:
        The path of the file.

    Raises:
        FormatError: see `Checkpoint.open`; or a weight does not fit the outtype.
        FileExistsError: `out` exists and `force` is not set.
        ValueError: unknown outtype.
        OSError: reading or writing failed.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"unknown outtype {outtype!r}; choose one of {', '.join(OUTTYPES)}")
    out = Path(out)
    if out.is_dir():
        raise IsADirectoryError(f"{out}: is a directory; name the file to write")
    if out.exists() and not force:
        raise FileExistsError(f"{out}: exists already; it is replaced only when forced")
    with Checkpoint.open(checkpoint_dir, pre=pre, name=name) as checkpoint:
        _warn_of_llama_cpp(ModelConfig.from_source(checkpoint))
        # in the target's own directory, so that the rename cannot cross file systems
        part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
        try:
            _write(checkpoint, part, outtype, progress)
            os.replace(part, out)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return out


# ----------------------------------------------------------------------------------------- configuration


class _JsonFile:
    """A JSON object in a file, with typed access that names file and entry in its errors."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content

    @classmethod
    def read(cls, path: Path) -> _JsonFile:
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise FormatError(f"{path}: is missing (not a Laya checkpoint?)") from None
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise FormatError(f"{path}: expected a JSON object")
        return cls(path, content)

    @classmethod
    def one_of(cls, directory: Path, *names: str) -> _JsonFile:
        for name in names:
            if (directory / name).is_file():
                return cls.read(directory / name)
        raise FormatError(f"{directory}: not a Laya checkpoint: {' and '.join(names)} are missing")

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def fail(self, key: str, message: str) -> NoReturn:
        raise FormatError(f"{self.path}: {key}: {message}")

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(key, f"expected a whole number, found {value!r}")
        if not least <= value < 1 << 31:
            self.fail(key, f"{value} is out of range")
        return value

    def number(self, key: str, value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.fail(key, f"expected a number, found {value!r}")
        try:
            return float(value)
        except OverflowError:
            self.fail(key, f"{value} is out of range")


def _metadata(agent: _JsonFile, encoder: _JsonFile, name: str) -> dict[str, Any]:
    """GGUF keys of everything but tokenizer and file type, in the order llama.cpp's converter has."""
    layout = agent.get("option_layout")
    if layout not in (None, "sequential"):
        agent.fail("option_layout", f"{layout!r} is not supported (sequential is)")
    model_type = encoder.get("model_type")
    if model_type not in (None, "modernbert"):
        encoder.fail("model_type", f"expected 'modernbert', found {model_type!r}")

    n_layers = encoder.whole("num_hidden_layers", least=1)
    n_head_blocks = agent.whole("head_layers")
    if n_layers + n_head_blocks > 1024:
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
        encoder.fail("hidden_activation", f"{activation!r} is not supported (gelu and silu are)")
    pooling = encoder.get("classifier_pooling") or "cls"
    if pooling not in ("mean", "cls"):
        encoder.fail("classifier_pooling", f"{pooling!r} is not supported (cls and mean are)")
    # Julia keeps its lengths in a file of their own
    policy_path = agent.path.with_name("inference-policy.json")
    policy = _JsonFile(policy_path, {})
    if agent.path.name.startswith("julia") and policy_path.is_file():
        policy = _JsonFile.read(policy_path)
    max_tokens = policy.whole("max_length", DEFAULT_MAX_TOKENS, least=1)
    max_head_tokens = policy.whole("head_length", _DEFAULT_MAX_HEAD_TOKENS, least=1)

    keys: dict[str, Any] = {
        "block_count": n_layers + n_head_blocks,
        "context_length": encoder.whole("max_position_embeddings", 8192, least=1),
        "embedding_length": d_model,
        "feed_forward_length": [d_ff] * n_layers + [4 * d_model] * n_head_blocks,
        "attention.head_count": encoder.whole("num_attention_heads", least=1),
        "rope.freq_base": rope_global,
        "rope.freq_base_swa": rope_local,
        "attention.layer_norm_epsilon": (
            encoder.number(eps_key, encoder.get(eps_key)) if eps_key else 1e-5
        ),
        "attention.causal": False,
        "classifier.pooling_type": {"mean": 1, "cls": 2}[pooling],
        "attention.sliding_window": encoder.whole("local_attention", 128),
        "attention.sliding_window_pattern": _period(encoder, n_layers),
        "rope.scaling.type": "none",
        "vocab_size": encoder.whole("vocab_size", least=1),
        "hidden_activation": activation,
        "decision.type": "laya",
        "decision.block_count": n_head_blocks,
        "decision.max_head_tokens": agent.whole("head_max_len", max_head_tokens, least=1),
        "decision.max_tokens": agent.whole("max_len", max_tokens, least=1),
    }
    metadata: dict[str, Any] = {"general.architecture": ARCHITECTURE, "general.name": name}
    metadata |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    for entry, value in _temperatures(agent):
        metadata[TEMPERATURE_KEY + entry] = value
    return metadata


def _rope_bases(encoder: _JsonFile) -> tuple[float, float]:
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


def _period(encoder: _JsonFile, n_layers: int) -> int:
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
    for candidate in (period, *range(1, n_layers + 1)):
        if is_global == [i % candidate == 0 for i in range(n_layers)]:
            return candidate
    encoder.fail("layer_types", "full attention does not recur with a period from layer 0 on")


def _temperatures(agent: _JsonFile) -> Iterator[tuple[str, float]]:
    """Temperatures by GGUF name, raw where they are usable and as the Laya runtime reads them where not."""
    base = agent.get("temperature") if "temperature" in agent.content else [1.0, 1.0, 1.0]
    if not isinstance(base, list) or len(base) != 3:
        agent.fail("temperature", f"expected a list of 3 numbers, found {base!r}")
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
    applied = number = 1.0
    try:
        number = applied = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not np.isfinite(number):
        applied = 1.0
    # a file stores float32, and no reader takes a temperature of zero; the clamp gives the same answer
    elif not 1e-30 < number < 1e30:
        applied = min(_MOST_TEMPERATURE, max(_LEAST_TEMPERATURE, number))
    if applied != number:
        _warn(f"{entry}={value!r} is not a usable temperature; {applied:g} is used instead")
    return applied


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _warn_of_llama_cpp(config: ModelConfig) -> None:
    if config.n_head_blocks == 0:
        _warn("llama.cpp does not read a decision model without head blocks (skyinfer does)")
    elif config.n_heads != config.n_head_heads:
        _warn(
            f"llama.cpp will compute other answers: it gives the decision head the encoder's "
            f"{config.n_heads} attention heads where the Laya runtime has {config.n_head_heads}"
        )


# --------------------------------------------------------------------------------------------- tokenizer


def _tokenizer_metadata(
    directory: Path, vocab_size: int, pre: str | None, *, julia: bool
) -> dict[str, Any]:
    """Keys of the vocabulary, the special tokens and the template."""
    from .template import julia_template, laya_template

    tokenizer = _JsonFile.read(directory / "tokenizer.json")
    settings = _JsonFile.read(directory / "tokenizer_config.json")
    if settings.get("truncation_side") == "left":
        settings.fail("truncation_side", "'left' is not supported: options keep their first tokens")
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE" if "merges" in model else None) != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        tokenizer.fail("model.type", f"{kind!r} is not supported (BPE is)")
    added = _added_tokens(tokenizer)
    ids = _vocabulary(tokenizer, model, added, vocab_size)

    def role(name: str) -> tuple[str, int] | None:
        token = settings.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            return None
        if not isinstance(text, str) or text not in ids:
            settings.fail(f"{name}_token", f"{text!r} is not in the vocabulary")
        return text, ids[text]

    def required(name: str) -> tuple[str, int]:
        found = role(name)
        if found is None:
            settings.fail(f"{name}_token", "is missing")
        return found

    (cls_text, cls_id), (sep_text, sep_id) = required("cls"), required("sep")
    mask_text, mask_id = required("mask")
    pre = pre or _pre_of(tokenizer, model, mask_lstrip=added.get(mask_id, {}).get("lstrip") is True)
    tokens, token_types = _tokens(ids, added, vocab_size, runs_of_spaces=pre == "mmbert")
    eos, unknown, padding = role("eos"), role("unk"), role("pad")

    keys: dict[str, Any] = {
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": True,
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": token_types,
        "merges": _merges(tokenizer, model),
        "bos_token_id": cls_id,
        "eos_token_id": eos[1] if eos else sep_id,
        "unknown_token_id": unknown[1] if unknown else None,
        "seperator_token_id": sep_id,
        "padding_token_id": padding[1] if padding else None,
        "mask_token_id": mask_id,
        "token_type_count": len(QUESTION_TYPES),
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    template = julia_template if julia else laya_template
    metadata["tokenizer.chat_template.systemone"] = template(cls_text, sep_text, mask_text)
    metadata["tokenizer.chat_templates"] = ["systemone"]
    metadata["tokenizer.huggingface.json"] = tokenizer.path.read_text(encoding="utf-8")
    normalizer = tokenizer.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
        metadata["skycmd.tokenizer.normalizer"] = normalizer["type"]
    for side in ("lstrip", "rstrip"):
        stripping = [token_id for token_id, token in sorted(added.items()) if token.get(side) is True]
        if stripping:
            metadata[f"skycmd.tokenizer.{side}"] = stripping
    return metadata


def _added_tokens(tokenizer: _JsonFile) -> dict[int, dict[str, Any]]:
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list):
        tokenizer.fail("added_tokens", "expected a list")
    for token in added:
        if not (
            isinstance(token, dict)
            and isinstance(token.get("content"), str)
            and type(token.get("id")) is int
        ):
            tokenizer.fail("added_tokens", f"{token!r:.80} has no id and content")
    return {token["id"]: token for token in added}


def _vocabulary(
    tokenizer: _JsonFile, model: dict[str, Any], added: Mapping[int, dict[str, Any]], vocab_size: int
) -> dict[str, int]:
    """Text -> id of every token, each id inside the embedding."""
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not all(type(one) is int for one in ids.values()):
        tokenizer.fail("model.vocab", "expected an object of token ids")
    ids = ids | {token["content"]: token_id for token_id, token in added.items()}
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
    types = [_UNUSED_TOKEN] * vocab_size
    for text, token_id in ids.items():
        tokens[token_id], types[token_id] = text, _NORMAL
    for token_id, token in added.items():
        text = token["content"]
        if token.get("special") is True or _looks_special(text):
            types[token_id] = _CONTROL
        else:
            types[token_id], text = _USER_DEFINED, text.replace(_METASPACE, " ")
            # the reference never matches the added runs of spaces, so they must not be cut out of text
            if runs_of_spaces and text and not text.strip(" "):
                types[token_id], text = _NORMAL, _METASPACE * len(text)
        tokens[token_id] = text
    return tokens, types


def _looks_special(text: str) -> bool:
    """Control tokens that some tokenizers forget to mark; the list is llama.cpp's."""
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(start) and text.endswith(end)
        for start, end in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    )


def _merges(tokenizer: _JsonFile, model: dict[str, Any]) -> list[str]:
    """Merges as "left right"; a space inside a part is written as its byte-level letter, as llama.cpp does."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        tokenizer.fail("model.merges", "expected a list")
    out = []
    for index, merge in enumerate(merges):
        if isinstance(merge, str) and " " in merge:
            out.append(merge)
        elif isinstance(merge, list) and [type(part) for part in merge] == [str, str]:
            left, right = merge
            out.append(f"{left.replace(' ', chr(0x120))} {right.replace(' ', chr(0x120))}")
        else:
            tokenizer.fail("model.merges", f"entry {index} is not a pair: {merge!r:.80}")
    return out


def _pre_of(tokenizer: _JsonFile, model: dict[str, Any], *, mask_lstrip: bool) -> str:
    """llama.cpp's name for how text is split before merging, told from the tokenizer's structure."""

    def flat(part: Any, inner: str) -> list[dict[str, Any]]:
        if not isinstance(part, dict):
            return []
        if part.get("type") != "Sequence":
            return [part]
        inside = part.get(inner)
        return [one for one in inside if isinstance(one, dict)] if isinstance(inside, list) else []

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


class _Stored(NamedTuple):
    """A tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    data: np.ndarray  # uint8, the tensor's own bytes


def _checkpoint_name(name: str, n_layers: int) -> str:
    """The checkpoint's name of a GGUF tensor; see the table in docs/formats.md."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    _, index, part = stem.split(".")
    if int(index) < n_layers:
        return f"encoder.layers.{index}.{_ENCODER_BLOCK[part]}.{kind}"
    return f"head.layers.{int(index) - n_layers}.{_HEAD_BLOCK[part]}{kind}"


def _match_tensors(
    directory: Path, config: ModelConfig
) -> dict[str, tuple[TensorInfo, np.ndarray]]:
    """Every tensor of the model under its GGUF name; nothing missing, nothing left over."""
    stored = _stored_tensors(directory)
    out = {}
    for name, shape in config.expected_tensors().items():
        source = _checkpoint_name(name, config.n_layers)
        found = stored.pop(source, None)
        if found is None:
            raise FormatError(f"{directory}: tensor {source} is missing (expected {list(shape)})")
        if found.shape != shape:
            raise FormatError(
                f"{directory}: tensor {source}: expected {list(shape)}, found {list(found.shape)}"
            )
        if found.dtype not in _GGML_TYPE:
            raise FormatError(
                f"{directory}: tensor {source}: type {found.dtype} is not supported "
                f"({', '.join(_GGML_TYPE)} are)"
            )
        info = TensorInfo(name, shape, _GGML_TYPE[found.dtype], found.offset, found.data.nbytes)
        out[name] = info, found.data
    for source in stored:
        if not source.startswith(_UNUSED):
            raise FormatError(f"{directory}: tensor {source!r} is unknown to a Laya model")
    return out


def _stored_tensors(directory: Path) -> dict[str, _Stored]:
    """Tensors of model.safetensors, or of the shards its index lists."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file() or not index.is_file():
        return dict(_map_safetensors(single))
    listing = _JsonFile.read(index)
    places = listing.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        listing.fail("weight_map", "expected an object of file names")
    out: dict[str, _Stored] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file:
            listing.fail("weight_map", f"{file!r} lies outside the checkpoint")
        for name, stored in _map_safetensors(directory / file):
            if name in out:
                listing.fail("weight_map", f"tensor {name} is in two shards")
            out[name] = stored
    for name, file in places.items():
        if name not in out:
            listing.fail("weight_map", f"tensor {name} is not in {file}")
    return out


def _map_safetensors(path: Path) -> Iterator[tuple[str, _Stored]]:
    """Map one file. safetensors checks the header; its numpy side knows no BF16, so bytes are ours."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FormatError(f"{path}: is missing (not a Laya checkpoint?)")
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        raise FormatError(f"{path}: this is a Git LFS pointer; fetch it with `git lfs pull`")
    try:
        with safe_open(path, "numpy") as file:
            # safetensors refuses gaps, so sizes in file order give the places
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            stated = {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}
    except SafetensorError as error:
        raise FormatError(f"{path}: not a safetensors file: {error}") from None
    data = np.memmap(path, np.uint8, mode="r")
    offset = 8 + int.from_bytes(head[:8], "little")
    for name, (dtype, shape) in stated.items():
        if dtype not in _ITEM_BYTES:
            raise FormatError(f"{path}: tensor {name}: type {dtype} is not supported")
        size = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[dtype]
        yield name, _Stored(dtype, tuple(shape), offset, data[offset : offset + size].view(np.ndarray))
        offset += size
    if offset != data.nbytes:
        raise FormatError(f"{path}: {data.nbytes - offset} bytes belong to no tensor")


# ----------------------------------------------------------------------------------------------- writing


def _write(
    checkpoint: Checkpoint,
    path: Path,
    outtype: str,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    try:
        add: dict[type, Callable[[str, Any], None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        writer.add_file_type(OUTTYPES[outtype])
        for key, value in checkpoint.metadata.items():
            if key != "general.architecture":  # the writer's own
                add[type(value)](key, value)
        kinds = {name: _matrix_type(info, outtype) for name, info in checkpoint.tensors.items()}
        total = 0
        for name, info in checkpoint.tensors.items():
            # quantized rows are counted in bytes, and so are BF16 ones
            shape = gguf.quants.quant_shape_to_byte_shape(info.shape, kinds[name])
            n_bytes = int(np.prod(shape, dtype=np.int64))
            writer.add_tensor_info(name, shape, np.dtype(np.uint8), n_bytes, kinds[name])
            total += n_bytes
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for name in checkpoint.tensors:
            encoded = _encode(checkpoint, name, kinds[name])
            writer.write_tensor_data(encoded)
            done += encoded.nbytes
            if progress is not None:
                progress(name, done, total)
    finally:
        writer.close()


def _matrix_type(info: TensorInfo, outtype: str) -> Any:
    from gguf import GGMLQuantizationType

    # llama.cpp adds a row of the type embedding to float32 activations, and wants it so
    if len(info.shape) == 1 or info.name == "token_types.weight":
        return GGMLQuantizationType.F32
    if outtype == "q8_0" and info.shape[-1] % 32:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType[outtype.upper()]


# first magnitude that rounds to infinity; Q8_0 stores max / 127 of a block as F16
_OVERFLOW = {
    "F16": 65520.0,
    "BF16": float(np.array(0x7F7F8000, np.uint32).view(np.float32)),
    "Q8_0": 65520.0 * 127,
}


def _encode(checkpoint: Checkpoint, name: str, kind: Any) -> np.ndarray:
    """A tensor's bytes in its type."""
    import gguf

    values = checkpoint.tensor(name)
    limit = _OVERFLOW.get(kind.name)
    if limit is not None and max(values.max(), -values.min()) >= limit:
        raise FormatError(
            f"{checkpoint.path}: tensor {name}: a weight is too large for {kind.name.lower()}; "
            f"convert to {'f32' if kind.name == 'BF16' else 'bf16 or f32'}"
        )
    encoded: np.ndarray = gguf.quants.quantize(np.ascontiguousarray(values), kind)
    return encoded
