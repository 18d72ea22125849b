"""What regenerate.py writes by and test_golden.py reads by: painted checkpoints, Python literals.

The checkpoints themselves are not stored. A fingerprint of each stands in the golden files, so a
change in how they are painted is reported as such and not as a thousand wrong numbers.
"""

from __future__ import annotations

import ast
import atexit
import functools
import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checkpoints import SIZES, paint

_NAN, _INF = float("nan"), float("inf")

# "roomy" holds 255 options; "tight" has no room for most things; the metaspace one uses the newer
# spellings of everything. "odd" has temperatures no calibration should ship: the runtime replaces
# NaN, a bool and infinity, clamps what is out of its range, and reads a number written as text.
RECIPES: dict[str, dict[str, Any]] = {
    "byte": {},
    "metaspace": {
        "tokenizer": "metaspace", "special_tokens": "object", "rope": "parameters",
        "rope_base": (160000.0, 160000.0), "layers": "both", "seed": 1,
    },
    "byte_roomy": {"max_len": 2048, "head_max_len": 1280},
    "metaspace_roomy": {"tokenizer": "metaspace", "max_len": 2048, "head_max_len": 1280},
    "byte_tight": {"max_len": 40, "head_max_len": 64},
    "metaspace_tight": {"tokenizer": "metaspace", "max_len": 40, "head_max_len": 64},
    "silu": {"activation": "silu", "dtype": "BF16", "layers": "layer_types", "seed": 2},
    "odd": {
        "temperature": [_NAN, True, 0.1006],
        "temperature_by_options": {
            "choice:2": 0.1006, "choice:3-5": _NAN, "choice:6-10": True, "choice:11+": _INF,
            "score:3-5": 7.5, "score:6-10": "2.5",
        },
    },
}  # fmt: skip


# What few checkpoints have: other activations, options in parallel, WordPiece tokenizers. Recorded in variants.json.
_ACTIVATIONS = (
    "gelu_python", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate", "quick_gelu",
    "gelu_10", "relu", "relu2", "relu6", "leaky_relu", "tanh", "sigmoid", "linear", "hardswish", "mish",
)  # fmt: skip
# many, so each is small
_SMALL = {"d_model": 64, "n_layers": 2, "n_heads": 1, "d_ff": 96, "head_layers": 1, "vocab": 700}
_PARALLEL = _SMALL | {"n_layers": 4, "n_heads": 2, "agent_config": {"option_layout": "parallel"}}
# a short window, so that it bites at once: it is measured in positions, which options share
_NARROW = {"local_attention": 12, "global_every": 2, "seed": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"act_{name}": _SMALL | {"activation": name, "seed": 3} for name in _ACTIVATIONS},
    "wordpiece": {**_SMALL, "tokenizer": "wordpiece"},
    "wordpiece_cased": {**_SMALL, "tokenizer": "wordpiece_cased"},
    "bert": {**_SMALL, "tokenizer": "wordpiece", "tokenizer_settings": {"tokenizer_class": "BertTokenizer"}},
    "bert_cased": {
        **_SMALL, "tokenizer": "wordpiece_cased", "special_tokens": "object",
        "tokenizer_settings": {
            "tokenizer_class": "BertTokenizerFast", "do_lower_case": False, "tokenize_chinese_chars": False,
            "strip_accents": True,
        },
    },
    "parallel": _PARALLEL,
    "parallel_narrow": {**_PARALLEL, **_NARROW, "tokenizer": "metaspace"},
    "parallel_tight": {**_PARALLEL, **_NARROW, "max_len": 64, "head_max_len": 48},
}  # fmt: skip

# Of s2, with the tokenizers of "byte" and "metaspace". The second has a window that bites within an option.
S2: dict[str, dict[str, Any]] = {
    "s2_byte": {"architecture": "s2", "seed": 5},
    "s2_metaspace": {
        "architecture": "s2", "tokenizer": "metaspace", "activation": "silu", "dtype": "BF16", "seed": 6,
        "local_attention": 16, "rope": "parameters", "rope_base": (160000.0, 160000.0),
    },
}  # fmt: skip

_scratch = tempfile.TemporaryDirectory(prefix="skyinfer-golden-")
atexit.register(_scratch.cleanup)


@functools.cache
def painted(name: str) -> Path:
    """The golden checkpoint of that name, painted once per process."""
    return paint(Path(_scratch.name) / name, **(SIZES["golden"] | (RECIPES | VARIANTS | S2)[name]))


def fingerprint(name: str) -> dict[str, str]:
    """SHA-256 of the two painted files that golden numbers depend on."""
    files = ("model.safetensors", "tokenizer/tokenizer.json")
    return {f: hashlib.sha256((painted(name) / f).read_bytes()).hexdigest() for f in files}


@functools.cache
def recorded(file: str) -> dict[str, Any]:
    """A golden file. Fails at once if a checkpoint is no longer painted as it was for it."""
    golden = json.loads((Path(__file__).parent / file).read_text("utf-8"))
    for name, files in golden["fingerprints"].items():
        now = fingerprint(name)
        changed = [f for f in files if files[f] != now[f]]
        assert not changed, f"golden checkpoint {name!r} is painted differently now ({changed[0]}): regenerate"
    return golden


def write(name: str, content: dict[str, Any], packages: Iterable[str]) -> None:
    """One line per case, so that a change shows as the cases it changed; and the packages' versions."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    lines = [f'"versions": {json.dumps(versions)}']
    for key, value in content.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f'"{key}": [\n{rows}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    path = Path(__file__).parent / name
    path.write_bytes(("{\n" + ",\n".join(lines) + "\n}\n").encode())
    print(name, path.stat().st_size, "bytes")


def to_literal(value: Any) -> str:
    """A request as Python text. JSON could not tell 1 from 1.0 as a key, nor write True or NaN."""
    return repr(value)


def from_literal(text: str) -> Any:
    """What `to_literal` wrote. Evaluates literals only, `nan` and `inf` among them."""
    tree = ast.parse(text, mode="eval")

    class Numbers(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Constant:
            return ast.copy_location(ast.Constant({"nan": _NAN, "inf": _INF}[node.id]), node)

    return ast.literal_eval(ast.fix_missing_locations(Numbers().visit(tree)))


def sample_of(shape: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Rows and columns of the sample: both ends, the middle and what lies beside it."""
    n, d = shape
    return [0, 1, n // 2, n - 1], [0, 1, d // 2 - 1, d // 2, d - 1]
