"""Maps the tensors of a safetensors file, whatever their number type.

The safetensors package reads and checks the header; its numpy side knows no BF16 and copies, so the bytes
are mapped here. What the numbers mean is checkpoint.py's business.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .errors import FormatError
from .files import faults_named, open_regular

# bytes of one value
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
    "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file.

    Attributes:
        dtype: the format's name for the number type, e.g. "BF16".
        shape: rows first.
        offset: bytes from the start of the file.
        data: uint8, the tensor's own bytes, a read-only view of the file.
        file: the map that `data` is a view of.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    data: np.ndarray
    file: mmap.mmap


def map_tensors(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Map one file and give each tensor with its name.

    Raises:
        FormatError: not a safetensors file, or a faulty one.
        OSError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with faults_named(path), open_regular(path) as opened:
            head = opened.read(64)
    except FileNotFoundError:
        raise FormatError(f"{path}: is missing (not a Laya checkpoint?)") from None
    if head.startswith(b"version https://git-lfs"):
        raise FormatError(f"{path}: this is a Git LFS pointer; fetch it with `git lfs pull`")
    try:
        with faults_named(path), safe_open(path, "numpy") as file:
            # safetensors refuses gaps, so sizes in file order give the places
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            stated = {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}
    except SafetensorError as error:
        raise FormatError(f"{path}: not a safetensors file: {error}") from None
    with faults_named(path), open_regular(path) as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, np.uint8)
    offset = 8 + int.from_bytes(head[:8], "little")
    for name, (dtype, shape) in stated.items():
        if dtype not in _ITEM_BYTES:
            raise FormatError(f"{path}: tensor {name}: type {dtype} is not supported")
        size = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[dtype]
        yield name, StoredTensor(dtype, tuple(shape), offset, data[offset : offset + size], mapped)
        offset += size
    if offset != data.nbytes:
        raise FormatError(f"{path}: {data.nbytes - offset} bytes belong to no tensor")
