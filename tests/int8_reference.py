"""Products of 8-bit weights in whole numbers and float64: the executable specification of csrc/kernels/kernels.h's.

Depends on none of the code that it judges. A weight or an activation is a whole number times the scale of its block of
32; the whole numbers are found in float32, as a kernel finds them, and all after that is exact or in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
BLOCK = 32
LEVELS, WIDE_LEVELS, WIDE_FROM = 127, 127 * 256, 24


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
    """[k]: what activations are multiplied by, and columns of w divided by. 1, or for a column whose largest element
    has an exponent that is smaller by n >= 2 than that of the middle column of its block, 2^-n, at least 2^-12."""
    largest = np.abs(w).max(0)
    factors = np.ones(len(largest), np.float32)
    for first in range(0, len(largest), BLOCK):
        block = largest[first : first + BLOCK]
        smaller = np.frexp(np.sort(block)[(len(block) - 1) // 2])[1] - np.frexp(block)[1]
        shift = np.where((block > 0) & (smaller >= 2), np.minimum(smaller, 12), 0)
        factors[first : first + BLOCK] = np.ldexp(np.float32(1), -shift)
    return factors


def quantized_weights(w: F32) -> Blocks:
    """What float weights, divided by their factors, become: the largest of a block 127, scales in half precision times
    a power of two for the matrix that takes the largest of them to between 2^9 and 2^10."""
    blocks = in_blocks(w)
    largest = np.abs(blocks).max(-1, keepdims=True) / np.float32(LEVELS)
    most = np.abs(w).max() / np.float32(LEVELS)
    exponent = np.frexp(most)[1] - 10 if most else 0
    unit = np.float32(2.0) ** np.float32(exponent)
    scale = (largest / unit).astype(np.float16).astype(np.float32) * unit
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    whole = np.rint(np.clip(blocks * factor, -LEVELS, LEVELS))
    return Blocks(whole.astype(np.int64), scale.astype(np.float64))


def q8_0_weights(data: NDArray[np.uint8]) -> Blocks:
    """[rows, 34 * blocks] bytes of GGUF's Q8_0: of each block a scale in half precision, then 32 whole numbers."""
    blocks = data.reshape(len(data), -1, 2 + BLOCK)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float64)
    return Blocks(np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.int64), scale)


def quantized_activations(x: F32) -> Blocks:
    """What rows of activations become; a block with an outlier takes more levels."""
    blocks = in_blocks(x)
    largest = np.abs(blocks).max(-1, keepdims=True)
    mean = np.abs(x).sum(-1, dtype=np.float64)[:, None, None] / x.shape[1]
    levels = np.where(largest > WIDE_FROM * mean, WIDE_LEVELS, LEVELS).astype(np.float32)
    factor = (levels / np.maximum(largest, np.float32(1e-30))).astype(np.float32)
    return Blocks(np.rint(blocks * factor).astype(np.int64), (largest / levels).astype(np.float64))


def product_of_floats(x: F32, w: F32) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`product` of float weights."""
    factors = column_factors(w)
    return product(x * factors, quantized_weights(w / factors))


def product(x: F32, w: Blocks) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x [m, k] @ w^T [k, n] of the quantized numbers, and the same of the magnitudes of the sums of blocks: what a
    float sum over blocks can be off by is relative to that."""
    a = quantized_activations(x)
    sums = np.einsum("mbi,nbi->mnb", a.whole, w.whole)  # exact
    terms = sums * (a.scale[:, None, :, 0] * w.scale[None, :, :, 0])
    return terms.sum(-1), np.abs(terms).sum(-1)
