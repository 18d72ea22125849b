"""Tensors in a memory-mapped file: where they lie, and their bytes as the numbers that the core or numpy takes.

GGUF files and checkpoint directories share this; what the tensors mean is defined in config.py.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np

from ..core.border import Q8_0_BLOCK, Q8_0_BYTES, widen_bf16

# The types that the core reads directly: GGMLQuantizationType -> (its name there, numpy's type of an item)
STORED_DTYPES = {0: ("f32", "<f4"), 1: ("f16", "<u2"), 8: ("q8_0", "u1"), 30: ("bf16", "<u2")}
# numbers and bytes of a block of each
STORED_SIZES = {0: (1, 4), 1: (1, 2), 8: (Q8_0_BLOCK, Q8_0_BYTES), 30: (1, 2)}

# of 64-bit numbers, which neither the core nor the gguf package takes
F64 = 28

ALL_ROWS = slice(None)


class TensorInfo(NamedTuple):
    """Where a tensor lies and how it is stored.

    Attributes:
        name: the tensor's name in the file.
        shape: rows first, as numpy counts (a GGUF header lists the dimensions the other way round).
        type: value of `gguf.GGMLQuantizationType`.
        offset: bytes from the start of the file.
        n_bytes: size in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its dimensions of 1, which tools add and drop: the numbers and their order are the same."""
    return tuple(n for n in shape if n != 1) or (1,)


def stored_dtype(info: TensorInfo) -> str:
    """The name of the type that the core is given a tensor in: its own if the core reads that, else "f32"."""
    return STORED_DTYPES.get(info.type, STORED_DTYPES[0])[0]


def stored_items(dtype: str, n: int) -> int:
    """How many items of `stored_values` a row of n numbers is."""
    return n // Q8_0_BLOCK * Q8_0_BYTES if dtype == "q8_0" else n


def stored_values(info: TensorInfo, data: np.ndarray, rows: slice = ALL_ROWS) -> tuple[np.ndarray, str]:
    """Rows of a tensor of one of the `STORED_DTYPES` or of `F64`, and the type's name.

    Args:
        info: the tensor's shape and type.
        data: uint8 [n_bytes], its bytes.
        rows: which rows of `without_ones(info.shape)`.

    Returns:
        A view of `data` in the shape of `info`, or of its rows; f16 and bf16 as uint16, q8_0 as its bytes, 34 for 32
        numbers. A copy where the file does not align the numbers, and as float32 of F64: rounded as torch does it, or
        infinite, which callers refuse.
    """
    dtype, item = ("f32", "<f8") if info.type == F64 else STORED_DTYPES[info.type]
    values = data.view(item).reshape(*info.shape[:-1], -1)
    if rows != ALL_ROWS:
        values = values.reshape(*without_ones(info.shape)[:-1], -1)[rows]
    if info.type == F64:
        with np.errstate(over="ignore"):
            return values.astype(np.float32), dtype
    return (values if values.flags.aligned else values.copy()), dtype


def as_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """What `stored_values` gives, as float32 of the same shape; "f32" is not copied."""
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.view("<f2").astype(np.float32)
    if dtype == "q8_0":
        blocks = values.reshape(-1, Q8_0_BYTES)
        # a scale of a damaged file overflows to an infinity, which callers refuse
        with np.errstate(all="ignore"):
            wide = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32) * blocks[:, 2:].view(np.int8)
        return wide.reshape(*values.shape[:-1], -1)
    return widen_bf16(values)


def finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite, without a temporary array."""
    # min and max carry a NaN through
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def release_rows(mapped: mmap.mmap, info: TensorInfo, rows: slice) -> None:
    """Release the pages of a mapped file that hold only these rows of a tensor."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    n_rows = without_ones(info.shape)[0]
    begin, end, _ = rows.indices(n_rows)
    row_bytes = info.n_bytes // n_rows
    first = -(-(info.offset + begin * row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (info.offset + end * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
