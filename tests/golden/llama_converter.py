"""Records what llama.cpp's own converter makes of painted checkpoints, for tests/test_convert.py.

    python tests/golden/llama_converter.py LLAMA_CPP_SOURCE      (b11434; needs torch and transformers)

The converter knows a tokenizer by a hash of what it does to one text, and a painted one is unknown to it, so
the name of the pre-tokenizer is given. Long values are recorded as digests.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "llama_converter.json"
TENSOR_DIGEST_BYTES = 16

# name -> (size, what to paint it with, pre-tokenizer, outtype)
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "byte-f16": ("pico", {"eps_keys": ("norm_eps", "layer_norm_eps")}, "modern-bert", "f16"),
    "metaspace-bf16": (
        "golden",
        {
            "tokenizer": "metaspace",
            "eps_keys": ("layer_norm_eps",),
            "rope": "parameters",
            "rope_base": (160000.0, 160000.0),
            "spare_rows": 7,
            "dtype": "BF16",
        },
        "mmbert",
        "bf16",
    ),
    "byte-q8_0": (
        "golden",
        {"eps_keys": ("layer_norm_eps",), "activation": "silu", "local_attention": 64, "dtype": "F16"},
        "modern-bert",
        "q8_0",
    ),
}  # fmt: skip


def summary(file: Any) -> dict[str, Any]:
    """Keys and tensors of an open GGUFFile: short values as they are, the others as digests."""

    def short(value: Any) -> Any:
        text = json.dumps(value)
        return value if len(text) <= 80 else "sha256:" + _digest(text.encode())

    return {
        "metadata": {key: short(value) for key, value in sorted(file.metadata.items())},
        "tensors": {
            name: [info.type, list(info.shape), _digest(file.raw(name).tobytes())]
            for name, info in sorted(file.tensors.items())
        },
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[: 2 * TENSOR_DIGEST_BYTES]


def main() -> None:
    source = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(source), str(source / "gguf-py"), str(HERE.parent)]
    from checkpoints import SIZES, paint
    from conversion import base

    from skyinfer.files.gguf import GGUFFile

    record = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case, (size, paints, pre, outtype) in CASES.items():
            checkpoint = paint(Path(scratch) / case, **SIZES[size], **paints)
            out = Path(scratch) / f"{case}.gguf"
            base.TextModel.get_vocab_base_pre = lambda self, tokenizer, pre=pre: pre
            sys.argv = ["convert", str(checkpoint), "--outfile", str(out), "--outtype", outtype]
            runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")
            with GGUFFile.open(out) as file:
                record[case] = summary(file)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
