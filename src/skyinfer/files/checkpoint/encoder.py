"""encoder/config.json: the sizes and constants that transformers' ModernBertConfig takes from it.

The Laya runtime builds the encoder with transformers, so every entry counts that a release from 4.48 on accepts, in
each spelling, and is honoured as the newest release honours it (5.24). What asks for a computation that the core does
not have, or stops the runtime, is a FormatError that names the entry; all others have no effect there and are ignored
here. tests/golden/encoder_config.json lists the entries of each release and records what the runtime made of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any, NamedTuple

from ...errors import warn
from ..activations import BY_TRANSFORMERS
from ..config import DEFAULT_PERIOD, DEFAULT_ROPE_BASE_GLOBAL, DEFAULT_ROPE_BASE_LOCAL
from ..json_file import JsonFile
from ..limits import LEAST_F32, MAX_BLOCKS, MOST_F32


class EncoderSizes(NamedTuple):
    """What the computation depends on.

    Attributes:
        n_layers, d_model, d_ff, n_heads, vocab_size: sizes.
        norm_eps: of every norm.
        activation: a name in `activations.ACTIVATIONS`.
        pooling: "cls" or "mean", which only llama.cpp reads.
        context_tokens: `max_position_embeddings`.
        window: a local layer sees half of it, rounded down, to each side.
        layer_is_global: for each layer, whether it sees every token.
        rope_base_global, rope_base_local: rotary bases.
    """

    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    vocab_size: int
    norm_eps: float
    activation: str
    pooling: str
    context_tokens: int
    window: int
    layer_is_global: tuple[bool, ...]
    rope_base_global: float
    rope_base_local: float


def read_encoder(file: JsonFile) -> EncoderSizes:
    """Read and check encoder/config.json.

    Raises:
        FormatError: an entry is of the wrong type, stops the Laya runtime, or asks for what the core does not compute;
            names file and entry.
    """
    _check_types(file)
    model_type = file.get("model_type")
    if model_type != "modernbert":
        file.fail("model_type", f"expected 'modernbert', found {short_repr(model_type)}")
    for key, check in _CHECKS.items():
        if key in file.content:
            check(file, key, file.content[key])
    dtype_key = "dtype" if file.get("dtype") is not None else "torch_dtype"
    if file.get(dtype_key) is not None:
        _check_dtype(file, dtype_key, file.get(dtype_key))

    n_layers = file.whole("num_hidden_layers", 22, least=1)
    if n_layers > MAX_BLOCKS:
        file.fail("num_hidden_layers", f"{n_layers} is outside 1 to {MAX_BLOCKS}")
    d_model = file.whole("hidden_size", 768, least=1)
    n_heads = file.whole("num_attention_heads", 12, least=1)
    vocab_size = file.whole("vocab_size", 50368, least=1)
    # transformers checks a padding token that is not stated, too
    pad = file.content.get("pad_token_id", 50283)
    if pad is not None and not -vocab_size <= pad < vocab_size:
        file.fail("pad_token_id", f"{short_repr(pad)} is not in the vocabulary of {vocab_size} tokens")
    head_dim = file.get("head_dim")
    if head_dim and head_dim != d_model // n_heads:
        file.fail("head_dim", f"expected {d_model} / {n_heads}, found {short_repr(head_dim)}")
    layer_is_global = _layer_is_global(file, n_layers)
    rope_global, rope_local = _rope_bases(file, layer_is_global)
    return EncoderSizes(
        n_layers=n_layers,
        d_model=d_model,
        d_ff=file.whole("intermediate_size", 1152, least=1),
        n_heads=n_heads,
        vocab_size=vocab_size,
        norm_eps=_norm_eps(file),
        activation=_activation(file),
        pooling=file.content.get("classifier_pooling", "cls"),
        context_tokens=file.content.get("max_position_embeddings", 8192),
        window=_window(file),
        layer_is_global=layer_is_global,
        rope_base_global=rope_global,
        rope_base_local=rope_local,
    )


# ---------------------------------------------------------------------------------- types that transformers checks


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_real(value: Any) -> bool:
    return type(value) is float


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_token(value: Any) -> bool:
    return value is None or _is_whole(value)


def _are_tokens(value: Any) -> bool:
    return _is_token(value) or (isinstance(value, list) and all(map(_is_whole, value)))


def _is_probability(value: Any) -> bool:
    return _is_number(value) and not (value < 0 or value > 1)


def _is_pooling(value: Any) -> bool:
    return isinstance(value, str) and value in ("cls", "mean")


def _are_layer_types(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_text, value)))


def _are_rope_parameters(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(key in _KINDS and isinstance(one, dict) for key, one in value.items())
    )


_KINDS = ("full_attention", "sliding_attention")

# what the entry must be -> a test, and how a message says it
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "vocab_size": (_is_whole, "a whole number"),
    "hidden_size": (_is_whole, "a whole number"),
    "intermediate_size": (_is_whole, "a whole number"),
    "num_hidden_layers": (_is_whole, "a whole number"),
    "num_attention_heads": (_is_whole, "a whole number"),
    "hidden_activation": (_is_text, "a string"),
    "max_position_embeddings": (_is_whole, "a whole number"),
    "initializer_range": (_is_real, "a number with a decimal point"),
    "initializer_cutoff_factor": (_is_real, "a number with a decimal point"),
    "norm_eps": (_is_real, "a number with a decimal point"),
    "norm_bias": (_is_bool, "true or false"),
    "pad_token_id": (_is_token, "a token id or null"),
    "eos_token_id": (_are_tokens, "token ids or null"),
    "bos_token_id": (_is_token, "a token id or null"),
    "cls_token_id": (_is_token, "a token id or null"),
    "sep_token_id": (_is_token, "a token id or null"),
    "attention_bias": (_is_bool, "true or false"),
    "attention_dropout": (lambda value: _is_number(value) and not value > 1, "a number of at most 1"),
    "layer_types": (_are_layer_types, "a list of strings or null"),
    "rope_parameters": (_are_rope_parameters, f"null or an object with an object for {' and '.join(_KINDS)}"),
    "local_attention": (_is_whole, "a whole number"),
    "embedding_dropout": (_is_probability, "a number from 0 to 1"),
    "mlp_bias": (_is_bool, "true or false"),
    "mlp_dropout": (_is_probability, "a number from 0 to 1"),
    "decoder_bias": (_is_bool, "true or false"),
    "classifier_pooling": (_is_pooling, "cls or mean"),
    "classifier_dropout": (_is_number, "a number"),
    "classifier_bias": (_is_bool, "true or false"),
    "classifier_activation": (_is_text, "a string"),
    "deterministic_flash_attn": (_is_bool, "true or false"),
    "sparse_prediction": (_is_bool, "true or false"),
    "sparse_pred_ignore_index": (_is_whole, "a whole number"),
    "tie_word_embeddings": (_is_bool, "true or false"),
}


def _check_types(file: JsonFile) -> None:
    for key, (is_right, wanted) in _TYPES.items():
        if key in file.content and not is_right(file.content[key]):
            file.fail(key, f"expected {wanted}, found {short_repr(file.content[key])}")


# ------------------------------------------------------------------------------ entries that must not ask for more


def _refuse_true(file: JsonFile, key: str, value: Any) -> None:
    if value is not False:
        file.fail(key, f"{short_repr(value)} is not supported: the encoder of a Laya model has no such biases")


def _refuse_causal(file: JsonFile, key: str, value: Any) -> None:
    if value is not None and value is not False:
        file.fail(key, f"{short_repr(value)} is not supported: every token of a layer's window is seen, later ones too")


def _refuse_false(file: JsonFile, key: str, value: Any) -> None:
    if value is False:
        file.fail(key, "false is not supported by the Laya runtime")


def _refuse_any(file: JsonFile, key: str, value: Any) -> None:
    if value:
        file.fail(key, f"{short_repr(value)} is not supported")


def _refuse_strategy(file: JsonFile, key: str, value: Any) -> None:
    if value not in (None, "default", "full"):
        file.fail(key, f"{short_repr(value)} is not supported")


def _refuse_name(file: JsonFile, key: str, value: Any) -> None:
    if value not in (None, {}, "eager"):
        file.fail(key, f"{short_repr(value)} is not supported")


def _refuse_attribute(file: JsonFile, key: str, value: Any) -> None:
    file.fail(key, "is an attribute of transformers' configuration class, which an entry cannot replace")


def _check_labels(file: JsonFile, key: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        file.fail(key, f"expected an object, found {short_repr(value)}")
    for number in value:
        try:
            int(number)
        except ValueError:
            file.fail(key, f"{short_repr(number)} is not a number")


def _check_label_count(file: JsonFile, key: str, value: Any) -> None:
    if file.get("id2label") is not None:
        return
    if not isinstance(value, int):
        file.fail(key, f"expected a whole number, found {short_repr(value)}")
    if value == 1 and file.get("problem_type") == "single_label_classification":
        file.fail(key, "1 is no classification")


def _check_head_dim(file: JsonFile, key: str, value: Any) -> None:
    if value is not None and not isinstance(value, (int, float)):
        file.fail(key, f"expected a number, found {short_repr(value)}")


def _check_configuration_files(file: JsonFile, key: str, value: Any) -> None:
    names = value if isinstance(value, (list, str)) else ["config."]
    if any(isinstance(name, str) and name.startswith("config.") and name != "config.json" for name in names):
        file.fail(key, f"{short_repr(value)} is not supported: config.json alone is read")


def _check_plan(file: JsonFile, key: str, value: Any) -> None:
    if value is not None and not isinstance(value, (dict, list)):
        file.fail(key, f"expected an object, found {short_repr(value)}")


_CHECKS: dict[str, Callable[[JsonFile, str, Any], None]] = {
    "attention_bias": _refuse_true,
    "mlp_bias": _refuse_true,
    "norm_bias": _refuse_true,
    "is_causal": _refuse_causal,
    "return_dict": _refuse_false,
    "per_layer_config": _refuse_any,
    "vision_feature_select_strategy": _refuse_strategy,
    "experts_implementation": _refuse_name,
    "_experts_implementation": _refuse_name,
    "head_dim": _check_head_dim,
    "configuration_files": _check_configuration_files,
    "id2label": _check_labels,
    "num_labels": _check_label_count,
    "attribute_map": _refuse_any,
    "base_model_ep_plan": _check_plan,
    "base_model_fsdp_plan": _check_plan,
    "base_model_pp_plan": _check_plan,
    "base_model_tp_plan": _check_plan,
    "ignore_keys_at_rope_validation": _check_plan,
    **dict.fromkeys(
        (
            "is_heterogeneous", "per_layer_attributes", "sub_configs", "use_return_dict", "to_dict", "to_diff_dict",
            "to_json_string", "get_text_config", "default_config_fields", "dict_dtype_to_str",
            "nested_rope_parameter_keys", "_check_received_keys",
            "_encode_special_floats", "_getattr_without_heterogeneous_validation",
            "_iter_config_keys_with_heterogeneous_adjustment", "_remove_keys_not_serialized",
            "_update_heterogeneous_to_dict_output", "_validate_default_rope_parameters",
        ),
        _refuse_attribute,
    ),
}  # fmt: skip


def _check_dtype(file: JsonFile, key: str, value: Any) -> None:
    if value not in ("float32", "float"):
        file.fail(
            key,
            f"{short_repr(value)} is not supported: the Laya runtime computes the encoder in it, and skyinfer in "
            f"float32; with 'float32' here both do",
        )


# ------------------------------------------------------------------------------------------ entries that are read


def _norm_eps(file: JsonFile) -> float:
    eps, other = file.content.get("norm_eps"), file.get("layer_norm_eps")
    if eps is None:
        eps = 1e-5
        if other is not None and other != eps:
            warn(f"{file.path}: layer_norm_eps is not ModernBERT's spelling and is ignored; norm_eps is 1e-05")
    return float(eps)


def _activation(file: JsonFile) -> str:
    stated = file.content.get("hidden_activation", "gelu")
    if stated not in BY_TRANSFORMERS:
        file.fail("hidden_activation", f"{short_repr(stated)} is not supported ({', '.join(BY_TRANSFORMERS)} are)")
    return BY_TRANSFORMERS[stated].name


def _window(file: JsonFile) -> int:
    """Of `sliding_window`, which counts to one side and wins, or `local_attention`, which counts to both."""
    key, factor = ("sliding_window", 2) if "sliding_window" in file.content else ("local_attention", 1)
    stated = file.content.get(key, 128)
    if not _is_whole(stated) and not (key == "sliding_window" and _is_bool(stated)):
        file.fail(key, f"expected a whole number, found {short_repr(stated)}")
    if not 0 <= stated < 1 << 30:
        file.fail(key, f"{short_repr(stated)} is out of range")
    return factor * int(stated)


def _layer_is_global(file: JsonFile, n_layers: int) -> tuple[bool, ...]:
    """By `layer_types`, which wins, or by every how many layers one is global."""
    kinds = file.get("layer_types")
    if kinds is None:
        key = "global_attn_every_n_layers"
        every = file.content.get(key, DEFAULT_PERIOD)
        if not isinstance(every, (int, float)) or not every:
            file.fail(key, f"expected a number other than 0, found {short_repr(every)}")
        return tuple(not i % every for i in range(n_layers))
    # the last one is an older name of the first
    names = {"full_attention": True, "sliding_attention": False, "attention": True}
    for kind in kinds:
        if kind not in names:
            file.fail("layer_types", f"{short_repr(kind)} is not supported ({' and '.join(_KINDS)} are)")
    if len(kinds) != n_layers:
        file.fail("layer_types", f"{len(kinds)} entries for {n_layers} layers")
    return tuple(names[kind] for kind in kinds)


def _rope_bases(file: JsonFile, layer_is_global: tuple[bool, ...]) -> tuple[float, float]:
    """Bases of global and of local layers, from `rope_parameters` with `rope_scaling` laid over them, or the older
    entries. Those of a kind that no layer has are not checked."""
    stated, scaling = file.get("rope_parameters"), file.get("rope_scaling")
    parameters: dict[str, dict[str, Any]] = {kind: {"rope_type": "default"} for kind in _KINDS}
    if stated is not None:
        parameters = {kind: dict(one) for kind, one in stated.items()}
    if scaling is not None:
        if not isinstance(scaling, dict):
            file.fail("rope_scaling", f"expected an object, found {short_repr(scaling)}")
        for kind in _KINDS:
            if kind not in parameters:
                file.fail("rope_parameters", f"{kind} is missing, which rope_scaling is to be laid over")
            parameters[kind] |= scaling

    def base(kind: str, old_key: str, default: float) -> float:
        own = parameters.get(kind, {})
        if (kind == "full_attention") not in layer_is_global:
            return default
        rope_type = own.get("rope_type", own.get("type", "default"))
        factor = own.get("factor")
        if rope_type != "default" and not (rope_type == "linear" and _is_number(factor) and factor == 1):
            key = "rope_scaling" if scaling and {"rope_type", "type"} & set(scaling) else "rope_parameters"
            file.fail(key, f"{kind}: rope_type {short_repr(rope_type)} is not supported (default is)")
        key = f"rope_parameters.{kind}.rope_theta" if "rope_theta" in own else old_key
        value = file.number(key, own.get("rope_theta", file.content.get(old_key, default)))
        if not LEAST_F32 <= value <= MOST_F32:
            file.fail(key, f"{value} is not a finite number above zero")
        return value

    return (
        base("full_attention", "global_rope_theta", DEFAULT_ROPE_BASE_GLOBAL),
        base("sliding_attention", "local_rope_theta", DEFAULT_ROPE_BASE_LOCAL),
    )
