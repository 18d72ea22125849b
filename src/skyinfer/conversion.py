"""Writes a Laya checkpoint as one GGUF file, in the form that llama.cpp, wllama and Ollama read.

What goes into the file is checkpoint.py's say; here it gets its number types and its bytes, one tensor at
a time, so that memory never holds more than one. The gguf package writes the container and quantizes.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .checkpoint import Checkpoint
from .config import ARCHITECTURE, ModelConfig
from .errors import FormatError
from .gguf import TensorInfo

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

# matrix types a file can be written in -> general.file_type (LlamaFileType of the gguf package)
OUTTYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


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


def _warn_of_llama_cpp(config: ModelConfig) -> None:
    if config.n_head_blocks == 0:
        message = "llama.cpp does not read a decision model without head blocks (skyinfer does)"
    elif config.n_heads != config.n_head_heads:
        message = (
            f"llama.cpp will compute other answers: it gives the decision head the encoder's "
            f"{config.n_heads} attention heads where the Laya runtime has {config.n_head_heads}"
        )
    else:
        return
    warnings.warn(message, RuntimeWarning, stacklevel=3)


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


def _matrix_type(info: TensorInfo, outtype: str) -> GGMLQuantizationType:
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


def _encode(checkpoint: Checkpoint, name: str, kind: GGMLQuantizationType) -> np.ndarray:
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
