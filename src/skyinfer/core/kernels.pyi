"""Types of kernels.pyx, which holds the contracts."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.float32]

WEIGHT_TYPES: dict[str, int]
EPILOGUES: dict[str, tuple[int, int]]

class PackedMatrix:
    def __init__(self, isa: str, w: np.ndarray, gated: bool = False, int8: bool = False) -> None: ...
    @property
    def isa(self) -> str: ...

class Kernels:
    def __init__(self, isa: str) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    def fma_peak(self, rounds: int) -> int: ...
    def quantize(self, a: Matrix, repeat: int = 1) -> None: ...
    def widen_f16(self, half: np.ndarray, out: Matrix) -> None: ...
    def gemm(
        self,
        a: Matrix,
        w: PackedMatrix,
        out: Matrix,
        *,
        bias: Matrix | None = None,
        residual: Matrix | None = None,
        epilogue: str = "linear",
        repeat: int = 1,
    ) -> None: ...
    def layer_norm(self, x: Matrix, weight: Matrix, eps: float, out: Matrix, *, bias: Matrix | None = None) -> None: ...
    def attention(
        self,
        q: Matrix,
        k: Matrix,
        v: Matrix,
        out: Matrix,
        *,
        cos: Matrix | None = None,
        sin: Matrix | None = None,
        window: int = -1,
        scale: float = 1.0,
        position: npt.NDArray[np.int32] | None = None,
        option: npt.NDArray[np.int32] | None = None,
    ) -> None: ...
