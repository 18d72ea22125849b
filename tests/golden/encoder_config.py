"""Records the entries of encoder/config.json that transformers has known, and what the Laya runtime makes of each.

    python tests/golden/encoder_config.py keys RELEASES    (RELEASES/5.24.0/transformers/..., wheels of transformers
                                                            unpacked: pip download --no-deps transformers==5.24.0)
    python tests/golden/encoder_config.py cases            (needs laya and torch, as regenerate.py)

Both write to encoder_config.json, which tests/test_checkpoint_encoder.py reads. An entry is whatever a release takes
from the file: a field of its configuration class, an argument or a property, a name that it looks for among the other
arguments, and what the model's code asks the configuration for.
"""

from __future__ import annotations

import ast
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]
from checkpoints import paint  # noqa: E402

RECORD = HERE / "encoder_config.json"
MODULES = ("models/modernbert/configuration_modernbert.py", "configuration_utils.py", "modeling_rope_utils.py")
MODEL = "models/modernbert/modeling_modernbert.py"
CLASSES = ("ModernBertConfig", "PretrainedConfig", "PreTrainedConfig", "RotaryEmbeddingConfigMixin")

# windows that bite in a sequence of some sixty tokens
PAINTED: dict[str, Any] = {
    "d_model": 64, "n_layers": 4, "n_heads": 2, "d_ff": 64, "head_layers": 1, "vocab": 400, "max_len": 256,
    "head_max_len": 96, "local_attention": 8, "temperature_by_options": {},
}  # fmt: skip
STATE = "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32 and the drone keeps flying through the next gap " * 2
QUESTIONS: dict[str, Any] = {
    "a": {"type": "choice", "instructions": "Which input?", "criteria": {"thrust": "fire", "glide": "go", "stay": None}}
}

_FULL, _LOCAL = "full_attention", "sliding_attention"
_ALL_FULL = {"layer_types": [_FULL] * 4}


def _rope(**full: Any) -> dict[str, Any]:
    return {"rope_parameters": {_FULL: full}}


def _each(key: str, *values: Any) -> list[dict[str, Any]]:
    return [{key: value} for value in values]


