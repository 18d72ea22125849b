"""GGUF files of other types than skyinfer writes, of the numbers in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

from skyinfer.files.gguf import GGUFFile

F32, F64 = GGMLQuantizationType.F32, GGMLQuantizationType.F64


def is_made_up(kind: GGMLQuantizationType) -> bool:
    """Whether the package cannot quantize to this type."""
    if kind == F64:
        return False
    try:
        quants.quantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][0]), np.float32), kind)
    except NotImplementedError:
        return True
    return False


def quantized(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Rows of blocks: uint8 [rows, bytes]. Where the package cannot quantize, blocks of small scales made up."""
    if kind == F64:
        return values.astype("<f8").view(np.uint8)
    if not is_made_up(kind):
        return quants.quantize(values, kind).view(np.uint8).reshape(values.shape[0], -1)
    block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    return rng.integers(0, 4, (values.shape[0], values.shape[1] // block * n_bytes), np.uint8) * 16


def write(
    source: GGUFFile, path: Path, kinds: Mapping[str, GGMLQuantizationType], dims: Mapping[str, list[int]] | None = None
) -> dict[str, np.ndarray]:
    """Write a file of these types and dimensions, by default the source's own, and give the numbers that the package
    reads out of each tensor."""
    writer = GGUFWriter(path, "modern-bert")
    for key, value in source.metadata.items():
        if key != "general.architecture":
            add: dict[type, Any] = {
                bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                list: writer.add_array,
            }  # fmt: skip
            add[type(value)](key, value)
    numbers = {}
    for name in source.tensors:
        kind = kinds.get(name, F32)
        shape = source.tensors[name].shape if dims is None else tuple(dims[name][::-1])
        values = source.tensor(name).reshape(shape)
        if kind == F32:
            writer.add_tensor(name, values)
            numbers[name] = values
        else:
            data = quantized(values.reshape(-1, shape[-1]), kind)
            writer.add_tensor(name, data.reshape(*shape[:-1], -1), raw_dtype=kind)
            numbers[name] = values if kind == F64 else quants.dequantize(data, kind).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers
