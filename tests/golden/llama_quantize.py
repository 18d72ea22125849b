"""Records how llama.cpp's llama-quantize lays out a file for each of its types, for tests/test_gguf_quantized.py.

    python tests/golden/llama_quantize.py LLAMA_QUANTIZE      (the program, built from llama.cpp b11434)

Recorded are the dimensions of every tensor, which the program writes without trailing ones, and the type of each: a
file holds several, since norms stay F32, some matrices get more bits, and rows that a type's blocks do not divide fall
back to another type. Types of very few bits need an importance matrix; here all inputs are equally important.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RECORD = HERE / "llama_quantize.json"

# blocks of 256 divide the rows of one model, and only those of the decision block's feed-forward part in the other
MODELS: dict[str, dict[str, Any]] = {
    name: {
        "d_model": d_model, "n_layers": 2, "n_heads": heads, "d_ff": d_ff, "head_layers": 1, "vocab": 400,
        "max_len": 128, "head_max_len": 64, "temperature_by_options": {},
    }
    for name, d_model, heads, d_ff in (("d256", 256, 4, 256), ("d64", 64, 1, 128))
}  # fmt: skip
TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M",
    "Q5_K_S", "Q5_K_M", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "IQ3_S",
    "IQ3_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE", "F16", "BF16", "F32", "COPY",
]  # fmt: skip
MIXED = ["--tensor-type", "ffn_up=mxfp4", "--tensor-type", "ffn_down=q5_1", "--tensor-type", "attn_qkv=iq4_nl"]


def layout(path: Path) -> dict[str, tuple[int, list[int]]]:
    """Type and dimensions of each tensor, as the header of a GGUF file of version 3 lists them."""
    import gguf

    tensors = gguf.GGUFReader(path).tensors
    # the reader's shape is the header's list
    return {tensor.name: (int(tensor.tensor_type), [int(n) for n in tensor.shape]) for tensor in tensors}


def _importance(source: Path, path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["none"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (_, dims) in layout(source).items():
        if len(dims) == 2:
            writer.add_tensor(f"{name}.in_sum2", np.ones((1, dims[0]), np.float32))
            writer.add_tensor(f"{name}.counts", np.ones((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    program = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(HERE.parent)]
    from checkpoints import paint

    from skyinfer.files.conversion import convert

    warnings.simplefilter("ignore")
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model, sizes in MODELS.items():
            source = Path(scratch) / f"{model}.gguf"
            convert(paint(Path(scratch) / model, **sizes), source, outtype="f32")
            importance = Path(scratch) / f"{model}.imatrix"
            _importance(source, importance)
            cases = {kind: [kind] for kind in TYPES} | ({"mixed": ["Q8_0"]} if model == "d256" else {})
            for case, (kind,) in cases.items():
                out = Path(scratch) / "out.gguf"
                options = ["--imatrix", str(importance), *(MIXED if case == "mixed" else [])]
                subprocess.run([program, *options, source, out, kind], check=True, capture_output=True)
                found = layout(out)
                by_type: dict[str, list[str]] = {}
                for name, (number, _) in found.items():
                    if number:
                        by_type.setdefault(str(number), []).append(name)
                record.setdefault(model, {"dims": {name: dims for name, (_, dims) in found.items()}, "types": {}})
                assert record[model]["dims"] == {name: dims for name, (_, dims) in found.items()}
                record[model]["types"][case] = by_type
    RECORD.write_text(json.dumps(record, separators=(",", ":")).replace('},"', '},\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