# changes to the painted file
CASES: list[dict[str, Any]] = [
    {},
    *_each("sliding_window", 0, 1, 2, 4, 60, -1, None, 1.5, True, "4"),
    *_each("local_attention", 0, 1, 2, 9, 64, -1, True, 8.0, "8", None),
    {"local_attention": 2, "sliding_window": 3},
    *_each("layer_types", None, [], "x", [_FULL], [_FULL] * 4, [_LOCAL] * 4, [_FULL, _LOCAL, _LOCAL, _FULL],
           [_FULL, _FULL, _LOCAL, _LOCAL], [_LOCAL, _FULL, _LOCAL, _FULL], ["attention", _LOCAL, _FULL, _LOCAL],
           ["chunked_attention", *[_FULL] * 3], ["linear_attention", *[_FULL] * 3], [_FULL, 1, _FULL, _FULL]),
    *_each("global_attn_every_n_layers", 1, 2, 4, 99, -2, 2.0, 1.5, True, False, 0, None, "x"),
    {"global_attn_every_n_layers": 0, **_ALL_FULL},
    *_each("rope_scaling", None, {}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 1.0},
           {"type": "linear", "factor": 4.0}, {"rope_theta": 5000.0}, {"rope_type": "default"}, {"factor": 4.0},
           {"rope_type": "nonsense"}, {"rope_type": None}, {"rope_type": "linear"}, {_FULL: {"rope_theta": 5000.0}},
           {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0},
           {"rope_type": "proportional", "partial_rotary_factor": 0.5},
           {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}, "linear", 0, False),
    *_each("rope_parameters", None, {}, [], {"rope_theta": 5000.0, "rope_type": "default"}, {_FULL: None}, {_FULL: 5},
           {_FULL: {}}, {_FULL: {}, "other": {}}, {_LOCAL: {"rope_theta": 500.0}}),
    _rope(rope_theta=5000.0), _rope(rope_theta=5000), _rope(rope_theta=None), _rope(rope_theta="x"),
    _rope(rope_theta=5000.0, rope_type="default"), _rope(rope_theta=5000.0, rope_type="linear", factor=2.0),
    _rope(rope_theta=5000.0, type="linear", factor=2.0), _rope(rope_theta=5000.0, partial_rotary_factor=0.5),
    _rope(rope_theta=5000.0, rope_type=None),
    _rope(rope_theta=5000.0) | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    _rope(rope_theta=5000.0) | {"rope_scaling": None},
    {"rope_parameters": {_FULL: {"rope_theta": 5000.0}, _LOCAL: {"rope_theta": 500.0}},
     "rope_scaling": {"rope_theta": 50.0}},
    {"rope_parameters": {_FULL: {}, _LOCAL: {}}, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {_LOCAL: {"rope_type": "nonsense"}}, **_ALL_FULL},
    {"rope_parameters": {_LOCAL: {"rope_theta": None}}, **_ALL_FULL},
    _rope(rope_type="linear", factor=2.0) | {"layer_types": [_LOCAL] * 4},
    *_each("global_rope_theta", 5000.0, 5000, 1e30, 0.0, -5.0, None, "5000"),
    *_each("local_rope_theta", 500.0, 500, 0.0, None, "500"),
    {"global_rope_theta": None} | _rope(rope_theta=5000.0), {"global_rope_theta": "x"} | _rope(rope_theta=5000.0),
    *_each("rope_theta", 5.0, None), *_each("partial_rotary_factor", 0.5, None),
    *_each("original_max_position_embeddings", 5, None), *_each("default_theta", {"global": 5.0, "local": 5.0}),
    *_each("is_causal", True, False, None, 0, 1, "x"),
    *_each("is_decoder", True), *_each("use_cache", True), *_each("add_cross_attention", True),
    *_each("head_dim", None, 0, 32, 16, 64, "x"),
    *_each("per_layer_config", None, {}, {"0": {"local_attention": 2}}, {"1": {"norm_eps": 0.1}}),
    *_each("attention_bias", False, True, None), *_each("mlp_bias", False, True), *_each("norm_bias", False, True),
    *_each("decoder_bias", True, False, None), *_each("classifier_bias", True, None),
    *_each("hidden_activation", "gelu", "gelu_python", "silu", "swish", "gelu_new", "gelu_pytorch_tanh", "gelu_fast",
           "quick_gelu", "relu", "relu2", "mish", "tanh", "linear", "GELU", "nonsense", "", None),
    *_each("hidden_act", "relu"),
    *_each("norm_eps", 1e-3, 0.1, 1e-7, 0.0, -1e-7, 5.0, 1, None, "1e-5"), *_each("layer_norm_eps", 0.1),
    {"norm_eps": ..., "layer_norm_eps": 0.1}, {"norm_eps": ..., "layer_norm_eps": 1e-5}, {"norm_eps": ...},
    *_each("rms_norm_eps", 0.1), *_each("layer_norm_epsilon", 0.1),
    *_each("dtype", "float32", "float", "bfloat16", "float16", "float64", "nonsense", "", 5, None),
    *_each("torch_dtype", "float32", "bfloat16", "half", "torch.float32", 5, None),
    {"dtype": "float32", "torch_dtype": "bfloat16"}, {"dtype": None, "torch_dtype": "bfloat16"},
    *_each("hidden_size", ..., 32, 64.0, True, None), *_each("num_hidden_layers", ..., 3, 5, 4.0, None),
    *_each("num_attention_heads", ..., 1, 4, 64, 5, 0, 2.0, None),
    *_each("intermediate_size", ..., 32, 64.0, None), *_each("vocab_size", ..., 399, 401, "400", None),
    *_each("max_position_embeddings", ..., 10, 0, -1, True, "x", None), *_each("max_seq_len", 5),
    *_each("model_type", ..., "bert", "modernbert-decoder", None),
    *_each("pad_token_id", ..., None, 0, -1, 399, 400, -400, -401, True, "x"),
    *_each("bos_token_id", ..., None, 99999, "x"), *_each("cls_token_id", ..., None, -5, True),
    *_each("sep_token_id", ..., None, 1.0), *_each("eos_token_id", ..., None, [1, 2], ["x"], True),
    *_each("attention_dropout", 0.5, 1, -0.5, 1.5, None, "x", True), *_each("embedding_dropout", 0.5, 2.0, -0.5, None),
    *_each("mlp_dropout", 0.5, 1.5, -0.5, None), *_each("classifier_dropout", 0.5, 5.0, None),
    *_each("initializer_range", 0.5, 1, None), *_each("initializer_cutoff_factor", 1.5, None),
    *_each("classifier_pooling", "mean", "cls", "max", None), *_each("classifier_activation", "nonsense", None),
    *_each("deterministic_flash_attn", True, None), *_each("sparse_prediction", True, None),
    *_each("sparse_pred_ignore_index", 5, None), *_each("tie_word_embeddings", False, None),
    *_each("reference_compile", True, False, None), *_each("repad_logits_with_grad", True),
    *_each("position_embedding_type", "relative"), *_each("tie_encoder_decoder", True),
    *_each("attn_implementation", "eager", "flash_attention_2", 5), *_each("_attn_implementation", "eager"),
    *_each("_attn_implementation_internal", "eager"), *_each("_attn_implementation_autoset", True),
    *_each("experts_implementation", None, "eager", "x"), *_each("_experts_implementation", "eager", "x"),
    *_each("_experts_implementation_internal", "x"), *_each("output_attentions", True, None),
    *_each("_output_attentions", True), *_each("output_hidden_states", True), *_each("return_dict", False, True, None),
    *_each("use_return_dict", False), *_each("sub_configs", {}), *_each("is_heterogeneous", False),
    *_each("per_layer_attributes", []), *_each("attribute_map", {}, {"hidden_size": "x"}),
    *_each("configuration_files", [], ["config.json"], ["config.4.0.0.json"], "x"),
    *_each("num_labels", 5, 0, None, "x"), *_each("id2label", None, {"0": "a"}, {"a": "b"}, 5), *_each("label2id", 5),
    *_each("problem_type", "regression", "x"), {"num_labels": 1, "problem_type": "single_label_classification"},
    *_each("architectures", ["ModernBertForMaskedLM"], 5), *_each("auto_map", {"AutoConfig": "x.Y"}),
    *_each("chunk_size_feed_forward", 1), *_each("pruned_heads", {"0": [0]}), *_each("torchscript", True),
    *_each("use_bfloat16", True), *_each("tf_legacy_loss", True), *_each("finetuning_task", "x"),
    *_each("task_specific_params", {"x": 1}), *_each("tokenizer_class", "X"), *_each("prefix", "x"),
    *_each("decoder_start_token_id", 5), *_each("cross_attention_hidden_size", 5), *_each("is_encoder_decoder", True),
    *_each("quantization_config", {"quant_method": "x"}), *_each("transformers_version", "4.48.0", 5),
    *_each("transformers_weights", "x"), *_each("name_or_path", "x", 5), *_each("_name_or_path", "x"),
    *_each("_commit_hash", "x"), *_each("gradient_checkpointing", True), *_each("tie_last_hidden_states", True),
    *_each("vision_feature_select_strategy", "default", "x"), *_each("base_model_tp_plan", None, {}),
    *_each("attention_chunk_size", 4), *_each("num_key_value_heads", 1), *_each("no_such_entry", 1),
    *_each("max_length", 5), *_each("temperature", 2.0), *_each("distributed_config", {"a": 1}),
    *_each("return_unused_kwargs", True), *_each("has_no_defaults_at_init", True), *_each("_from_auto", True),
    *_each("_from_pipeline", "x"), *_each("xla_device", True), *_each("base_config_key", "x"),
    *_each("base_model_ep_plan", None, {"x": "y"}), *_each("base_model_pp_plan", None, 1),
    *_each("base_model_fsdp_plan", None, 1), *_each("ignore_keys_at_rope_validation", [], 1),
    *_each("is_composition", True), *_each("trust_remote_code", True), *_each("_auto_class", "x"),
]  # fmt: skip


