"""Writes a checkpoint as one GGUF file: of a Laya model in the form that llama.cpp, wllama and Ollama read.

What goes into the file is checkpoint.py's say; here it gets its number types and its bytes, one tensor at
a time, so that memory never holds more than one. The gguf package writes the header and quantizes; how the file
comes to its place is described in whole_file.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import FormatError, warn
from ..text.ggml_tokenizer import HUGGINGFACE_JSON
from . import places
from .activations import BY_NAME
from .checkpoint import Checkpoint
from .config import ModelConfig
from .outtypes import OUTTYPES
from .tensors import TensorInfo
from .whole_file import WholeFile

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

_TOKENIZER_MODEL = "tokenizer.ggml.model"
_MERGES = "tokenizer.ggml.merges"
_ALIGNMENT = 32  # bytes; the format's default


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
    """Write a checkpoint directory as one GGUF file, that of a Laya model so that llama.cpp reads it too.

    Args:
        checkpoint_dir: see `Checkpoint.open`; or a string that names a repository of the hub, as for `skyinfer.load`,
            of which a checkpoint is taken, whatever GGUF files it has.
        out: the file; it appears whole or not at all. A symbolic link is followed.
        outtype: of the matrices: f32, f16, bf16 or q8_0. Norms and biases are always F32.
        pre: see `Checkpoint.open`.
        name: `general.name`; the directory's own by default.
        force: replace an existing regular file, unless it is one of the checkpoint's own; its permissions stay.
        progress: called after each tensor with its name, the bytes written and the bytes in all.

    Returns:
        The path of the file.

    Raises:
        FormatError: see `Checkpoint.open`; or a weight does not fit the outtype, or the tokenizer has no merges,
            which GGUF cannot say; or a path is empty or holds a NUL character.
        HubError: a checkpoint of the hub cannot be had.
        FileExistsError: `out` exists and `force` is not set.
        TypeError: `pre` or `name` is not a string.
        ValueError: unknown outtype.
        OSError: `out` cannot be written, or may not be replaced; or reading failed. `filename` names the path.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"unknown outtype {outtype!r}; choose one of {', '.join(OUTTYPES)}")
    target = WholeFile(out, replace=force)
    place = places.find(checkpoint_dir, checkpoint=True)
    if place.path.suffix == ".gguf" and place.path.is_file():
        raise FormatError(f"{os.fspath(checkpoint_dir)}: not a checkpoint directory, but a GGUF file already")
    with Checkpoint.open(place.path, pre=pre, name=place.name if name is None else name) as checkpoint:
        target.refuse_files_of(checkpoint.path, checkpoint.path / "encoder", checkpoint.path / "tokenizer")
        if checkpoint.metadata.get(_MERGES) == []:
            raise FormatError(f"{checkpoint.path}: the tokenizer's BPE has no merges, and GGUF has no empty arrays")
        config = ModelConfig.from_source(checkpoint)
        if config.architecture == "s1":  # llama.cpp reads no other
            _warn_of_llama_cpp(config)
            _warn_of_other_tokens(checkpoint)
        with target.writing() as file:
            _write(checkpoint, target, file, outtype, progress)
    return target.path


def _warn_of_llama_cpp(config: ModelConfig) -> None:
    if not BY_NAME[config.activation].in_llama_cpp:
        message = (
            f"llama.cpp will refuse the file: it has no {config.activation} in the encoder's feed-forward part "
            f"(skyinfer has)"
        )
    elif config.option_layout != "sequential":
        message = "llama.cpp will refuse the file: it has no options in parallel (skyinfer has)"
    elif config.n_decision_blocks == 0:
        message = "llama.cpp does not read a decision model without head blocks (skyinfer does)"
    elif config.n_heads != config.n_decision_heads:
        message = (
            f"llama.cpp will compute other answers: it gives the decision head the encoder's "
            f"{config.n_heads} attention heads where the Laya runtime has {config.n_decision_heads}"
        )
    else:
        return
    warn(message)


def _warn_of_other_tokens(checkpoint: Checkpoint) -> None:
    """llama.cpp splits text by a name and has no normalizers, and skyinfer reads the whole tokenizer."""
    from ..text.tokenizer import parse
    from .checkpoint.pre_tokenizer import first_difference
    from .checkpoint.tokenizer import UNKNOWN_MODEL

    if checkpoint.metadata[_TOKENIZER_MODEL] == UNKNOWN_MODEL:
        warn("llama.cpp will refuse the file: it has no such WordPiece tokenizer (skyinfer reads the whole tokenizer)")
    if checkpoint.metadata[_TOKENIZER_MODEL] == "bert":
        warn("llama.cpp will cut a word of more than 100 characters into pieces, where the Laya runtime has [UNK]")
    if checkpoint.metadata[_TOKENIZER_MODEL] != "gpt2":
        return
    pre = checkpoint.metadata["tokenizer.ggml.pre"]
    backend, _ = parse(checkpoint.metadata[HUGGINGFACE_JSON], str(checkpoint.path / "tokenizer" / "tokenizer.json"))
    try:
        found = first_difference(backend, checkpoint.metadata)
    except FormatError as error:
        warn(f"llama.cpp may not read this tokenizer (skyinfer does): {error}")
        return
    if found is not None:
        warn(
            f"llama.cpp will read other tokens than the Laya runtime (skyinfer will not): none of its pre-tokenizers "
            f"does what this tokenizer does. By the name {pre!r}, which is written, {found.text!r} becomes the tokens "
            f"{found.other_ids}, and not {found.ids}"
        )


def _write(
    checkpoint: Checkpoint,
    target: WholeFile,
    file: BinaryIO,
    outtype: str,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    kinds = {name: _matrix_type(info, outtype) for name, info in checkpoint.tensors.items()}
    sizes = _write_header(checkpoint, target, file, outtype, kinds)
    done, total = 0, sum(sizes.values())
    for name in checkpoint.tensors:
        encoded = _encode(checkpoint, name, kinds[name])
        assert encoded.nbytes == sizes[name]
        with target.faults_named():
            # not `tofile`, whose OSError does not say why
            file.write(encoded.data.cast("B"))
            file.write(bytes(-encoded.nbytes % _ALIGNMENT))
        done += encoded.nbytes
        if progress is not None:
            progress(name, done, total)


def _write_header(
    checkpoint: Checkpoint, target: WholeFile, file: BinaryIO, outtype: str, kinds: dict[str, GGMLQuantizationType]
) -> dict[str, int]:
    """Everything in front of the tensors' bytes, which come aligned and in the order of the result: bytes by name."""
    import gguf

    writer = gguf.GGUFWriter(None, checkpoint.metadata["general.architecture"])
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
    sizes = {}
    for name, info in checkpoint.tensors.items():
        # quantized rows are counted in bytes, and so are BF16 ones
        shape = gguf.quants.quant_shape_to_byte_shape(info.shape, kinds[name])
        sizes[name] = int(np.prod(shape, dtype=np.int64))
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), sizes[name], kinds[name])
    # an open file in place of a path, which the writer would open itself
    writer.fout, writer.state = [file], gguf.gguf_writer.WriterState.EMPTY  # type: ignore[list-item]
    with target.faults_named():
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        file.write(bytes(-file.tell() % _ALIGNMENT))
    return sizes


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
            f"{checkpoint.path}: tensor {checkpoint.label(name)}: a weight is too large for {kind.name.lower()}; "
            f"convert to {'f32' if kind.name == 'BF16' else 'bf16 or f32'}"
        )
    encoded: np.ndarray = gguf.quants.quantize(np.ascontiguousarray(values), kind)
    return encoded
