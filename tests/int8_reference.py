"""Products of 8-bit weights in whole numbers and float64: the executable specification of csrc/kernels/kernels.h's.

Depends on none of the code that it judges. A weight or an activation is a whole number times the scale of its block of
32 or of its row; the whole numbers are found in float32, as a kernel finds them, and all after that is exact or in
float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
BLOCK = 32
LEVELS, WIDE_LEVELS, WIDE_FROM, ROW_LEVELS = 127, 127 * 256, 24, 1 << 14
OF_BYTES = ("avxvnni", "avx512vnni", "neondot")  # take activations of 8 bits in blocks; others, of 16 bits, by rows


class Blocks(NamedTuple):
    """whole [rows, blocks, 32] times scale [rows, blocks, 1], both exact in float64."""

    whole: NDArray[np.int64]
    scale: NDArray[np.float64]

    @property
    def values(self) -> NDArray[np.float64]:
        """float64 [rows, 32 * blocks]"""
        return (self.whole * self.scale).reshape(len(self.whole), -1)


def in_blocks(x: F32) -> F32:
    """[rows, k] as [rows, blocks, 32], with zeros behind it."""
    rows, k = x.shape
    padded = np.zeros((rows, -(-k // BLOCK) * BLOCK), np.float32)
    padded[:, :k] = x
    return padded.reshape(rows, -1, BLOCK)


def column_factors(w: F32) -> F32:
    """[k]: what activations are multiplied by, and columns of w divided by. Of each column the largest element counts,
    in shares of the largest of its row. 1, or where its exponent is smaller by n >= 2 than that of the middle column,
    which is at most that of 1/2, 2^-n, at least 2^-12."""
    sizes = np.abs(w).max(-1, keepdims=True)
    sizes = np.where(sizes >= np.finfo(np.float32).tiny, sizes, np.float32(np.inf))
    largest = (np.abs(w) * (np.float32(1) / sizes)).max(0)
    is_normal = largest >= np.finfo(np.float32).tiny
    exponents = np.frexp(largest)[1]
    usual = min(0, np.sort(exponents[is_normal])[(is_normal.sum() - 1) // 2]) if is_normal.any() else 0
    shift = np.where(is_normal & (usual - exponents >= 2), np.minimum(usual - exponents, 12), 0)
    return np.ldexp(np.float32(1), -shift)


def quantized_weights(w: F32) -> Blocks:
    """What float weights, divided by their factors, become: the largest of a row 127."""
    scale = (np.abs(w).max(-1) / np.float32(LEVELS))[:, None, None]
    with np.errstate(divide="ignore"):
        factor = np.where(scale >= np.finfo(np.float32).tiny, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    whole = np.rint(np.clip(in_blocks(w) * factor, -LEVELS, LEVELS))
    return Blocks(whole.astype(np.int64), np.broadcast_to(scale, (*whole.shape[:2], 1)).astype(np.float64))


def q8_0_weights(data: NDArray[np.uint8]) -> Blocks:
    """[rows, 34 * blocks] bytes of GGUF's Q8_0: of each block a scale in half precision, then 32 whole numbers."""
    blocks = data.reshape(len(data), -1, 2 + BLOCK)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float64)
    return Blocks(np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.int64), scale)


def quantized_activations(x: F32, isa: str) -> Blocks:
    """What rows of activations become; where those have 8 bits, a block with an outlier takes more levels."""
    blocks = in_blocks(x)
    if isa in OF_BYTES:
        largest = np.abs(blocks).max(-1, keepdims=True)
        rest = np.abs(x).sum(-1, dtype=np.float64) - largest.sum((-1, -2), dtype=np.float64)
        number = max(x.shape[1] - blocks.shape[1], 1)
        levels = np.where(largest > WIDE_FROM * rest[:, None, None] / number, WIDE_LEVELS, LEVELS).astype(np.float32)
    else:
        largest = np.broadcast_to(np.abs(x).max(-1)[:, None, None], (*blocks.shape[:2], 1))
        levels = np.float32(ROW_LEVELS)
    factor = (levels / np.maximum(largest, np.float32(1e-30))).astype(np.float32)
    return Blocks(np.rint(blocks * factor).astype(np.int64), (largest / levels).astype(np.float64))


def product_of_floats(x: F32, w: F32, isa: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`product` of float weights."""
    factors = column_factors(w)
    return product(x * factors, quantized_weights(w / factors), isa)


def product(x: F32, w: Blocks, isa: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x [m, k] @ w^T [k, n] of the quantized numbers, and the same of the magnitudes of the sums of blocks: what a
    float sum over blocks can be off by is relative to that."""
    a = quantized_activations(x, isa)
    sums = np.einsum("mbi,nbi->mnb", a.whole, w.whole)  # exact
    terms = sums * (a.scale[:, None, :, 0] * w.scale[None, :, :, 0])
    return terms.sum(-1), np.abs(terms).sum(-1)