def changed(directory: Path, changes: dict[str, Any]) -> Path:
    """The painted checkpoint with its encoder's configuration changed; `...` takes an entry out."""
    if not directory.exists():
        paint(directory, **PAINTED)
        shutil.copyfile(directory / "encoder" / "config.json", directory / "encoder" / "painted.json")
    content = json.loads((directory / "encoder" / "painted.json").read_text(encoding="utf-8")) | changes
    content = {key: value for key, value in content.items() if value is not ...}
    (directory / "encoder" / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


# -------------------------------------------------------------------------------------------------------- entries


def entries_of(release: Path) -> set[str]:
    """The entries of one release, from the text of its code."""
    found: set[str] = set()
    for module in MODULES:
        tree = ast.parse((release / module).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                found.update(_entries_of_class(node))
    model = ast.parse((release / MODEL).read_text(encoding="utf-8"))
    found.update(_asked_for(model))
    return {name for name in found if not name.startswith("__")}


def _entries_of_class(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if "ClassVar" not in ast.unparse(part.annotation):
                yield part.target.id
        elif isinstance(part, ast.FunctionDef):
            if part.name == "__init__":
                yield from (argument.arg for argument in part.args.args if argument.arg != "self")
            if any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in part.decorator_list):
                yield part.name
            if part.name in ("__init__", "__post_init__", "convert_rope_params_to_dict", "from_dict"):
                yield from _looked_up(part)


def _looked_up(function: ast.FunctionDef) -> Iterator[str]:
    """Names that a function looks for among the arguments that it has no names for."""
    for node in ast.walk(function):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
        if is_call and node.func.attr in ("get", "pop") and ast.unparse(node.func.value) in ("kwargs", "config_dict"):
            yield from _text(node.args[0])
        if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in ("kwargs", "config_dict"):
            yield from _text(node.left)


def _asked_for(tree: ast.Module) -> Iterator[str]:
    """What code asks a configuration for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "self.config"):
            yield node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and "config" in ast.unparse(node.args[0]):
            yield from _text(node.args[1])


def _text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def record_keys(releases: Path) -> None:
    """By entry, the first and the last of the releases that know it."""
    versions = sorted((path.name for path in releases.iterdir() if (path / "transformers").is_dir()), key=_number)
    known: dict[str, list[str]] = {}
    for version in versions:
        for name in sorted(entries_of(releases / version / "transformers")):
            known[name] = [known.get(name, [version])[0], version]
    _update({"releases": versions, "keys": dict(sorted(known.items()))})


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# ---------------------------------------------------------------------------------------------------------- cases


def record_cases() -> None:
    """For each case the runtime's raw scores, or the kind of its refusal."""
    import importlib.metadata
    import logging
    import warnings

    import torch
    from laya.agent import Agent

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def answer(directory: Path) -> list[float] | str:
        found: list[Any] = []
        try:
            agent = Agent(str(directory), device="cpu")
            forward = agent._forward

            def forward_and_keep(batch: Any) -> Any:
                logits, act = forward(batch)
                found.append(logits[0])
                return logits, act

            agent._forward = forward_and_keep
            agent.predict(STATE, QUESTIONS)
        except Exception as error:  # every refusal is data here
            return type(error).__name__
        scores = [float(str(value)) for value in found[0]]
        return scores if all(map(math.isfinite, scores)) else "NaN"

    packages = ("laya", "torch", "transformers", "tokenizers")
    with tempfile.TemporaryDirectory() as scratch:
        cases = [[_written(changes), answer(changed(Path(scratch) / "c", changes))] for changes in CASES]
    _update({"versions": {name: importlib.metadata.version(name) for name in packages}, "cases": cases})


def _written(changes: dict[str, Any]) -> dict[str, Any]:
    """JSON has no `...`; the list of entries that are taken out says so."""
    removed = [key for key, value in changes.items() if value is ...]
    kept = {key: value for key, value in changes.items() if value is not ...}
    return kept | {"(removed)": removed} if removed else kept


def read_cases() -> Iterator[tuple[dict[str, Any], list[float] | str]]:
    """The recorded cases: changes as in `CASES`, and scores or the kind of refusal."""
    for changes, result in json.loads(RECORD.read_text(encoding="utf-8"))["cases"]:
        removed = changes.pop("(removed)", [])
        yield changes | dict.fromkeys(removed, ...), result


def _update(parts: dict[str, Any]) -> None:
    content = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    lines = []
    for key, value in (content | parts).items():
        rows = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in value.items()] if key == "keys" else None
        if key == "cases":
            lines.append('"cases": [\n' + ",\n".join(map(json.dumps, value)) + "\n]")
        elif rows is not None:
            lines.append('"keys": {\n' + ",\n".join(rows) + "\n}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    RECORD.write_bytes(("{\n" + ",\n".join(lines) + "\n}\n").encode())


if __name__ == "__main__":
    if sys.argv[1] == "keys":
        record_keys(Path(sys.argv[2]))
    else:
        record_cases()
