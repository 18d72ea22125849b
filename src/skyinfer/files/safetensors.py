"""Maps the tensors of a safetensors file, whatever their number type.

The header is read and checked here: the safetensors package has no wheel for free-threaded Python, its numpy side has
no BF16, and it copies. What the tensors mean is defined in checkpoint/weights.py.

Format: 8 bytes with the header's length, the header in JSON, then the tensors end to end (safetensors' README).
tests/test_safetensors.py compares with the package.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import FormatError, faults_named, shown
from .paths import open_regular

# bits of one value, of every type that the format has (safetensors 0.8)
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

# the package's own limit, and more dimensions than any tensor has
_MAX_HEADER_BYTES, _MAX_DIMS = 100_000_000, 64


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
    """Map one file and give each tensor with its name, in the order in which they lie there.

    Raises:
        FormatError: not a safetensors file, or a faulty one.
        OSError: the file cannot be read.
    """
    try:
        with faults_named(path), open_regular(path) as opened:
            head = opened.read(64)
            if head.startswith(b"version https://git-lfs"):
                raise FormatError(f"{path}: this is a Git LFS pointer; fetch it with `git lfs pull`")
            if not head:
                _fail(path, "it is empty")
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise FormatError(f"{path}: is missing (not a Laya checkpoint?)") from None
    header, offset = _header(path, mapped)
    data = np.frombuffer(mapped, np.uint8)
    for name, dtype, shape, n_bytes in _in_order(path, header):
        if n_bytes > data.nbytes - offset:
            _fail(path, f"tensor {shown(name)} runs past the end of the file")
        yield name, StoredTensor(dtype, shape, offset, data[offset : offset + n_bytes], mapped)
        offset += n_bytes
    if offset != data.nbytes:
        raise FormatError(f"{path}: {data.nbytes - offset} bytes belong to no tensor")


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(f"{path}: not a safetensors file: {what}")


def _header(path: Path, mapped: mmap.mmap) -> tuple[Mapping[str, Any], int]:
    """The header's entries, and where the tensors begin."""
    end = 8 + int.from_bytes(mapped[:8], "little")
    if end > min(len(mapped), 8 + _MAX_HEADER_BYTES):
        _fail(path, f"a header of {end - 8} bytes in a file of {len(mapped)}")
    try:
        header = json.loads(mapped[8:end].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _fail(path, f"its header: {error}")
    if not isinstance(header, dict):
        _fail(path, "its header is no JSON object")
    return header, end


def _in_order(path: Path, header: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """(name, type, shape, bytes) of every tensor, in file order and without a gap or an overlap between them."""
    found = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            name.encode("utf-8")
            dtype, shape, (begin, end) = (entry[key] for key in ("dtype", "shape", "data_offsets"))
            sound = isinstance(dtype, str) and isinstance(shape, list) and len(shape) <= _MAX_DIMS
            sound = sound and all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            sound = False
        if not sound:
            _fail(path, f"the entry {short_repr(name)}: {short_repr(entry)}")
        found.append((begin, end, name, dtype, tuple(shape)))
    last = 0
    for begin, end, name, dtype, shape in sorted(found):
        if dtype not in _BITS:
            raise FormatError(f"{path}: tensor {shown(name)}: type {shown(dtype)} is not supported")
        n_bytes, rest = divmod(math.prod(shape) * _BITS[dtype], 8)
        if rest:
            _fail(path, f"tensor {shown(name)}: {list(shape)} values of {dtype} do not fill whole bytes")
        if begin != last or end - begin != n_bytes:
            _fail(path, f"tensor {shown(name)}: {n_bytes} bytes from {begin} to {end}, after {last}")
        last = end
        yield name, dtype, shape, n_bytes
