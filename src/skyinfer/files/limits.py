"""The largest models that are read. docs/formats.md lists them; what a file says beyond them is a FormatError."""

from __future__ import annotations

# of the core: MAX_BLOCKS is for encoder and decision blocks together here, MAX_D_HEAD the width of one attention head
from ..core.border import MAX_BLOCKS, MAX_D_FF, MAX_D_HEAD, MAX_D_MODEL, MAX_VOCAB

__all__ = [
    "LEAST_F32",
    "MAX_BLOCKS",
    "MAX_D_FF",
    "MAX_D_HEAD",
    "MAX_D_MODEL",
    "MAX_TOKENS",
    "MAX_VOCAB",
    "MOST_F32",
]

MAX_TOKENS = 1 << 17  # of a sequence

# positive numbers that are neither 0 nor infinite as the float32 that everything is computed in
LEAST_F32, MOST_F32 = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
